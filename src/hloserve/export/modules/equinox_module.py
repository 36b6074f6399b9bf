"""Equinox modules in inference mode: weights, call, and what must not be served.

What lives here: `EquinoxModule`. What does not: the function
(`hloserve.export.modules.equinox_source`).

Rules.
1. The module is a copy in inference mode; the author's stays as it is.
2. Every array of the module and of its state is a weight; what is static stays in the program.
3. A module that takes one example is mapped over the batch axes of the inputs; a state, which is
   the same for all, is not.
4. A state that the call changes is refused: a server keeps nothing between requests.

One thread.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import equinox
import jax
import numpy as np
from typing_extensions import override

from hloserve.export.modules.layers import Layer, Method, bound
from hloserve.export.modules.module_source import JaxModule
from hloserve.export.modules.trees import WeightTree, dotted, named_leaves

__all__ = ["EquinoxModule"]


class EquinoxModule(JaxModule):
    """An Equinox module in inference mode, with its state if it has one.

    Args:
        module: the author's.
        state: what `eqx.nn.make_with_state` returned beside it, or None.
        method: see `export_equinox`.
        keywords: constant keyword arguments of the call.
        is_mapped: the module takes one example; the inputs have a batch axis.
        batch_axes: of the inputs; None for axis 0 of all.

    Attributes:
        lacks_state: the module must be given a state, and there is none.
    """

    framework = "equinox"

    def __init__(
        self,
        module: Any,
        state: Any,
        method: Method,
        keywords: Mapping[str, Any],
        *,
        is_mapped: bool,
        batch_axes: Sequence[int | None] | None = None,
    ) -> None:
        self.provenance = {"equinox_version": metadata.version("equinox")}
        self._module = equinox.nn.inference_mode(module)
        self._state, self._method = state, method
        self._is_mapped, self._batch_axes = is_mapped, batch_axes
        parameters = inspect.signature(self.called).parameters
        self.keywords = dict(keywords)
        if _must_be_given("key", parameters):
            self.keywords.setdefault("key", None)
        self._names_state = "state" in parameters
        self.lacks_state = state is None and _must_be_given("state", parameters)
        if state is not None and self._names_state:
            self.keywords["state"] = state
        self.trailing = int(state is not None and not self._names_state)
        if is_mapped:
            self.hint = "the module gets one example at a time, without the batch axes"
        self._tree = jax.tree.structure((self._module, state))
        self._changed: list[str] = []
        self._state_leaves = _named_state(self._module, state)
        self.weights = WeightTree([*named_leaves(self._module), *self._state_leaves])

    @property
    @override
    def called(self) -> Callable[..., Any]:
        return bound(self._module, self._method)

    @override
    def call(self, inputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
        module, state = jax.tree.unflatten(self._tree, leaves)
        with self.locating(lambda: _layers(module)):
            return self._apply(module, state, inputs)

    @override
    def run(self, inputs: Sequence[Any]) -> Any:
        return self._apply(self._module, self._state, inputs)

    @override
    def explain(
        self, error: BaseException, layer: Layer | None, inputs: Sequence[Any]
    ) -> list[str]:
        if layer is None:
            return []
        if issubclass(layer.kind, equinox.nn.Dropout) and isinstance(error, RuntimeError):
            return [
                f"{layer} draws random numbers, as in training, although the module is in inference"
                " mode; answers must follow from the inputs: do not call it with inference=False"
            ]
        if issubclass(layer.kind, equinox.nn.BatchNorm) and isinstance(error, NameError):
            return [
                f"{layer} normalises by the batch, as in training, although the module is in"
                " inference mode: do not call it with inference=False"
            ]
        return []

    @override
    def leftovers(self, inputs: Sequence[Any]) -> list[str]:
        """State that the call changes.

        A transformation inside of the module, such as `eqx.filter_jit`, gives back the state anew,
        so what the trace suspects is confirmed by running the module on one example.
        """
        if not self._changed:
            return []
        if self._is_mapped:
            inputs = jax.tree.map(
                lambda axis, array: array if axis is None else np.take(array, 0, axis),
                self._axes(inputs),
                tuple(inputs),
                is_leaf=lambda axis: axis is None,
            )
        before = _copied(self._state)
        _, after = self._once(self._module, _copied(self._state), inputs)
        return [
            f"state {name!r} is updated by the call although the module is in inference mode, and a"
            " server keeps nothing between requests; make it an input and an output"
            for name in self._differences(before, after, np.array_equal)
        ]

    def _apply(self, module: Any, state: Any, inputs: Sequence[Any]) -> Any:
        """Call the module, mapped over the batch if it takes one example."""

        def once(*inputs: Any) -> Any:
            result, after = self._once(module, _copied(state), inputs)
            self._changed = self._differences(state, after, lambda old, new: old is new)
            return result

        if not self._is_mapped:
            return once(*inputs)
        return jax.vmap(once, in_axes=self._axes(inputs))(*inputs)

    def _axes(self, inputs: Sequence[Any]) -> Any:
        """The batch axes, in the structure of the inputs."""
        leaves, tree = jax.tree.flatten(tuple(inputs))
        axes = (0,) * len(leaves) if self._batch_axes is None else self._batch_axes
        return jax.tree.unflatten(tree, axes)

    def _once(self, module: Any, state: Any, inputs: Sequence[Any]) -> tuple[Any, Any]:
        """Result and state after one call; the state is None when the call gives none."""
        keywords = {**self.keywords}
        if "state" in keywords and self._state is not None:
            keywords["state"] = state
        result = bound(module, self._method)(*inputs, *[state] * self.trailing, **keywords)
        if isinstance(result, tuple) and result and isinstance(result[-1], equinox.nn.State):
            *rest, after = result
            return (rest[0] if len(rest) == 1 else tuple(rest)), after
        return result, None

    def _differences(self, before: Any, after: Any, same: Callable[[Any, Any], bool]) -> list[str]:
        if after is None:
            return []
        names = (name for name, _ in self._state_leaves)
        pairs = zip(names, jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
        return [name for name, old, new in pairs if not same(old, new)]


def _must_be_given(name: str, parameters: Mapping[str, inspect.Parameter]) -> bool:
    return name in parameters and parameters[name].default is inspect.Parameter.empty


def _copied(state: Any) -> Any:
    """Another state of the same arrays: setting a value makes a state unusable."""
    return jax.tree.map(lambda leaf: leaf, state)


def _named_state(module: Any, state: Any) -> list[tuple[str, Any]]:
    """Leaves of the state, each named for the place in the module that asks for it."""
    names: dict[int, str] = {}
    for path, index in jax.tree_util.tree_flatten_with_path(module, is_leaf=_is_index)[0]:
        if state is not None and _is_index(index):
            values = jax.tree_util.tree_flatten_with_path(state.get(index))[0]
            names.update((id(leaf), dotted((*path, *inner))) for inner, leaf in values)
    leaves = jax.tree.leaves(state)
    return [
        (names.get(id(leaf), f"state.{position}"), leaf) for position, leaf in enumerate(leaves)
    ]


def _is_index(node: Any) -> bool:
    return isinstance(node, equinox.nn.StateIndex)


def _layers(module: Any) -> dict[int, Layer]:
    """The modules in a module, by identity."""
    found: dict[int, Layer] = {}

    def visit(node: Any, path: tuple[Any, ...]) -> None:
        found.setdefault(id(node), Layer(dotted(path), type(node)))
        inner = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda part: part is not node and isinstance(part, equinox.Module)
        )[0]
        for step, part in inner:
            if isinstance(part, equinox.Module):
                visit(part, (*path, *step))

    visit(module, ())
    return found
