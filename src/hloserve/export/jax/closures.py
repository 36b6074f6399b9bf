"""Finding the variable that an array came from, so that a message can name it.

What lives here: a bounded walk over what a function closes over, uses of its module, or is bound
to. What does not: finding the array in the program (`hloserve.export.jax.traps`). Pure; one thread.
"""

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hloserve.core.tensors import Array

__all__ = ["name_of_array"]

_MOST_VISITED = 20_000  # a large model is not searched to its end: the name is a courtesy
_MOST_STEPS = 8


def name_of_array(function: Callable[..., Any], wanted: Array) -> str | None:
    """Name the variable of `function` that holds an array.

    Args:
        function: its closure, its module's variables that it uses, its defaults, and the object
            that it is bound to are searched, and what these hold.
        wanted: the array; one of the same dtype, shape and values is taken for it.

    Returns:
        How a program would write it, such as ``params['w'] (used by predict)``; None when it is
        not found.
    """
    seen: set[int] = set()
    waiting: deque[tuple[str, str, Any, int]] = deque([("", "", function, 0)])
    for _ in range(_MOST_VISITED):
        if not waiting:
            return None
        path, user, value, steps = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if path and _is_equal(value, wanted):
            return f"{path!r} (used by {user})" if user else repr(path)
        if steps < _MOST_STEPS:
            for step, inner in _parts(value):
                by = getattr(value, "__qualname__", "") if callable(value) else user
                into = step if callable(value) and step.isidentifier() else f"{path}{step}"
                waiting.append((into, by or user, inner, steps + 1))
    return None


def _is_equal(value: Any, wanted: Array) -> bool:
    if getattr(value, "shape", None) != wanted.shape or not hasattr(value, "dtype"):
        return False
    try:
        return value.dtype == wanted.dtype and np.array_equal(np.asarray(value), wanted)
    except (TypeError, ValueError, RuntimeError):  # a tracer, or an array that was deleted
        return False


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, with the step that leads there."""
    if hasattr(value, "shape") or isinstance(value, str | bytes | types.ModuleType | type):
        return
    if isinstance(value, functools.partial):
        yield "", value.func
        yield from ((f"[{index}]", each) for index, each in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", each) for key, each in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", each) for index, each in enumerate(value))
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
        yield "", value.__func__
    elif isinstance(value, types.FunctionType):
        yield from _variables(value)
    elif hasattr(value, "__wrapped__"):
        yield "", value.__wrapped__
    elif hasattr(value, "__dict__"):
        yield from ((f".{name}", each) for name, each in list(vars(value).items()))
        yield "", type(value).__call__


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield from ((name, each) for name, each in (function.__kwdefaults__ or {}).items())
    yield from (
        (name, each)
        for name, each in zip(
            code.co_varnames[: code.co_argcount][::-1],
            (function.__defaults__ or ())[::-1],
            strict=False,
        )
    )
    if hasattr(function, "__wrapped__"):
        yield "", function.__wrapped__
