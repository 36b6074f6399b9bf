"""Flax modules as a source of bundles: `export_flax`.

What lives here: the function, and telling Flax's two APIs apart. What does not: linen
(`hloserve.export.modules.flax_linen`), NNX (`hloserve.export.modules.flax_nnx`), and what modules
of all JAX libraries share (`hloserve.export.modules.module_source`).

Flax is the author's: it is imported when a module is exported, not before.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from hloserve.core.errors import ExportProblem
from hloserve.export.modules.layers import Method, check_method
from hloserve.export.modules.module_source import JaxModule, ModuleSource
from hloserve.export.options import ExportOptions
from hloserve.export.pipeline import export_source
from hloserve.export.report import ExportReport

__all__ = ["export_flax"]


def export_flax(
    module: Any,
    example_inputs: Any,
    *,
    method: Method = None,
    call_kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[ExportOptions],
) -> ExportReport:
    """Export a Flax module as a bundle.

    Args:
        module: a linen module with its variables, as ``(module, variables)`` or bound to them; or
            an NNX module, which is exported in evaluation mode and stays as it is.
        example_inputs: one per input: arrays or numbers. A mapping of names to inputs names them.
        method: what to call instead of ``__call__``: a method's name, or a function of the module
            and the inputs.
        call_kwargs: constant keyword arguments of the call, such as ``{"train": False}``.
        **options: see `ExportOptions`.

    Raises:
        ExportProblem: the module cannot be exported, or must not, as one in training mode.
        ProofFailed: the program does not compute what the module does.
        BundleProblem: the bundle cannot be written.
    """
    name = options.get("name") or Path(options.get("dir", "")).name
    opened = _open(module, method, dict(call_kwargs or {}), name)
    return export_source(ModuleSource(opened, example_inputs, options), options)


def _open(given: Any, method: Method, keywords: Mapping[str, Any], model: str) -> JaxModule:
    try:
        from flax import linen, nnx
    except ImportError as error:
        raise ExportProblem(
            model, f"exporting a Flax module needs Flax: pip install flax ({error})"
        ) from None
    from hloserve.export.modules.flax_linen import LinenModule
    from hloserve.export.modules.flax_nnx import NnxModule

    if isinstance(given, nnx.Module):
        check_method(given, method, model)
        return NnxModule(given, method, keywords)
    if isinstance(given, linen.Module) and given.scope is not None:
        given = given.unbind()
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], linen.Module):
        check_method(given[0], method, model)
        return LinenModule(given[0], given[1], method, keywords)
    got = type(given).__name__
    if isinstance(given, linen.Module):
        got += " without its variables; pass (module, variables)"
    raise ExportProblem(
        model,
        "export_flax takes (module, variables) with a linen module, or an nnx.Module; got " + got,
    )
