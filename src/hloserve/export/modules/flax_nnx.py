"""Modules of Flax's NNX: their weights, their call, and what must not be served.

What lives here: `NnxModule`. What does not: `export_flax` (`hloserve.export.modules.flax_source`).

Rules.
1. The module is a copy in evaluation mode; the author's stays as it is.
2. Every variable is a weight, of whichever type, but random state. What is shared is one weight.
3. A variable that the call changes is refused: a server keeps nothing between requests.

One thread.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np
from flax import nnx
from typing_extensions import override

from hloserve.export.modules.layers import Layer, Method, bound, inference_hint
from hloserve.export.modules.module_source import JaxModule
from hloserve.export.modules.trees import WeightTree, dotted

__all__ = ["NnxModule"]


class NnxModule(JaxModule):
    """An NNX module in evaluation mode.

    Args:
        module: the author's.
        method: see `export_flax`.
        keywords: constant keyword arguments of the call.
    """

    framework = "flax"

    def __init__(self, module: Any, method: Method, keywords: Mapping[str, Any]) -> None:
        self.provenance = {"flax_version": metadata.version("flax"), "flax_api": "nnx"}
        self._method, self.keywords = method, keywords
        self._module = nnx.clone(module)
        self._module.eval()
        self._graph, state = nnx.split(self._module)
        entries = nnx.to_flat_state(state)
        self._paths = [path for path, _ in entries]
        self._variables = [variable for _, variable in entries]
        found, self._tree = jax.tree_util.tree_flatten_with_path(self._variables)
        names = [self._name(path) for path, _ in found]
        self._indices = {name: path[0].idx for name, (path, _) in zip(names, found, strict=True)}
        random = {
            name
            for name, index in self._indices.items()
            if isinstance(self._variables[index], nnx.RngState)
        }
        self._kinds = {path: type(node) for path, node in nnx.iter_modules(self._module)}
        self._changed: list[int] = []
        leaves = [leaf for _, leaf in found]
        self.weights = WeightTree(list(zip(names, leaves, strict=True)), random)

    @property
    @override
    def called(self) -> Callable[..., Any]:
        return bound(self._module, self._method)

    @override
    def call(self, inputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
        variables = jax.tree.unflatten(self._tree, leaves)
        state = nnx.from_flat_state(zip(self._paths, variables, strict=True))
        module = nnx.merge(self._graph, state)
        with self.locating(
            lambda: {id(node): self._layer(path) for path, node in nnx.iter_modules(module)}
        ):
            result = bound(module, self._method)(*inputs, **self.keywords)
        self._changed = self._changes(leaves, module, lambda old, new: old is new)
        return result

    @override
    def run(self, inputs: Sequence[Any]) -> Any:
        return bound(nnx.clone(self._module), self._method)(*inputs, **self.keywords)

    @override
    def explain(
        self, error: BaseException, layer: Layer | None, inputs: Sequence[Any]
    ) -> list[str]:
        return []

    @override
    def leftovers(self, inputs: Sequence[Any]) -> list[str]:
        """Variables that the call changes.

        A transformation inside of the module, such as `nnx.jit`, gives back every variable anew,
        so what the trace suspects is confirmed by running the module.
        """
        if not self._changed:
            return []
        module = nnx.clone(self._module)
        bound(module, self._method)(*inputs, **self.keywords)
        before = jax.tree.leaves(self._variables)
        changed = set(self._changed) & set(self._changes(before, module, np.array_equal))
        by_layer: dict[tuple[Any, ...], list[Any]] = {}
        for index in sorted(changed):
            by_layer.setdefault(self._paths[index][:-1], []).append(index)
        return [self._change(layer, indices) for layer, indices in by_layer.items()]

    @override
    def random_findings(self, names: Sequence[str]) -> list[str]:
        layers = {self._holder(name) for name in names}
        hint = inference_hint(self.called, "call it with deterministic=True, or drop it")
        return [
            f"{self._layer(layer)} draws random numbers although the module is in evaluation mode;"
            f" answers must follow from the inputs: {hint}"
            for layer in sorted(layers, key=str)
        ]

    def _holder(self, name: str) -> tuple[Any, ...]:
        """The layer that holds random state; its streams are no layers."""
        path = self._paths[self._indices[name]]
        while path not in self._kinds:
            path = path[:-1]
        return tuple(path)

    def _change(self, layer: tuple[Any, ...], indices: Sequence[int]) -> str:
        names = ", ".join(str(self._paths[index][-1]) for index in indices)
        kinds = {type(self._variables[index]) for index in indices}
        kind_names = ", ".join(sorted(kind.__name__ for kind in kinds))
        is_normalisation = kinds == {nnx.BatchStat}
        otherwise = "call it with use_running_average=True"
        hint = inference_hint(
            self.called, otherwise if is_normalisation else "make it an input and an output"
        )
        return (
            f"{self._layer(layer)} updates {names} ({kind_names}) while it runs,"
            " although the module is in evaluation mode, and a server keeps nothing between"
            f" requests: {hint}"
        )

    def _changes(
        self, before: Sequence[Any], module: Any, same: Callable[[Any, Any], bool]
    ) -> list[int]:
        """Indices of variables that are not as before; random state is looked at elsewhere."""
        after = dict(nnx.to_flat_state(nnx.state(module)))
        old = jax.tree.unflatten(self._tree, before)
        return [
            index
            for index, (path, variable) in enumerate(zip(self._paths, old, strict=True))
            if not isinstance(variable, nnx.RngState | nnx.Intermediate)
            and not all(map(same, jax.tree.leaves(variable), jax.tree.leaves(after[path])))
        ]

    def _layer(self, path: tuple[Any, ...]) -> Layer:
        return Layer(".".join(map(str, path)), self._kinds[path])

    def _name(self, path: Sequence[Any]) -> str:
        """Variables hold their arrays as `value`, which says nothing."""
        first, *rest = path
        inner = dotted(rest[1:] if isinstance(self._variables[first.idx], nnx.Variable) else rest)
        outer = ".".join(map(str, self._paths[first.idx]))
        return f"{outer}.{inner}" if inner else outer
