"""Time programs on the CPU: XLA as it is, with our rewrites and options, and onnxruntime.

Usage, in the repository's root, on a quiet machine::

    python -m benchmarks.programs [--onnxruntime PYTHON] [--models resnet50 minilm]
        [--sizes ROWS...] [--rounds N] [--output FILE]

onnxruntime is no dependency: make an environment for it anywhere and name its interpreter::

    python3.11 -m venv /tmp/onnx && /tmp/onnx/bin/pip install onnxruntime onnx

Without, its column is left out. All contenders have two threads, each runs a batch in turn, and
medians and minima of the rounds are told with the ratios of those. The answers are compared too.
Prints a table, and writes JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hloserve.core.tensors import Array
from hloserve.engine.programs.compiling import CompileSettings
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.loader import LoadOptions, load_model

__all__ = ["main", "measure"]

_CONTENDER = Path(__file__).with_name("onnx_contender.py")
_TOKENS = 128
_SPINNING_S = 0.03
"""onnxruntime's threads look for work that long after a run; the next contender must not pay."""

Run = Callable[[], float]


class XlaContender:
    """A bundle on XLA.

    Args:
        bundle: its directory.
        settings: how it is compiled.
        size: rows per batch.
        inputs: of that many rows, by name.
    """

    def __init__(
        self, bundle: Path, settings: CompileSettings, size: int, inputs: Mapping[str, Array]
    ) -> None:
        self._backend = XlaBackend("cpu", compiling=settings)
        self._model = load_model(bundle, self._backend, LoadOptions(batch_sizes=(size,)))
        device = self._model.device
        arrays = [
            np.ascontiguousarray(inputs[spec.name], spec.dtype.numpy) for spec in device.inputs
        ]
        self._executable = device.executables[device.variant_of(arrays)][size]
        self._arguments = [*self._backend.to_device(arrays), *device.weights]
        self.output = self._compute()

    def _compute(self) -> Array:
        results = self._backend.execute(self._executable, self._arguments)
        output = np.array(self._backend.to_host(results)[0])
        self._backend.free(results)
        return output

    def run(self) -> float:
        """Compute a batch; seconds."""
        started = time.perf_counter()
        self._compute()
        return time.perf_counter() - started

    def close(self) -> None:
        """Give the memory back."""
        self._model.free()


class OnnxContender:
    """A model on onnxruntime, in a process of its own."""

    def __init__(
        self, python: str, model: Path, inputs: Mapping[str, Array], directory: Path, threads: int
    ) -> None:
        feed, output = directory / "inputs.npz", directory / "output.npy"
        np.savez(feed, **inputs)  # type: ignore[arg-type]
        self._process = subprocess.Popen(
            [python, str(_CONTENDER), str(model), str(feed), str(output), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version = self._answer()
        self.output = np.load(output)

    def _answer(self) -> str:
        assert self._process.stdout is not None, "it is a pipe"
        return self._process.stdout.readline().strip()

    def run(self) -> float:
        """Compute a batch; seconds."""
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        elapsed_s = float(self._answer())
        time.sleep(_SPINNING_S)
        return elapsed_s

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(runs: Mapping[str, Run], rounds: int) -> Mapping[str, Sequence[float]]:
    """Let all contenders run in turn; seconds by name. The first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            elapsed_s = run()
            if number:
                seconds[name].append(elapsed_s)
    return seconds


def _resnet50(directory: Path, sizes: Sequence[int], onnx: Path | None) -> Mapping[str, Any]:
    import torch

    from examples.pytorch_resnet.make_bundle import IMAGE_SIZE, write_example
    from examples.pytorch_resnet.resnet import build_model

    write_example(directory / "resnet50", directory / "resnet50.pt", sizes=sizes)
    if onnx is not None:
        example = torch.randn(1, 3, IMAGE_SIZE, IMAGE_SIZE)
        _export_onnx(build_model(IMAGE_SIZE), {"image": example}, onnx)
    random = np.random.default_rng(0)
    shape = (3, IMAGE_SIZE, IMAGE_SIZE)
    return {"image": lambda rows: random.standard_normal((rows, *shape)).astype(np.float32)}


def _minilm(directory: Path, sizes: Sequence[int], onnx: Path | None) -> Mapping[str, Any]:
    import torch
    from transformers import BertModel

    from examples.minilm.make_bundle import write_minilm
    from examples.minilm.minilm import MODEL_FILES

    write_minilm(directory / "minilm", sizes=sizes, lengths=(_TOKENS,))
    if onnx is not None:

        class Embedding(torch.nn.Module):
            """The encoder, mean pooling and normalisation, as the bundle has them."""

            def __init__(self) -> None:
                super().__init__()
                self.bert = BertModel.from_pretrained(
                    MODEL_FILES, attn_implementation="eager", add_pooling_layer=False
                ).eval()

            def forward(self, input_ids: Any, attention_mask: Any) -> Any:
                hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
                counted = attention_mask.to(hidden.dtype)[:, :, None]
                mean = (hidden * counted).sum(1) / counted.sum(1)
                return mean / mean.norm(dim=-1, keepdim=True)

        ones = torch.ones(1, _TOKENS, dtype=torch.int64)
        _export_onnx(Embedding(), {"input_ids": ones, "attention_mask": ones}, onnx)
    random = np.random.default_rng(0)
    return {
        "input_ids": lambda rows: random.integers(1000, 20000, (rows, _TOKENS)),
        "attention_mask": lambda rows: np.ones((rows, _TOKENS), np.int64),
    }


_MODELS = {"resnet50": _resnet50, "minilm": _minilm}


def _export_onnx(model: Any, inputs: Mapping[str, Any], path: Path) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, tuple(inputs.values()), str(path), input_names=list(inputs),
            dynamic_axes={name: {0: "n"} for name in inputs}, dynamo=False,
        )  # fmt: skip


def _measure_size(
    bundle: Path, size: int, inputs: Mapping[str, Array], onnx: tuple[str, Path] | None, rounds: int
) -> Mapping[str, Any]:
    """All contenders at one batch size."""
    contenders: dict[str, Any] = {
        "xla": XlaContender(bundle, CompileSettings(has_rewrites=False), size, inputs),
        "hloserve": XlaContender(bundle, CompileSettings(), size, inputs),
    }
    if onnx is not None:
        python, path = onnx
        contenders["onnxruntime"] = OnnxContender(python, path, inputs, path.parent, 2)
    try:
        seconds = measure({name: each.run for name, each in contenders.items()}, rounds)
    finally:
        for each in contenders.values():
            each.close()
    plain = contenders["xla"].output
    found = {
        name: {
            "median_s": median(taken),
            "least_s": min(taken),
            "difference": float(abs(contenders[name].output - plain).max() / abs(plain).max()),
        }
        for name, taken in seconds.items()
    }
    ratios = {
        f"{measured} to {other}": {
            key: round(found[measured][key] / found[other][key], 3)
            for key in ("median_s", "least_s")
        }
        for measured in ("xla", "hloserve")
        for other in ("xla", "onnxruntime")
        if other in found and measured != other
    }
    return {"contenders": found, "ratios": ratios}


def _print(name: str, size: int, result: Mapping[str, Any]) -> None:
    times = "  ".join(
        f"{contender} {found['median_s'] * 1e3:.1f} ({found['least_s'] * 1e3:.1f})"
        for contender, found in result["contenders"].items()
    )
    ratios = "  ".join(
        f"{pair} {ratio['median_s']:.2f} ({ratio['least_s']:.2f})"
        for pair, ratio in result["ratios"].items()
    )
    print(f"{name}, batch {size}: ms {times}; ratio {ratios}", flush=True)


def main() -> None:
    """Parse the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--onnxruntime", metavar="PYTHON", help="interpreter that has it, and onnx")
    parser.add_argument("--models", nargs="+", choices=list(_MODELS), default=list(_MODELS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32], metavar="ROWS")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path(".benchmarks/programs.json"))
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # two threads for each
    if options.onnxruntime:
        lines = "import site, onnx, onnxruntime; print(site.getsitepackages()[0])"
        asked = [options.onnxruntime, "-c", lines]
        sys.path.append(subprocess.check_output(asked, text=True).strip())
    else:
        print("onnxruntime is not measured: --onnxruntime PYTHON names an interpreter that has it")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        for name in options.models:
            path = directory / f"{name}.onnx" if options.onnxruntime else None
            inputs = _MODELS[name](directory, options.sizes, path)
            onnx = None if path is None else (options.onnxruntime, path)
            for size in options.sizes:
                arrays = {key: make(size) for key, make in inputs.items()}
                result = _measure_size(directory / name, size, arrays, onnx, options.rounds)
                results[f"{name}, batch {size}"] = result
                _print(name, size, result)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
