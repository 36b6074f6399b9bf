"""Models of JAX libraries as flat lists of leaves, by name.

What lives here: `WeightTree`, which tells weights from what else a model holds and puts arguments
in their places, and the names of places. What does not: what a model is
(`hloserve.export.modules.flax_source`, `hloserve.export.modules.equinox_source`), and tied weights
(`hloserve.export.jax.source`).

One thread.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

__all__ = ["WeightTree", "dotted", "named_leaves"]


class WeightTree:
    """The leaves of a model, in order: weights, random state, and what is neither.

    Random state, and leaves that are no arrays, stay constants of the program.

    Args:
        leaves: with their names.
        random: names of random state, besides typed random keys.

    Attributes:
        named: the weights by name.
    """

    def __init__(
        self, leaves: Sequence[tuple[str, Any]], random: Collection[str] = frozenset()
    ) -> None:
        self._leaves = [leaf for _, leaf in leaves]
        self._random = {
            index: name
            for index, (name, leaf) in enumerate(leaves)
            if name in random or _is_key(leaf)
        }
        self._places = [
            index
            for index, leaf in enumerate(self._leaves)
            if index not in self._random and _is_array(leaf)
        ]
        self.named: tuple[tuple[str, Any], ...] = tuple(leaves[index] for index in self._places)

    def leaves(self, weights: Sequence[Any]) -> list[Any]:
        """The model's leaves, with these in the places of its weights."""
        leaves = [*self._leaves]
        for index, weight in zip(self._places, weights, strict=True):
            leaves[index] = weight
        return leaves

    def used_random_state(self, function: Callable[[Sequence[Any]], Any]) -> tuple[str, ...]:
        """Names of the random state that results depend on.

        Args:
            function: from the leaves of the model to its results.
        """
        if not self._random:
            return ()

        def results(state: Sequence[Any], weights: Sequence[Any]) -> Any:
            leaves = self.leaves(weights)
            for index, value in zip(self._random, state, strict=True):
                leaves[index] = value
            return jax.tree.leaves(function(leaves))

        state = [self._leaves[index] for index in self._random]
        jaxpr = jax.make_jaxpr(results)(state, [array for _, array in self.named]).jaxpr
        live = _live_variables(jaxpr)
        variables = jaxpr.invars[: len(state)]
        return tuple(
            name
            for name, variable in zip(self._random.values(), variables, strict=True)
            if variable in live
        )


def dotted(path: Sequence[Any]) -> str:
    """The name of a place in a tree: ``params.Conv_0.kernel``."""
    return str(jax.tree_util.keystr(tuple(path), simple=True, separator="."))


def named_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
    """The leaves of a tree by unique names.

    Keys that hold dots can make two names equal; these are then written as Python would index the
    tree: ``['a.b']['c']``.
    """
    found = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
    times = Counter(dotted(path) for path, _ in found)
    return [
        (dotted(path) if times[dotted(path)] == 1 else str(jax.tree_util.keystr(path)), leaf)
        for path, leaf in found
    ]


def _is_key(leaf: Any) -> bool:
    """Whether it is a typed random key (`jax.random.key`); the old, untyped ones are numbers."""
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_array(leaf: Any) -> bool:
    """Whether it holds numbers: an array of JAX, or one of NumPy that JAX would take."""
    if isinstance(leaf, np.ndarray):
        return bool(jax.dtypes.issubdtype(leaf.dtype, np.number)) or leaf.dtype == np.bool_
    return isinstance(leaf, jax.Array) and not _is_key(leaf)


def _live_variables(jaxpr: Any) -> set[Any]:
    """Variables that the results, or an effect, depend on."""
    live = {atom for atom in jaxpr.outvars if not hasattr(atom, "val")}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not live.isdisjoint(equation.outvars):
            live.update(atom for atom in equation.invars if not hasattr(atom, "val"))
    return live
