"""Export the voice activity detector from its TorchScript file.

Usage, in the repository's root::

    python -m examples.torchscript.make_bundle build/repository/vad

One program serves any number of streams at a time.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.torchscript.vad import CHUNK, CONTEXT, STATE, OneStep, chunks, model_file
from examples.torchscript.vad import synthetic_audio as audio_of
from hloserve.export import ExportReport, export_torchscript

__all__ = ["main", "write_detector"]


def write_detector(bundle: Path, *, sizes: Sequence[int] = (1, 2, 4, 8)) -> ExportReport:
    """Export and write the bundle.

    Args:
        bundle: the directory to make; its name is the model's.
        sizes: streams per execution that a server compiles, unless its operator says otherwise.
    """
    examples = (np.zeros((1, CONTEXT + CHUNK), np.float32), np.zeros((2, 1, STATE), np.float32))
    return export_torchscript(
        model_file(),
        examples,
        wrap=OneStep,
        dir=bundle,
        batch_sizes="dynamic",
        dynamic_sizes=sizes,
        input_names=["audio", "state"],
        output_names=["speech", "next_state"],
        input_batch_axes=[0, 1],
        output_batch_axes=[0, 1],
        sample_inputs=_samples,
        description="silero-vad at 16 kHz: is there speech in 32 ms of audio",
        overwrite=True,
    )


def _samples(random: np.random.Generator, rows: int) -> Sequence[Any]:
    """Audio and states as they occur: on plain noise the detector always says no."""
    steps = chunks(audio_of(3.0, seed=int(random.integers(1 << 30))))
    picked = random.choice(len(steps), rows)
    state = random.uniform(-0.5, 0.5, (2, rows, STATE)).astype(np.float32)
    return [np.stack([steps[index] for index in picked]), state]


def main() -> None:
    """Parse the arguments, export, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="directory to write")
    print(write_detector(parser.parse_args().bundle))


if __name__ == "__main__":
    main()
