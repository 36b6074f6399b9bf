"""Tracing by JAX, for every frontend: a function of arrays becomes an artifact.

What lives here: `trace_function`, and the settings of JAX under which a model is traced and run.
What does not: cleaning what comes out (`hloserve.export.artifact`) and what must not be in it
(`hloserve.export.jax.traps`).

Rules.
1. The arguments are the inputs, then the weights; unused ones stay.
2. All open extents are of one symbolic scope, so that the same name is the same extent.
3. JAX's settings are as before when a function here returns. One thread.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from hloserve.core.errors import ExportProblem
from hloserve.export.author_line import author_line, error_text, is_raised_by_author
from hloserve.export.jax.traps import check_traced, constant_notes, random_notes
from hloserve.export.options import MatmulPrecision
from hloserve.export.source import NamedArrays, Shape, SymbolicTraceFailed

__all__ = ["jax_settings", "needs_x64", "trace_function"]


def trace_function(  # noqa: PLR0913  # the keywords are what the frontends pass on
    function: Callable[..., Sequence[Any]],
    shapes: Sequence[Shape],
    input_dtypes: Sequence[np.dtype[Any]],
    weights: NamedArrays,
    *,
    model: str,
    precision: MatmulPrecision | None = None,
    compile_options: Mapping[str, object] | None = None,
    input_names: Sequence[str] = (),
    notes: list[str] | None = None,
) -> bytes:
    """Trace `function(*inputs, *weights)` and return the artifact as the tracer wrote it.

    Args:
        function: traceable by JAX; returns a sequence of arrays.
        shapes: of the inputs; text is an open extent.
        input_dtypes: of the inputs.
        weights: what follows the inputs.
        model: the bundle's name, for messages.
        precision: of float32 products; None for JAX's own.
        compile_options: checked options of JAX.
        input_names: for messages; numbered by default.
        notes: gets sentences for the report.

    Raises:
        SymbolicTraceFailed: `shapes` has open extents that `function` cannot be traced with.
        ExportProblem: the function cannot be traced, or holds what must not be in a bundle.
    """
    arrays = [array for _, array in weights]
    is_symbolic = any(isinstance(extent, str) for shape in shapes for extent in shape)
    with jax_settings(
        precision, compile_options, x64=needs_x64([*input_dtypes, *(a.dtype for a in arrays)])
    ):
        arguments = [
            *_input_types(shapes, input_dtypes),
            *(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays),
        ]
        jitted = jax.jit(lambda *given: tuple(function(*given)), keep_unused=True)
        try:
            traced = jitted.trace(*arguments)
            names = [name for name, _ in weights]
            check_traced(traced.jaxpr, function, len(shapes), names, model=model)
            # `hloserve.export.artifact` judges custom calls, and knows what they come from.
            every = export.DisabledSafetyCheck.custom_call("ALL")
            exported = export.export(jitted, platforms=["cpu"], disabled_checks=[every])(*arguments)
        except (ExportProblem, SymbolicTraceFailed):
            raise
        except Exception as error:  # a model's own code runs in here, so anything can be raised
            if is_symbolic:
                raise SymbolicTraceFailed(error_text(error) + author_line(error)) from error
            raise ExportProblem(model, _why_untraceable(error)) from error
    if notes is not None:
        names = [*input_names] or [f"input_{index}" for index in range(len(shapes))]
        notes += random_notes(traced.jaxpr, names)
        notes += constant_notes(traced.jaxpr, function)
    return bytes(exported.mlir_module_serialized)


def needs_x64(dtypes: Sequence[np.dtype[Any]]) -> bool:
    """True when one of these is of 64 bits, which JAX would otherwise narrow in silence."""
    return any(dtype.itemsize == 8 and dtype.kind in "iuf" for dtype in dtypes)


@contextlib.contextmanager
def jax_settings(
    precision: MatmulPrecision | None,
    compile_options: Mapping[str, object] | None,
    *,
    x64: bool,
) -> Iterator[None]:
    """Set JAX up as the options say, on the CPU; all is as before when the block ends.

    Args:
        precision: of float32 products; None leaves JAX's.
        compile_options: checked options of JAX.
        x64: keep 64-bit types, unless the options say otherwise.
    """
    wanted = {name.removeprefix("jax_"): value for name, value in (compile_options or {}).items()}
    x64 = bool(wanted.pop("enable_x64", x64 or jax.config.jax_enable_x64))
    before = {name: getattr(jax.config, f"jax_{name}") for name in wanted}
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # A function may be written to donate; here its arguments are used again.
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        stack.enter_context(jax.enable_x64(x64))
        stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        if precision is not None:
            stack.enter_context(jax.default_matmul_precision(precision))
        try:
            for name, value in wanted.items():
                jax.config.update(f"jax_{name}", value)
            yield
        finally:
            for name, value in before.items():
                jax.config.update(f"jax_{name}", value)


def _input_types(
    shapes: Sequence[Shape], dtypes: Sequence[np.dtype[Any]]
) -> list[jax.ShapeDtypeStruct]:
    names = sorted({extent for shape in shapes for extent in shape if isinstance(extent, str)})
    symbols = dict(zip(names, export.symbolic_shape(",".join(names)) if names else (), strict=True))
    return [
        jax.ShapeDtypeStruct(
            tuple(symbols[extent] if isinstance(extent, str) else extent for extent in shape), dtype
        )
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def _why_untraceable(error: BaseException) -> str:
    said, at = error_text(error), author_line(error)
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return (
            f"the model selects by a mask{at}, and how much that gives depends on values ({said});"
            " a program has fixed shapes: use jnp.where(mask, x, 0), or the argument size of"
            " jnp.nonzero, jnp.unique and the like"
        )
    if isinstance(
        error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError
    ):
        return (
            "the model decides in Python, or converts to NumPy, by values that are known only when"
            f" it runs ({said}){at}; use jax.numpy, jnp.where or jax.lax.cond"
        )
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return (
            "the model keeps a value of an earlier trace in a variable outside of it"
            f" ({said}){at}; return it instead"
        )
    if "requires a key" in said or "needs PRNG" in said:
        return (
            f"the model cannot be traced{at}: {said}; a layer that is made in the call is in"
            " training mode: make it where the module is made, or tell it to be deterministic"
        )
    if is_raised_by_author(error):
        return (
            f"the model cannot be traced: its own code fails{at}: {said}; call it on the example"
            " inputs to see the traceback"
        )
    return (
        f"the model cannot be traced{at}: {said}; call it on arrays of the shapes that are exported"
        " to see the traceback"
    )
