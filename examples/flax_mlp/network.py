"""A wine classifier in Flax's linen: the network, the data, and training it.

The network has what must be treated differently when it serves: dropout, batch normalisation, and
a collection that is neither parameters nor batch statistics.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen
from sklearn.datasets import load_wine

__all__ = ["MEASUREMENTS", "Wines", "WineClassifier", "accuracy", "load_split", "train"]

MEASUREMENTS = 13
_CULTIVARS = 3
_WIDTH = 32
_STEPS = 200
_SEED = 7


class WineClassifier(linen.Module):
    """From measurements (n, 13) to the logits of three cultivars (n, 3)."""

    @linen.compact
    def __call__(self, measurements: Any, train: bool = False) -> Any:
        mean = self.variable("scaling", "mean", jnp.zeros, (MEASUREMENTS,))
        deviation = self.variable("scaling", "deviation", jnp.ones, (MEASUREMENTS,))
        x = (measurements - mean.value) / deviation.value
        for _ in range(2):
            x = linen.Dense(_WIDTH)(x)
            x = linen.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            x = linen.Dropout(0.2, deterministic=not train)(linen.relu(x))
        return linen.Dense(_CULTIVARS)(x)


class Wines(NamedTuple):
    """Measurements (n, 13) float32 and cultivars (n,) int32."""

    measurements: Any
    cultivars: Any


def load_split() -> tuple[Wines, Wines]:
    """Scikit-learn's wines, shuffled: three quarters to train on, the rest held out."""
    data = load_wine()
    order = np.random.default_rng(_SEED).permutation(len(data.target))
    measurements = data.data[order].astype(np.float32)
    cultivars = data.target[order].astype(np.int32)
    cut = len(order) * 3 // 4
    return Wines(measurements[:cut], cultivars[:cut]), Wines(measurements[cut:], cultivars[cut:])


def train(wines: Wines) -> tuple[WineClassifier, Any]:
    """Train on all wines at once, by Adam; the module and its variables."""
    module = WineClassifier()
    key = jax.random.key(_SEED)
    variables = module.init(key, wines.measurements)
    scaling = {
        "mean": jnp.asarray(wines.measurements.mean(0)),
        "deviation": jnp.asarray(wines.measurements.std(0)),
    }
    optimiser = optax.adam(1e-2)

    def loss(params: Any, statistics: Any, step: Any) -> Any:
        logits, updates = module.apply(
            {"params": params, "batch_stats": statistics, "scaling": scaling},
            wines.measurements,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.fold_in(key, step)},
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, wines.cultivars)
        return losses.mean(), updates["batch_stats"]

    def update(carry: Any, step: Any) -> tuple[Any, None]:
        params, statistics, state = carry
        slopes, statistics = jax.grad(loss, has_aux=True)(params, statistics, step)
        changes, state = optimiser.update(slopes, state)
        return (optax.apply_updates(params, changes), statistics, state), None

    start = (variables["params"], variables["batch_stats"], optimiser.init(variables["params"]))
    (params, statistics, _), _ = jax.jit(lambda: jax.lax.scan(update, start, jnp.arange(_STEPS)))()
    return module, {"params": params, "batch_stats": statistics, "scaling": scaling}


def accuracy(module: WineClassifier, variables: Any, wines: Wines) -> float:
    """The share of the wines that are told right."""
    logits = module.apply(variables, wines.measurements)
    return float((np.argmax(logits, -1) == wines.cultivars).mean())
