"""Modules of Flax's linen with their variables: weights, call, and what must not be served.

What lives here: `LinenModule`. What does not: `export_flax`
(`hloserve.export.modules.flax_source`).

Rules.
1. Every variable of every collection is a weight, named by its path: ``params.Conv_0.kernel``.
2. All collections are immutable in the call, and there are no random streams: what a layer wants to
   update or to draw is refused, with all such layers named.

One thread.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
from flax import errors, linen
from typing_extensions import override

from hloserve.export.modules.layers import Layer, Method, bound, inference_hint
from hloserve.export.modules.module_source import JaxModule
from hloserve.export.modules.trees import WeightTree, dotted, named_leaves

__all__ = ["LinenModule"]


class LinenModule(JaxModule):
    """A linen module with its variables.

    Args:
        module: not bound.
        variables: by collection, as `init` returns them; partitioning metadata is dropped.
        method: see `export_flax`.
        keywords: constant keyword arguments of the call.
    """

    framework = "flax"

    def __init__(
        self, module: Any, variables: Any, method: Method, keywords: Mapping[str, Any]
    ) -> None:
        self.provenance = {"flax_version": metadata.version("flax"), "flax_api": "linen"}
        self.keywords = keywords
        self._module, self._method = module, method
        self._variables = linen.meta.unbox(variables)
        self._tree = jax.tree.structure(self._variables)
        self.weights = WeightTree(named_leaves(self._variables))

    @property
    @override
    def called(self) -> Callable[..., Any]:
        return bound(self._module, self._method)

    @override
    def call(self, inputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
        failed: list[Layer] = []

        def note_failure(call: Callable[..., Any], given: Any, keywords: Any, at: Any) -> Any:
            try:
                return call(*given, **keywords)
            except Exception:
                failed.append(
                    Layer(".".join(at.module.path), type(at.module))
                )  # the innermost layer is the first to hear
                raise

        try:
            with linen.intercept_methods(note_failure):
                return self._apply(jax.tree.unflatten(self._tree, leaves), inputs)
        except Exception as error:
            self.failed = error, next(iter(failed), None)
            raise

    @override
    def run(self, inputs: Sequence[Any]) -> Any:
        return self._apply(self._variables, inputs)

    @override
    def leftovers(self, inputs: Sequence[Any]) -> list[str]:
        return []

    @override
    def explain(
        self, error: BaseException, layer: Layer | None, inputs: Sequence[Any]
    ) -> list[str]:
        if isinstance(error, errors.ModifyScopeVariableError | errors.InvalidRngError):
            return self._training(inputs) or [_text(error)]
        if isinstance(error, errors.FlaxError):
            return [
                f"{_text(error)}; the variables must be those of this module, by collection, as"
                f" init returns them; these have the collections {sorted(self._variables)}"
            ]
        return []

    def _apply(self, variables: Any, inputs: Sequence[Any], **how: Any) -> Any:
        return self._module.apply(variables, *inputs, method=self._method, **how, **self.keywords)

    def _training(self, inputs: Sequence[Any]) -> list[str]:
        """Every layer that updates variables or draws random numbers, by allowing both once."""
        layers: dict[tuple[str, ...], Layer] = {}
        draws: list[Layer] = []
        updates: dict[tuple[str, ...], list[str]] = {}  # by collection, then layer

        def note(call: Callable[..., Any], given: Any, keywords: Any, at: Any) -> Any:
            path = tuple(at.module.path)
            layer = layers.setdefault(path, Layer(".".join(path), type(at.module)))
            before = _streams(at.module)
            result = call(*given, **keywords)
            if _streams(at.module) != before and layer not in draws:
                draws.append(layer)
            return result

        def apply(variables: Any, inputs: Sequence[Any]) -> None:
            _, after = self._apply(
                variables, inputs, mutable=True, rngs={"params": jax.random.key(0)}
            )
            for *place, name in _changes(variables, after):
                updates.setdefault(tuple(place), []).append(name)

        with linen.intercept_methods(note):
            jax.eval_shape(apply, self._variables, tuple(inputs))
        hint = inference_hint(
            self.called, "build the module with use_running_average=True and deterministic=True"
        )
        return [
            *(
                f"{layers.get((*path,), Layer('.'.join(path), linen.Module))} updates {collection}"
                f" {', '.join(names)} while it runs, as in training; a server keeps nothing"
                f" between requests: {hint}"
                for (collection, *path), names in updates.items()
            ),
            *(
                f"{layer} draws random numbers, as in"
                f" training; answers must follow from the inputs: {hint}"
                for layer in draws
            ),
        ]


def _streams(module: Any) -> dict[str, int]:
    """How often the layer itself has drawn, by stream; its sublayers count for themselves."""
    counters = {} if module.scope is None else module.scope.rng_counters
    return {name: count for name, count in counters.items() if isinstance(name, str)}


def _changes(before: Any, after: Any) -> list[tuple[str, ...]]:
    """Collection, layers and name of each variable that is another one after the call.

    Parameters are left out: no layer updates them, but a transformation such as `nn.scan` gives
    them back anew.
    """
    known = dict(jax.tree_util.tree_flatten_with_path(before)[0])
    changed = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(after)[0]:
        if path in known and leaf is not known[path] and path[0].key != "params":
            changed.append(tuple(dotted((entry,)) for entry in path))
    return changed


def _text(error: BaseException) -> str:
    """Without the address of its page."""
    return str(error).split(" (https://")[0].rstrip(".")
