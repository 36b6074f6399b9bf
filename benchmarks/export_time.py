"""Time the export of ResNet-50 for 1, 8 and 32 rows against the traces that it needs.

Usage, in the repository's root, on a quiet machine::

    python -m benchmarks.export_time [--sizes ROWS...] [--image-size PIXELS]

Prints JSON: seconds per phase, the seconds of a trace per size, and the ratios. `ratio` is the
whole export over one trace per size: what an exporter would need that only traces. The proof
compiles and runs programs, which no trace does, so `ratio_without_proof` is told apart.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from examples.pytorch_resnet.resnet import build_model
from hloserve.export import export_pytorch
from hloserve.export.torch.source import TorchSource

__all__ = ["main", "measure"]


def measure(sizes: list[int], image_size: int) -> dict[str, Any]:
    """Time both, after one small trace that loads what is loaded once."""
    model = build_model(image_size)
    example = torch.randn(1, 3, image_size, image_size)
    _trace(torch.nn.Linear(2, 2), torch.randn(1, 2), 1)
    traces_s = {size: _trace(model, example, size) for size in sizes}
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        report = export_pytorch(model, example, dir=Path(directory) / "resnet50", batch_sizes=sizes)
        export_s = time.perf_counter() - started
    alone_s = sum(traces_s.values())
    proof_s = report.seconds.get("proof", 0.0)
    return {
        "torch": torch.__version__,
        "image_size": image_size,
        "trace_s_by_size": {size: round(s, 2) for size, s in traces_s.items()},
        "traces_s": round(alone_s, 2),
        "export_s": round(export_s, 2),
        "phases_s": {phase: round(s, 2) for phase, s in report.seconds.items()},
        "ratio": round(export_s / alone_s, 2),
        "ratio_without_proof": round((export_s - proof_s) / alone_s, 2),
    }


def _trace(module: Any, example: Any, size: int) -> float:
    """Seconds to make a source of the module and trace it for one batch size."""
    started = time.perf_counter()
    source = TorchSource(module.eval(), (example,), {}, {"dir": "model"})
    source.trace([(size, *example.shape[1:])])
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32], metavar="ROWS")
    parser.add_argument("--image-size", type=int, default=224, metavar="PIXELS")
    options = parser.parse_args()
    print(json.dumps(measure(options.sizes, options.image_size), indent=1))


if __name__ == "__main__":
    main()
