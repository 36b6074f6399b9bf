"""Look into a TorchScript file: what it takes, what is in it, whether it runs and can be exported.

What lives here: the summary that `hloserve inspect-torchscript` prints, as JSON values. What does
not: the graph's figures and traps (`hloserve.export.torchscript.inspection`). Nothing is written.
One thread.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hloserve.core.dtypes import BYTES, DType, by_kserve, by_token
from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.export.lists.error_text import short_error
from hloserve.export.lists.triton_config import TritonConfig, TritonConfigFault, parse_config
from hloserve.export.source import Shape, SymbolicTraceFailed
from hloserve.export.torch.arrays import array_of, tensor_of, torch
from hloserve.export.torch.results import named_tensors
from hloserve.export.torchscript.graph import make_traceable
from hloserve.export.torchscript.inspection import count_operators, find_traps, module_tree
from hloserve.export.torchscript.loading import load_script
from hloserve.export.torchscript.source import TorchScriptSource

__all__ = ["InputDeclaration", "inspect_torchscript", "parse_input"]

InputDeclaration = tuple[str, DType, tuple[int, ...]]
"""Name, element type and shape in numpy order; -1 is an extent that is open."""

Summary = dict[str, Any]
_SEED = 0
_LARGEST_INTEGER = 8
"""Small, since integers are mostly indices."""


def parse_input(text: str) -> InputDeclaration:
    """Read ``f32:1,3,512,512``, ``x=i64:1,-1`` or ``1,3,512,512``.

    Raises:
        ValueError: it is none of these; the message says what is expected.
    """
    name, _, rest = text.rpartition("=")
    token, _, extents = rest.rpartition(":")
    try:
        dtype = by_token(token or "f32") if token == token.lower() else by_kserve(token)
        if dtype is BYTES:
            raise KeyError(token)
        shape = tuple(int(extent) for extent in extents.split(",") if extent.strip())
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is no input; expected like f32:1,3,512,512") from None
    return name, dtype, shape


def inspect_torchscript(
    path: Path,
    *,
    size: int = 512,
    export: bool = True,
    inputs: Sequence[InputDeclaration] = (),
) -> Summary:
    """Say everything about a file.

    Args:
        path: the file, or the directory of a Triton model that holds it.
        size: extent of axes that are open.
        export: try to trace it.
        inputs: what to run it on, when no ``config.pbtxt`` lies beside it or to override that.

    Returns:
        JSON values, but for ``code``, the scripted source. ``problems`` holds what is wrong.

    Raises:
        ExportProblem: the file cannot be loaded.
    """
    file = _model_file(path)
    config, problems = _read_config(file)
    module = load_script(file, model="")
    declared = list(inputs) or _config_inputs(config)
    summary: Summary = {
        "file": str(file),
        "signature": str(module.forward.schema).split(" self, ")[-1],
        "inputs": [_describe_input(each) for each in declared],
        "modules": [asdict(line) for line in module_tree(module)],
        "operators": [asdict(count) for count in count_operators(module)],
        "code": _source_of(module),
        "problems": [*problems, *find_traps(module)],
        "forward": None,
        "export": None,
    }
    make_traceable(module)
    if not declared:
        return summary
    examples = [_example(dtype, shape, size) for _, dtype, shape in declared]
    summary["forward"] = _run_forward(module, examples)
    if export:
        is_batched = config is not None and config.max_batch_size > 0
        summary["export"] = _probe(module, examples, is_batched=is_batched)
    return summary


def _model_file(path: Path) -> Path:
    versions = sorted(path.glob("*/model.pt")) if path.is_dir() else []
    return versions[0] if versions else path


def _read_config(file: Path) -> tuple[TritonConfig | None, list[str]]:
    config = file.parent.parent / "config.pbtxt"
    if not (file.parent.name.isdecimal() and config.is_file()):
        return None, []
    try:
        return parse_config(config.read_text(encoding="utf-8")), []
    except (TritonConfigFault, OSError, UnicodeDecodeError) as fault:
        return None, [f"{config}: {fault}"]


def _config_inputs(config: TritonConfig | None) -> list[InputDeclaration]:
    if config is None:
        return []
    batch = (1,) if config.max_batch_size > 0 else ()
    return [(each.name, each.dtype, batch + each.dims) for each in config.inputs]


def _describe_input(declared: InputDeclaration) -> Summary:
    name, dtype, shape = declared
    return {"name": name, "dtype": dtype.token, "shape": list(shape)}


def _example(dtype: DType, shape: tuple[int, ...], size: int) -> Array:
    extents = [size if extent < 0 else extent for extent in shape]
    random = np.random.default_rng(_SEED)
    if dtype.numpy.kind in "iub":
        highest = 2 if dtype.token == "bool" else _LARGEST_INTEGER
        return random.integers(0, highest, extents).astype(dtype.numpy)
    return random.random(extents).astype(dtype.numpy)


def _source_of(module: Any) -> str:
    """The scripted source of all methods, each module's once per type."""
    parts: dict[str, str] = {}
    for path, part in module.named_modules():
        kind = str(part._c._type())
        if kind not in parts and part._c._method_names():
            parts[kind] = f"# {path or 'the model'}: {kind}\n{part._c.code}"
    return "\n".join(parts.values())


def _run_forward(module: Any, examples: Sequence[Array]) -> Summary:
    started = time.perf_counter()
    try:
        with torch.jit.optimized_execution(False), torch.no_grad():
            results = named_tensors(module(*map(tensor_of, examples)))
    except Exception as error:  # noqa: BLE001  # the model's own code; it is told, not lost
        return {"error": _last_line(error)}
    outputs = [
        {"name": name, "dtype": array_of(tensor).dtype.name, "shape": list(tensor.shape)}
        for name, tensor in results
    ]
    return {"outputs": outputs, "seconds": round(time.perf_counter() - started, 3)}


def _last_line(error: Exception) -> str:
    """TorchScript tells the reason last, after its traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _probe(module: Any, examples: Sequence[Array], *, is_batched: bool) -> Summary:
    """Trace it, with an open batch axis first where it has one; the first failure is explained."""
    try:
        source = TorchScriptSource(module, examples, {}, {"dir": "probe"}, provenance={})
        if is_batched:
            shapes: list[Shape] = [("batch", *array.shape[1:]) for array in examples]
            try:
                return _traced(source, shapes, "with an open batch axis")
            except SymbolicTraceFailed as failed:
                found = _traced(source, [array.shape for array in examples], "per size")
                return found | {"reason": str(failed)}
        return _traced(source, [array.shape for array in examples], "at this size")
    except ExportProblem as problem:
        return {"works": False, "problems": list(problem.findings)}
    except Exception as error:  # noqa: BLE001  # a probe reports what would have been a traceback
        return {"works": False, "problems": [short_error(error)]}


def _traced(source: TorchScriptSource, shapes: Sequence[Shape], how: str) -> Summary:
    traced = source.trace(shapes)
    return {
        "works": True,
        "how": how,
        "weights": len(traced.weights),
        "outputs": list(traced.output_names),
        "notes": list(traced.notes),
    }
