"""The voice activity detector: its file, the part that is exported, and audio to try it on.

What lives here: what the programs of this example share. The model is silero-vad's TorchScript
file, as its package on PyPI brings it.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = [
    "CHUNK",
    "CONTEXT",
    "RATE",
    "STATE",
    "OneStep",
    "chunks",
    "model_file",
    "synthetic_audio",
]

RATE = 16_000
CHUNK = 512
"""New samples per step: 32 ms."""
CONTEXT = 64
"""Samples of the step before, which the model wants in front of the new ones."""
STATE = 128
"""Width of the recurrent state; it has two parts, h and c."""


def model_file() -> Path:
    """Where the package keeps its TorchScript file; the package itself is not imported."""
    package = find_spec("silero_vad")
    if package is None or package.origin is None:
        raise SystemExit("the model is missing; run: pip install silero-vad")
    return Path(package.origin).parent / "data" / "silero_vad.jit"


class OneStep(torch.nn.Module):
    """One step of the 16 kHz detector, with its state as argument and result.

    The file's own forward keeps the state and the context in the module and chooses between two
    networks by the rate: a server of many streams can do neither. The network inside has it right.

    Args:
        script: the loaded file.
    """

    def __init__(self, script: Any) -> None:
        super().__init__()
        self.model = script._model

    def forward(self, audio: Any, state: Any) -> Any:
        """Shapes: audio (n, 576), state (2, n, 128); gives speech (n, 1) and the next state."""
        return self.model(audio, state)


def synthetic_audio(seconds: float, seed: int = 0) -> Any:
    """Noise with stretches that sound a little like vowels, float32 of -1 to 1."""
    random = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    pitch = 120 + 25 * np.sin(2 * np.pi * 2.5 * time) + 10 * random.standard_normal()
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formants = ((700, 130), (1220, 200), (2600, 300))
    voice = np.zeros_like(time)
    for harmonic in range(1, 30):
        loudness = sum(np.exp(-(((harmonic * 120 - f) / w) ** 2)) for f, w in formants) + 0.05
        voice += loudness * np.sin(harmonic * phase)
    speaking = np.sin(2 * np.pi * 0.8 * time + random.uniform(0, 6)) > 0
    syllables = 0.6 + 0.4 * np.sin(2 * np.pi * 4 * time)
    audio = 0.08 * voice * speaking * syllables + 0.004 * random.standard_normal(time.size)
    return np.clip(audio, -1, 1).astype(np.float32)


def chunks(audio: Any) -> list[Any]:
    """The inputs of each step, (576,): the end of the step before, then the new samples."""
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), audio])
    starts = range(0, len(audio) - CHUNK + 1, CHUNK)
    return [padded[start : start + CONTEXT + CHUNK] for start in starts]
