"""Stream audio through a running server, chunk by chunk, and compare with the original file.

Usage, in the repository's root, against `hloserve serve build/repository`::

    python -m examples.torchscript.compare --grpc 127.0.0.1:8001

Exit status 1 when a probability is off by more than 1e-4.
"""

import argparse
import warnings
from typing import Any

import numpy as np
import torch

import hloserve
from examples.torchscript.vad import RATE, STATE, chunks, model_file, synthetic_audio

__all__ = ["MODEL", "TOLERANCE", "main", "original_answers", "served_answers"]

MODEL = "vad"
TOLERANCE = 1e-4


def original_answers(audios: list[Any]) -> Any:
    """What the file itself says, (steps, streams): it keeps context and state, one batch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.load` is deprecated")  # as the file is
        script = torch.jit.load(model_file())
    script.reset_states()
    steps = range(0, len(audios[0]) - 511, 512)
    with torch.no_grad():
        said = [
            script(torch.from_numpy(np.stack([audio[s : s + 512] for audio in audios])), RATE)
            for s in steps
        ]
    return np.stack([probability.numpy()[:, 0] for probability in said])


def served_answers(address: str, audios: list[Any]) -> Any:
    """What a server says, (steps, streams): the client keeps context and state."""
    state = np.zeros((2, len(audios), STATE), np.float32)
    said = []
    with hloserve.Client(address) as client:
        for step in zip(*map(chunks, audios), strict=True):
            answer = client.infer(MODEL, {"audio": np.stack(step), "state": state})
            state = answer["next_state"]
            said.append(answer["speech"][:, 0])
    return np.stack(said)


def main() -> None:
    """Compare one stream and three at once, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grpc", default="127.0.0.1:8001", metavar="HOST:PORT")
    address = parser.parse_args().grpc
    worst = 0.0
    for streams in (1, 3):
        audios = [synthetic_audio(4.0, seed) for seed in range(streams)]
        served, original = served_answers(address, audios), original_answers(audios)
        error = float(np.max(np.abs(served - original)))
        worst = max(worst, error)
        print(
            f"{streams} stream{'s' * (streams > 1)}, {len(served)} steps: speech in"
            f" {np.mean(served > 0.5):.0%} of them, probabilities {original.min():.3f} to"
            f" {original.max():.3f}, largest error {error:.1e}"
        )
    raise SystemExit(int(worst > TOLERANCE))


if __name__ == "__main__":
    main()
