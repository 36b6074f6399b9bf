"""TorchScript, from a file or a ScriptModule, as a source of bundles.

What lives here: `export_torchscript`, and the two ways from a script to an exported program. What
does not: all that comes after it, which is PyTorch's (`hloserve.export.torch.source`), and the
graphs of scripts (`hloserve.export.torchscript.graph`).

A script is traced by running it on tensors without values: what it computes is exactly what the
interpreter runs, and its weights keep their names. Where that cannot be, because the script
branches on values or computes with an open extent, torch's own converter is tried.

One thread.
"""

import contextlib
import hashlib
import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Unpack, override

from hloserve.core.errors import ExportProblem
from hloserve.export.options import ExportOptions
from hloserve.export.report import ExportReport
from hloserve.export.source import Shape, SymbolicTraceFailed
from hloserve.export.torch.arrays import torch
from hloserve.export.torch.source import TorchSource, as_arguments, export_torch_source
from hloserve.export.torch.traps import check_module
from hloserve.export.torchscript.graph import make_traceable, scripted_parts
from hloserve.export.torchscript.inspection import find_traps
from hloserve.export.torchscript.loading import ScriptOrPath, load_script, quiet

__all__ = ["TorchScriptSource", "export_torchscript", "explain_script_failure"]

Wrap = Callable[[Any], Any]
"""From the ScriptModule to a module that calls it, or a part of it."""

_DATA_DEPENDENT = ("data-dependent", "Cannot access data pointer", "prim::Loop")
_ORIGINAL_LINE = re.compile(r'File "([^"]+)", line (\d+)')


def export_torchscript(
    script: ScriptOrPath,
    example_inputs: Any,
    *,
    wrap: Wrap | None = None,
    map_location: Any = "cpu",
    **options: Unpack[ExportOptions],
) -> ExportReport:
    """Export TorchScript as a bundle.

    Args:
        script: the path of a file that torch.jit.save wrote, or a ScriptModule, which is left as it
            is. A file's TorchScript code is run, its pickles are not: see the docs on trust.
        example_inputs: the arguments of forward, as for `export_pytorch`. Numbers and text are
            fixed in the program; arguments with a default may be left out.
        wrap: given the ScriptModule in eval mode, returns the torch.nn.Module to export: one that
            calls a part of it, to cut off what depends on values, or makes state an input.
        map_location: as for torch.jit.load; programs are traced on the CPU.
        **options: see `ExportOptions`.

    Raises:
        ExportProblem: the file is none of TorchScript or damaged, or the script cannot or must not
            be exported; all findings.
        ProofFailed: the program does not compute what the script does.
        BundleProblem: the bundle cannot be written.
    """
    model = options.get("name") or Path(options.get("dir", "")).name
    module = load_module(script, model, wrap=wrap, map_location=map_location)
    args, kwargs = as_arguments(example_inputs, None)
    source = TorchScriptSource(module, args, kwargs, options, provenance=_provenance(script))
    return export_torch_source(source, options)


def load_module(
    script: ScriptOrPath, model: str, *, wrap: Wrap | None = None, map_location: Any = "cpu"
) -> Any:
    """Load, prepare and wrap a script: the module that is traced.

    Raises:
        ExportProblem: it cannot be loaded, or `wrap` fails or returns no module.
    """
    module = load_script(script, model, map_location=map_location)
    if wrap is None:
        make_traceable(module)
        return module
    make_traceable(module)
    own = {id(part) for part in scripted_parts(module)}
    wrapped = _wrapped(wrap, module, model)
    if all(id(part) in own for part in scripted_parts(wrapped)):
        return wrapped
    # It was scripted again. What that compiled needs the graphs as they were.
    with quiet():
        wrapped = _wrapped(wrap, load_script(script, model, map_location=map_location), model)
    return load_script(wrapped, model) if isinstance(wrapped, torch.jit.ScriptModule) else wrapped


def _wrapped(wrap: Wrap, module: Any, model: str) -> Any:
    try:
        with quiet():
            wrapped = wrap(module)
    except Exception as error:  # the author's code
        raise ExportProblem(model, f"wrap fails: {type(error).__name__}: {error}") from error
    if not isinstance(wrapped, torch.nn.Module):
        raise ExportProblem(
            model, f"wrap returned {type(wrapped).__name__}, expected a torch.nn.Module"
        )
    return wrapped if isinstance(wrapped, torch.jit.ScriptModule) else wrapped.eval()


def _provenance(script: ScriptOrPath) -> Mapping[str, object]:
    known: dict[str, object] = {"source_subframework": "torchscript"}
    if isinstance(script, str | os.PathLike):
        path = Path(script)
        known["torchscript_path"] = path.name  # not where it lay on the exporting machine
        with path.open("rb") as file:
            known["torchscript_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return known


class TorchScriptSource(TorchSource):
    """A module that is or holds TorchScript, with example inputs.

    Args:
        module: of `load_module`.
        args: positional arguments of its forward.
        kwargs: keyword arguments.
        options: those of the export.
        provenance: what is known of the file.

    Raises:
        ExportProblem: the module must not be exported, or fails on the example.
    """

    def __init__(
        self,
        module: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: ExportOptions,
        *,
        provenance: Mapping[str, object],
    ) -> None:
        self._module, self._arguments = module, (args, kwargs)
        with torch.jit.optimized_execution(False):
            super().__init__(module, args, kwargs, options)
        self.provenance = {**self.provenance, **provenance}

    @override
    def _check_module(self, module: Any) -> list[str]:
        wrong = check_module(module, scripted=True, has_batch=self._has_batch)
        return [*wrong, *find_traps(module)]

    @override
    def _export(self, shapes: Sequence[Shape], *, symbolic: bool) -> Any:
        try:
            # Optimising would record extents as numbers, which fixes the open ones.
            with torch.jit.optimized_execution(False):
                return super()._export(shapes, symbolic=symbolic)
        except (ExportProblem, SymbolicTraceFailed) as failed:
            reason = explain_script_failure(failed.__cause__) or _first_reason(failed)
            converted = self._convert(shapes) if self._can_convert() else None
            if converted is not None and _is_open(converted, shapes):
                return converted
            if symbolic and not _decides_by_values(failed.__cause__):
                raise SymbolicTraceFailed(reason) from failed
            raise ExportProblem(self._model, reason) from failed

    def _can_convert(self) -> bool:
        plain = isinstance(self._module, torch.jit.ScriptModule)
        return plain and not self._arguments[1] and self._options.get("output_select") is None

    def _convert(self, shapes: Sequence[Shape]) -> Any:
        """Try torch's own converter of TorchScript; None when it fails."""
        from torch._export.converter import TS2EPConverter

        args, _ = self._flat.arguments(self._examples_of(shapes))
        try:
            with _quiet_conversion(), torch.no_grad():
                return TS2EPConverter(self._module, tuple(args)).convert()
        except Exception:  # noqa: BLE001  # why the script cannot be run is the better message
            return None


def _first_reason(failed: Exception) -> str:
    return failed.findings[0] if isinstance(failed, ExportProblem) else str(failed)


def _is_open(exported: Any, shapes: Sequence[Shape]) -> bool:
    """Whether the extents that should be are open: the converter fixes some without a word."""
    kinds = torch.export.graph_signature
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if "val" in node.meta}
    tensors = [
        values[spec.arg.name]
        for spec in exported.graph_signature.input_specs
        if spec.kind is kinds.InputKind.USER_INPUT
        and not isinstance(spec.arg, kinds.ConstantArgument)
    ]
    return len(tensors) == len(shapes) and all(
        not isinstance(wanted, str) or isinstance(extent, torch.SymInt)
        for tensor, shape in zip(tensors, shapes, strict=True)
        for extent, wanted in zip(tensor.shape, shape, strict=True)
    )


def explain_script_failure(error: BaseException | None) -> str | None:
    """Say in one line why the interpreter failed and where; None when something else did."""
    text = str(error) if error is not None else ""
    if "TorchScript interpreter" not in text and "Traceback of TorchScript" not in text:
        return None
    original = text.partition("original code")[2] or text
    lines = _ORIGINAL_LINE.findall(original.partition("RuntimeError")[0])
    at = f" at {os.path.basename(lines[-1][0])} line {lines[-1][1]}" if lines else ""
    if _decides_by_values(error):
        return (
            f"the script decides by a tensor's values{at}: a program has fixed control flow and"
            " shapes; with wrap, call the part before it and leave the rest to a postprocess hook"
        )
    message = re.findall(r"^(?:\w+Error|\w*Exception): (.+)$", text, re.MULTILINE)
    return (
        f"the script fails when it is traced{at}: {message[-1] if message else 'no reason given'}"
    )


def _decides_by_values(error: BaseException | None) -> bool:
    return error is not None and any(part in str(error) for part in _DATA_DEPENDENT)


@contextlib.contextmanager
def _quiet_conversion() -> Iterator[None]:
    """Without what the converter prints, warns of and logs: its failures are told in our words."""
    silenced = logging.root.manager.disable
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(silenced)
