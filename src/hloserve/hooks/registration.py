"""What a bundle's `model.py` calls to hand its hooks over.

What lives here: `register_model`, `register_meta_model` and the context that collects the calls of
one hook file. What does not: running the file (`hloserve.models.hook_file`) and calling hooks
(`hloserve.models.hook_results`). A registration belongs to the context of the thread that runs the
file, so several bundles may be loaded at once.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hloserve.core.errors import HookProblem

__all__ = [
    "Hook",
    "MetaRegistration",
    "ModelRegistration",
    "Registrations",
    "collect_registrations",
    "is_async",
    "register_meta_model",
    "register_model",
]

Hook: TypeAlias = Callable[[Any], Any]
"""Takes `TensorList`, returns a mapping of names to arrays or a sequence of `NamedTensor`."""


@dataclass(frozen=True, slots=True)
class ModelRegistration:
    """One call of `register_model`."""

    name: str | None
    preprocess: Hook | None
    postprocess: Hook | None


@dataclass(frozen=True, slots=True)
class MetaRegistration:
    """One call of `register_meta_model`."""

    name: str | None
    run: Callable[..., Any]


@dataclass(slots=True)
class Registrations:
    """What one hook file registered, in the order of the calls."""

    models: list[ModelRegistration] = field(default_factory=list)
    metas: list[MetaRegistration] = field(default_factory=list)


_collecting: ContextVar[Registrations | None] = ContextVar("hloserve_registrations", default=None)


@contextmanager
def collect_registrations() -> Iterator[Registrations]:
    """Collect what is registered inside the block, on this thread."""
    registrations = Registrations()
    token = _collecting.set(registrations)
    try:
        yield registrations
    finally:
        _collecting.reset(token)


def register_model(
    name: str | None = None, *, preprocess: Hook | None = None, postprocess: Hook | None = None
) -> None:
    """Register the hooks of this bundle; call it once, at the top level of `model.py`.

    Args:
        name: for the reader; a model is called what its directory is called.
        preprocess: client inputs to executable inputs. It gets writable copies, as a list of
            `NamedTensor` that can also be asked by name, and returns a dict of arrays or a list of
            `NamedTensor`. None passes the inputs through.
        postprocess: executable outputs of one request to client outputs, likewise.

    Raises:
        HookProblem: no bundle is being loaded, a hook cannot be called, or it is ``async``.

    Threading: hooks of different requests run at the same time, on several threads.

    Example:
        def preprocess(inputs):
            return {"image": inputs["pixels"].astype(np.float32) / 255}


        register_model("digits", preprocess=preprocess)
    """
    for role, hook in (("preprocess", preprocess), ("postprocess", postprocess)):
        if hook is not None and not callable(hook):
            raise HookProblem("model.py", f"{role} is {_kind(hook)}, not a function")
        if is_async(hook):
            raise HookProblem(
                "model.py", f"{role} is async; make it a plain function, it has a thread to itself"
            )
    _current("register_model").models.append(ModelRegistration(name, preprocess, postprocess))


def register_meta_model(name: str | None = None, *, run: Callable[..., Any]) -> None:
    """Register the function of a meta model; call it once, at the top level of `model.py`.

    Args:
        name: for the reader; a model is called what its directory is called.
        run: takes the client inputs, as `preprocess` does, and `call`; returns the client outputs,
            likewise. ``call(name, inputs)`` gives the outputs of another model, which the manifest
            lists in ``meta.calls``; ``call.map(name, [inputs, ...])`` makes several calls at once.
            It may be ``async``; then calls are awaited.

    Raises:
        HookProblem: no bundle is being loaded, or `run` cannot be called.

    Threading: requests run at the same time, each on a thread of its own.

    Example:
        def run(inputs, call):
            features = call("backbone", {"image": inputs["image"]})
            return {"label": call("head", features)["label"]}


        register_meta_model(run=run)
    """
    if not callable(run):
        raise HookProblem("model.py", f"run is {_kind(run)}, not a function")
    _current("register_meta_model").metas.append(MetaRegistration(name, run))


def is_async(function: object) -> bool:
    """Whether calling it gives a coroutine: an ``async`` function or method, or an object whose
    ``__call__`` is one, also within `functools.partial`.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__ if callable(function) else None
    )


def _current(function: str) -> Registrations:
    registrations = _collecting.get()
    if registrations is None:
        raise HookProblem(
            "model.py",
            f"{function} was called while no bundle was being loaded; call it at the top level of a"
            " bundle's model.py, which the server runs when it loads the bundle",
        )
    return registrations


def _kind(value: object) -> str:
    return type(value).__name__
