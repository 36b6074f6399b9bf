"""Export many models of transformers, timm and torchvision, and measure error against signal.

Usage, in the repository's root, in an environment that has the libraries::

    python -m benchmarks.export_zoo [--only NAME...] [--library LIBRARY...] [--json FILE]

Prints a row of docs/export-models.md per model. A library that is not installed is left out. The
models have small random configurations where the library allows; batch norm is calibrated on random
batches, since with fresh statistics many a network hardly looks at its input.

What a row says: `static` is traced for 2 rows and run with them; `open` is traced once with an open
batch and run with 1 and 3 rows, not the traced number. Error is the largest difference from torch,
signal how far the outputs of two inputs are apart; the worst output counts.
"""

import argparse
import dataclasses
import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hloserve.core.dtypes import by_numpy
from hloserve.core.errors import HloserveError
from hloserve.engine.programs.mlir import refine_program
from hloserve.engine.programs.signature import TensorType
from hloserve.engine.xla_backend import XlaBackend
from hloserve.export.artifact import clean_program, serialise_program, tidy_program
from hloserve.export.source import Shape, SymbolicTraceFailed, Traced
from hloserve.export.torch.source import TorchSource, as_arguments

__all__ = ["main"]

_ROWS = 2
_IDS, _LENGTH = 99, 12


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model to try.

    Attributes:
        build: makes the module and its example inputs of `_ROWS` rows.
        calibrate: train its batch norm on random batches first.
    """

    library: str
    name: str
    build: Callable[[], tuple[Any, Any]]
    calibrate: bool = False


@dataclasses.dataclass
class Row:
    """What was measured of one model."""

    library: str
    name: str
    weights: int = 0
    static_s: float = 0.0
    open_s: float = 0.0
    artifact_bytes: int = 0
    static_ratio: float = float("nan")
    open_ratio: float = float("nan")
    signal: float = float("nan")
    remark: str = ""

    def __str__(self) -> str:
        figures = (
            f"{self.weights} | {self.static_s:.1f} | {self.open_s:.1f}"
            f" | {self.artifact_bytes / 1e3:.0f} | {self.signal:.1e}"
            f" | {self.static_ratio:.0e} | {self.open_ratio:.0e} | {self.remark}"
        )
        return f"| {self.library} | {self.name} | {figures} |"


def main() -> None:
    """Try each model and print its row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", metavar="NAME")
    parser.add_argument("--library", nargs="*", choices=_LIBRARIES, metavar="LIBRARY")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of the libraries, about themselves
    print(f"torch {torch.__version__}", flush=True)
    print(
        "| library | model | weights | static s | open s | program kB | signal"
        " | error/signal static | error/signal open | |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    rows = []
    chosen = options.library or list(_LIBRARIES)  # importing the others may fail, or take long
    for entry in (entry for library in chosen for entry in _LIBRARIES[library]()):
        if not options.only or entry.name in options.only:
            rows.append(_measure(entry))
            print(rows[-1], flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))


def _measure(entry: Entry) -> Row:
    row = Row(entry.library, entry.name)
    torch.manual_seed(0)
    try:
        module, inputs = entry.build()
        _disturb(module)
        if entry.calibrate:
            _calibrate(module, inputs)
        args, kwargs = as_arguments(inputs, None)
        source = TorchSource(module.eval(), args, kwargs, {"dir": entry.name})
        arrays = [array for _, array in source.inputs]
        traced, row.static_s = _trace(source, [array.shape for array in arrays])
        row.weights = len(traced.weights)
        row.signal, row.static_ratio = _compare(source, traced, [_ROWS])
        traced, row.open_s = _trace(source, [("batch", *array.shape[1:]) for array in arrays])
        _, row.open_ratio = _compare(source, traced, [1, 3])
        program = tidy_program(clean_program(traced.artifact, entry.name), entry.name)
        row.artifact_bytes = len(serialise_program(program, None, entry.name).content)
    except (HloserveError, SymbolicTraceFailed) as error:
        row.remark = str(error)[:300]
    return row


def _trace(source: TorchSource, shapes: Sequence[Shape]) -> tuple[Traced, float]:
    started = time.perf_counter()
    traced = source.trace(shapes)
    return traced, time.perf_counter() - started


def _compare(source: TorchSource, traced: Traced, sizes: Sequence[int]) -> tuple[float, float]:
    """The signal of the output that is worst off, and its error as a share of it."""
    worst = (float("nan"), -1.0)
    backend = XlaBackend("cpu")
    program = clean_program(traced.artifact, "model")
    rng = np.random.default_rng(0)
    weights = [array for _, array in traced.weights]
    for size in sizes:
        first, second = ([_draw(a, size, rng) for _, a in source.inputs] for _ in range(2))
        types = [TensorType(by_numpy(a.dtype), a.shape) for a in (*first, *weights)]
        executable = backend.compile(refine_program(program, types), "model")
        buffers = backend.to_device([*first, *weights])
        results = backend.execute(executable, buffers)
        found = [array.copy() for array in backend.to_host(results)]
        backend.free([*buffers, *results])
        for got, wanted, other in zip(found, source.run(first), source.run(second), strict=True):
            a, b, c = (x.astype(np.float64) for x in (got, wanted, other))
            signal, error = float(np.max(np.abs(b - c))), float(np.max(np.abs(a - b)))
            ratio = error / signal if signal else float("inf" if error else "nan")
            worst = max(worst, (signal, ratio), key=lambda pair: pair[1])
    return worst


def _draw(example: Any, rows: int, rng: Any) -> Any:
    shape = (rows, *example.shape[1:])
    if example.dtype.kind in "iu":
        if example.max() <= 1:
            return np.ones(shape, example.dtype)  # a mask
        return rng.integers(0, example.max() + 1, shape).astype(example.dtype)
    return rng.standard_normal(shape).astype(example.dtype)


def _disturb(module: Any) -> None:
    """Give parameters of one value, such as a head of zeros, several."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(torch.randn_like(parameter), alpha=0.02)


def _calibrate(module: Any, inputs: Any) -> None:
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.momentum = None
    rates = {part: part.p for part in module.modules() if isinstance(part, torch.nn.Dropout)}
    for part in rates:
        part.p = 0.0
    with torch.no_grad():
        for _ in range(2):
            module.train()(torch.randn(8, *inputs.shape[1:]))
    for part, rate in rates.items():
        part.p = rate


def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _ids(high: int = _IDS) -> Any:
    ids = torch.randint(3, high, (_ROWS, _LENGTH))
    ids[0, 0] = high - 1  # so that the example shows the range
    return ids


def _images(size: int) -> Any:
    return torch.randn(_ROWS, 3, size, size)


def _transformers() -> list[Entry]:
    if not _is_installed("transformers"):
        return []
    from benchmarks.export_zoo_transformers import MODELS

    return [
        Entry("transformers", name, lambda build=build: build(_ids, _images))
        for name, build in MODELS.items()
    ]


def _timm() -> list[Entry]:
    if not _is_installed("timm"):
        return []
    import timm

    names = {
        "vit_tiny_patch16_224": 224,
        "efficientnet_lite0": 64,
        "swin_tiny_patch4_window7_224": 224,
        "convnextv2_atto": 64,
        "eva02_tiny_patch14_224": 224,
        "resnext50_32x4d": 64,
        "mixer_s16_224": 224,
        "beit_base_patch16_224": 224,
        "maxvit_rmlp_pico_rw_256": 256,
        "coat_tiny": 224,
        "deit3_small_patch16_224": 224,
        "fastvit_t8": 64,
    }
    return [
        Entry(
            "timm",
            name,
            lambda name=name, size=size: (timm.create_model(name), _images(size)),
            calibrate=True,
        )
        for name, size in names.items()
    ]


def _torchvision() -> list[Entry]:
    if not _is_installed("torchvision"):
        return []
    import torchvision.models as models

    names = {
        "resnet50": 64,
        "mobilenet_v3_small": 64,
        "efficientnet_b0": 64,
        "convnext_tiny": 64,
        "swin_t": 64,
        "vit_b_16": 224,
        "densenet121": 64,
        "regnet_y_400mf": 64,
        "googlenet": 64,
        "inception_v3": 96,
    }
    # A head for training alone, which small images do not reach.
    without_aux = {name: {"aux_logits": False} for name in ("googlenet", "inception_v3")}
    found = [
        Entry(
            "torchvision",
            name,
            lambda name=name, size=size: (
                getattr(models, name)(**without_aux.get(name, {})),
                _images(size),
            ),
            calibrate=True,
        )
        for name, size in names.items()
    ]
    deeplab = lambda: (  # noqa: E731  # beside its kind
        models.segmentation.deeplabv3_resnet50(weights_backbone=None, aux_loss=False),
        _images(64),
    )
    return [*found, Entry("torchvision", "deeplabv3_resnet50", deeplab, calibrate=True)]


_LIBRARIES = {"transformers": _transformers, "timm": _timm, "torchvision": _torchvision}


if __name__ == "__main__":
    main()
