"""Layers of modules in messages: which one failed, and how a module is told not to train.

What lives here: choosing what to call, finding the layer that an error came from, and the wording
that Flax and Equinox share. What does not: what each library counts as training
(`hloserve.export.modules.flax_linen`, `hloserve.export.modules.flax_nnx`,
`hloserve.export.modules.equinox_module`). Pure; any thread.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from typing_extensions import override

from hloserve.core.errors import ExportProblem

__all__ = [
    "Layer",
    "Method",
    "argument_problem",
    "bound",
    "check_method",
    "inference_hint",
    "layer_of",
]

Method: TypeAlias = str | Callable[..., Any] | None
"""What to call of a module: itself, a method by its name, or a function that takes the module."""

_INFERENCE_FLAGS: Mapping[str, bool] = {
    "deterministic": True,
    "eval": True,
    "inference": True,
    "is_train": False,
    "is_training": False,
    "train": False,
    "training": False,
    "use_running_average": True,
}
"""Arguments by which modules are commonly told that they do not train."""


def bound(module: Any, method: Method) -> Callable[..., Any]:
    """What to call with the inputs."""
    if method is None:
        return module  # type: ignore[no-any-return]  # modules are callable
    if isinstance(method, str):
        return getattr(module, method)  # type: ignore[no-any-return]
    return partial(method, module)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a module; its text is how messages name it.

    Attributes:
        path: in the module, dotted; empty for the module itself.
        kind: its class.
    """

    path: str
    kind: type

    @override
    def __str__(self) -> str:
        kind = self.kind.__name__
        return f"layer {self.path!r} ({kind})" if self.path else f"the module ({kind})"


def layer_of(error: BaseException, layers: Mapping[int, Layer]) -> Layer | None:
    """The innermost layer whose method raised, or was calling what raised.

    Args:
        error: with its traceback.
        layers: by identity.
    """
    found, trace = None, error.__traceback__
    while trace is not None:
        caller = trace.tb_frame.f_locals.get("self")
        found = layers.get(id(caller), found)
        trace = trace.tb_next
    return found


def inference_hint(function: Callable[..., Any], otherwise: str) -> str:
    """What to pass so that `function` does not train.

    Args:
        function: what is called.
        otherwise: what to do when it has no such argument.
    """
    flags = {
        name: _INFERENCE_FLAGS[name]
        for name in inspect.signature(function).parameters
        if name in _INFERENCE_FLAGS
    }
    return f"pass call_kwargs={flags}" if flags else otherwise


def check_method(module: Any, method: Method, model: str) -> None:
    """Refuse what cannot be called.

    Raises:
        ExportProblem: the module has no such method.
    """
    name = "__call__" if method is None else method
    if isinstance(name, str) and not callable(getattr(module, name, None)):
        raise ExportProblem(model, f"method: {type(module).__name__} has no method {name!r}")


def argument_problem(
    function: Callable[..., Any], inputs: int, keywords: Mapping[str, Any]
) -> str | None:
    """What is wrong with calling `function` with so many inputs and these keywords.

    Args:
        function: what will be called.
        inputs: how many positional arguments it gets.
        keywords: its keyword arguments.
    """
    try:
        inspect.signature(function).bind(*[None] * inputs, **keywords)
    except TypeError as error:
        otherwise = "give one example input per array, and the constant arguments as call_kwargs"
        given = f"{inputs} inputs" + (f" and call_kwargs {sorted(keywords)}" if keywords else "")
        return f"the module cannot be called with {given}: {error}; " + inference_hint(
            function, otherwise
        )
    return None
