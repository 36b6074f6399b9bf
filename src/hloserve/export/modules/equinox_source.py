"""Equinox modules as a source of bundles: `export_equinox`.

What lives here: the function, and reading its arguments. What does not: the module
(`hloserve.export.modules.equinox_module`), and what modules of all JAX libraries share
(`hloserve.export.modules.module_source`).

Equinox is the author's: it is imported when a module is exported, not before.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from hloserve.core.errors import ExportProblem
from hloserve.export.modules.layers import Method, check_method
from hloserve.export.modules.module_source import ModuleSource
from hloserve.export.options import ExportOptions
from hloserve.export.pipeline import export_source
from hloserve.export.report import ExportReport

__all__ = ["export_equinox"]


def export_equinox(
    module: Any,
    example_inputs: Any,
    *,
    vmap: bool | None = None,
    method: Method = None,
    call_kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[ExportOptions],
) -> ExportReport:
    """Export an Equinox module as a bundle, in inference mode; the module stays as it is.

    Args:
        module: an `eqx.Module`, or ``(module, state)`` with an `eqx.nn.State`.
            The state goes to the argument named ``state``, or after the inputs.
        example_inputs: one per input: arrays or numbers. A mapping of names to inputs names them.
            With batch sizes they have a batch axis, whatever the module takes.
        vmap: call the module on one example at a time, along the batch axes; True by default
            when there are batch sizes. False for a module that takes batches itself.
        method: what to call instead of ``__call__``: a method's name, or a function of the module
            and the inputs.
        call_kwargs: constant keyword arguments of the call. A ``key`` that must be given is None.
        **options: see `ExportOptions`.

    Raises:
        ExportProblem: the module cannot be exported, or must not, as one that needs a random key.
        ProofFailed: the program does not compute what the module does.
        BundleProblem: the bundle cannot be written.
    """
    name = options.get("name") or Path(options.get("dir", "")).name
    try:
        import equinox
    except ImportError as error:
        raise ExportProblem(
            name, f"exporting an Equinox module needs Equinox: pip install equinox ({error})"
        ) from None
    from hloserve.export.modules.equinox_module import EquinoxModule

    state = None
    if isinstance(module, tuple | list) and len(module) == 2:
        module, state = module
        if not isinstance(state, equinox.nn.State):
            raise ExportProblem(
                name,
                "export_equinox takes a module, or (module, state) with an eqx.nn.State; the second"
                f" is {type(state).__name__}",
            )
    if not isinstance(module, equinox.Module):
        raise ExportProblem(
            name,
            f"export_equinox takes an eqx.Module, got {type(module).__name__}; the arrays that a"
            " plain function holds would be constants (instead of jax.vmap, pass vmap=True)",
        )
    check_method(module, method, name)
    opened = EquinoxModule(
        module,
        state,
        method,
        dict(call_kwargs or {}),
        is_mapped=options.get("batch_sizes") is not None if vmap is None else vmap,
        batch_axes=options.get("input_batch_axes"),
    )
    if opened.lacks_state:
        raise ExportProblem(
            name,
            "the module takes a state, as one with eqx.nn.BatchNorm does; pass (module, state), as"
            " eqx.nn.make_with_state returns them",
        )
    return export_source(ModuleSource(opened, example_inputs, options), options)
