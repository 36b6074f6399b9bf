"""Calling a hook and checking what it returns, so that a bad hook fails its own request only.

What lives here: copies in, the call, and the check of what comes out. What does not: threads
(`hloserve.models.task_threads`) and the request path (`hloserve.server.inference`). Runs on hook
threads; functions of their arguments alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hloserve.core.dtypes import BYTES, by_numpy
from hloserve.core.errors import DeadlineExceeded, HookFailed, InvalidInput, SubCallFailed
from hloserve.core.strings import is_text, strings_from
from hloserve.core.tensors import Array, NamedTensor, Tensors, TensorSpec
from hloserve.hooks.registration import Hook
from hloserve.hooks.tensor_list import TensorList
from hloserve.models.hook_file import author_line

__all__ = ["call_hook", "check_rows", "check_tensors", "hook_tensors"]


def hook_tensors(names: Iterable[str], arrays: Iterable[Array]) -> TensorList:
    """Copy tensors for a hook: it may write into them, and keep them."""
    return TensorList(
        NamedTensor(name, array.copy(order="C")) for name, array in zip(names, arrays, strict=True)
    )


def call_hook(
    model: str,
    role: str,
    bundle: Path,
    hook: Hook,
    tensors: TensorList,
    passed: tuple[type[BaseException], ...] = (),
) -> object:
    """Call a hook.

    Args:
        model: its name, for messages.
        role: ``preprocess``, ``postprocess`` or ``run``.
        bundle: where the hook's files lie.
        hook: what the author registered.
        tensors: copies that the hook may keep.
        passed: what is raised on as it is, beside KeyboardInterrupt.

    Raises:
        InvalidInput: the hook refused the input. What the author derived of it comes as it itself,
            and says something: it is told to the caller.
        SubCallFailed, DeadlineExceeded: what it was given to call raised so.
        HookFailed: anything else it raised, with the author's line; the cause is chained.
    """
    ours = (SubCallFailed, DeadlineExceeded, KeyboardInterrupt)
    kept: tuple[type[BaseException], ...] = ours + passed
    try:
        return hook(tensors)
    except InvalidInput as error:
        text = _text(error)
        if type(error) is InvalidInput and text:
            raise
        raise InvalidInput(text or f"{role} refuses the input and does not say why") from error
    except kept:
        raise
    except BaseException as error:  # author's code may raise anything
        place = author_line(bundle.resolve(), error)
        at = f"{place}: " if place else ""
        raise HookFailed(model, role, f"{at}{type(error).__name__}: {_text(error)}") from error


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001  # that is author's code as well
        return f"(its text cannot be made: {type(second).__name__})"


def check_tensors(
    model: str, role: str, specs: Sequence[TensorSpec], result: object
) -> list[Array]:
    """Check what a hook returned, and put it in the order of the specs.

    Args:
        model: its name, for messages.
        role: ``preprocess``, ``postprocess`` or ``run``.
        specs: what the hook has to return.
        result: what it returned.

    Returns:
        One C-contiguous array of native byte order per spec.

    Raises:
        HookFailed: naming the tensor, what was expected and what came.
    """
    named = _by_name(model, role, result)
    missing = [spec.name for spec in specs if spec.name not in named]
    extra = [name for name in named if name not in {spec.name for spec in specs}]
    if missing or extra:
        raise HookFailed(
            model,
            role,
            f"it must return {_list(spec.name for spec in specs)}, it returned {_list(named)}"
            f"{_explain('missing', missing)}{_explain('not declared', extra)}",
        )
    return [_checked(model, role, spec, named[spec.name]) for spec in specs]


def _by_name(model: str, role: str, result: object) -> Tensors:
    if isinstance(result, Mapping):
        pairs = list(result.items())
    elif isinstance(result, (list, tuple)) and all(_is_pair(entry) for entry in result):
        pairs = [tuple(entry) for entry in result]
    else:
        raise HookFailed(
            model,
            role,
            f"it returned {_describe(result)}, expected a dict of arrays or a list of NamedTensor",
        )
    named: Tensors = {}
    for name, array in pairs:
        if not isinstance(name, str):
            raise HookFailed(model, role, f"it returned a tensor named {name!r}, not a string")
        if name in named:
            raise HookFailed(model, role, f"it returned tensor {name!r} twice")
        named[name] = _as_array(model, role, name, array)
    return named


def _is_pair(entry: object) -> bool:
    return isinstance(entry, tuple) and len(entry) == 2


def _as_array(model: str, role: str, name: str, value: object) -> Array:
    """Take arrays of other libraries, too; refuse what has no element type of its own."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        return np.asarray(value)
    raise HookFailed(model, role, f"tensor {name!r} is {_describe(value)}, expected a NumPy array")


def _checked(model: str, role: str, spec: TensorSpec, array: Array) -> Array:
    want = spec.dtype.numpy
    if spec.dtype is BYTES:
        array = _checked_strings(model, role, spec, array)
    elif array.dtype.newbyteorder("=") != want:
        raise _mismatch(
            model, role, spec, "dtype", want, array.dtype, f"; use .astype({_numpy_name(want)})"
        )
    if array.ndim != len(spec.shape):
        raise _mismatch(
            model, role, spec, "rank", f"{len(spec.shape)} ({spec})", f"{array.ndim} {array.shape}"
        )
    for number, (axis, extent) in enumerate(zip(spec.axes, array.shape, strict=True)):
        if axis.extent is not None and axis.extent != extent:
            what = f"extent of axis {number} ({axis.letter})"
            raise _mismatch(model, role, spec, what, axis.extent, f"{extent}, shape {array.shape}")
    return np.asarray(array, dtype=want, order="C")


def _checked_strings(model: str, role: str, spec: TensorSpec, array: Array) -> Array:
    if not is_text(array):
        hint = "; make an object array of bytes, or an array of text"
        raise _mismatch(model, role, spec, "dtype", "bytes or text", array.dtype, hint)
    try:
        return strings_from(array)
    except ValueError as error:
        raise HookFailed(model, role, f"tensor {spec.name!r}: {error}") from error


def check_rows(model: str, role: str, specs: Sequence[TensorSpec], arrays: Sequence[Array]) -> None:
    """Check that the prepared inputs of one request carry the same number of rows, perhaps none.

    Raises:
        HookFailed: two inputs disagree.
    """
    first: tuple[str, int] | None = None
    for spec, array in zip(specs, arrays, strict=True):
        if spec.batch_axis is None:
            continue
        rows = array.shape[spec.batch_axis]
        what = f"number of rows (axis {spec.batch_axis})"
        if first is not None and rows != first[1]:
            raise _mismatch(model, role, spec, what, f"{first[1]} as in {first[0]!r}", rows)
        first = first or (spec.name, rows)


def _mismatch(
    model: str,
    role: str,
    spec: TensorSpec,
    what: str,
    expected: object,
    got: object,
    hint: str = "",
) -> HookFailed:
    return HookFailed(
        model, role, f"tensor {spec.name!r}: {what} is {got}, expected {expected}{hint}"
    )


def _numpy_name(dtype: np.dtype[Any]) -> str:
    module = "np" if dtype.isbuiltin == 1 else "ml_dtypes"
    return f"{module}.{by_numpy(dtype).numpy.name}"


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def _explain(what: str, names: Sequence[str]) -> str:
    return f"; {what}: {_list(names)}" if names else ""


def _describe(value: object) -> str:
    if isinstance(value, (list, tuple)) and value:
        return f"a {type(value).__name__} of {type(value[0]).__name__}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
