"""A digit classifier in Equinox: the network, the data, and training it.

The network takes one image, as Equinox's do, and has what must be treated differently when it
serves: dropout, and batch normalisation with its state.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

__all__ = ["EPOCHS", "DigitClassifier", "Digits", "accuracy", "load_split", "make", "train"]

_CLASSES = 10
_FULL_INK = 16
EPOCHS = 6
_BATCH = 64
_RATE = 0.1
_MOMENTUM = 0.9
_SEED = 3


class DigitClassifier(eqx.Module):
    """From one image (8, 8) uint8 to the digit, i32 (), and its logits (10,)."""

    first: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    second: eqx.nn.Conv2d
    dropout: eqx.nn.Dropout
    out: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        first, second, out = jax.random.split(key, 3)
        self.first = eqx.nn.Conv2d(1, 8, 3, padding=1, key=first)
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
        self.second = eqx.nn.Conv2d(8, 16, 3, stride=2, padding=1, key=second)
        self.dropout = eqx.nn.Dropout(0.2)
        self.out = eqx.nn.Linear(16 * 4 * 4, _CLASSES, key=out)

    def __call__(self, image: Any, state: Any, key: Any = None) -> Any:
        x = image[None].astype(jnp.float32) / _FULL_INK
        x, state = self.norm(self.first(x), state)
        x = jax.nn.relu(self.second(jax.nn.relu(x)))
        logits = self.out(self.dropout(x.reshape(-1), key=key))
        return {"digit": jnp.argmax(logits).astype(jnp.int32), "logits": logits}, state


class Digits(NamedTuple):
    """Images (n, 8, 8) uint8, 0 to 16, and labels (n,) int32."""

    images: Any
    labels: Any


def load_split() -> tuple[Digits, Digits]:
    """Scikit-learn's digits: the first four fifths to train on, the rest held out."""
    data = load_digits()
    images, labels = data.images.astype(np.uint8), data.target.astype(np.int32)
    cut = len(labels) * 4 // 5
    return Digits(images[:cut], labels[:cut]), Digits(images[cut:], labels[cut:])


def make() -> tuple[DigitClassifier, eqx.nn.State]:
    """An untrained network and its state."""
    module, state = eqx.nn.make_with_state(DigitClassifier)(jax.random.key(_SEED))
    return module, state


def train(digits: Digits, *, epochs: int = EPOCHS) -> tuple[DigitClassifier, eqx.nn.State]:
    """Train by stochastic gradient descent with momentum; the network and its state."""
    module, state = make()
    params, static = eqx.partition(module, eqx.is_inexact_array)
    momenta = jax.tree.map(jnp.zeros_like, params)

    def loss(params: Any, state: Any, images: Any, labels: Any, key: Any) -> Any:
        keys = jax.random.split(key, len(labels))
        network = jax.vmap(
            eqx.combine(params, static), axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None)
        )
        results, state = network(images, state, keys)
        chances = jax.nn.log_softmax(results["logits"])
        return -jnp.take_along_axis(chances, labels[:, None], 1).mean(), state

    @jax.jit
    def step(params: Any, momenta: Any, state: Any, images: Any, labels: Any, key: Any) -> Any:
        slopes, state = jax.grad(loss, has_aux=True)(params, state, images, labels, key)
        momenta = jax.tree.map(lambda m, s: _MOMENTUM * m + s, momenta, slopes)
        params = jax.tree.map(lambda p, m: p - _RATE * m, params, momenta)
        return params, momenta, state

    random = np.random.default_rng(_SEED)
    for epoch in range(epochs):
        order = random.permutation(len(digits.labels))[: len(digits.labels) // _BATCH * _BATCH]
        for index, rows in enumerate(order.reshape(-1, _BATCH)):
            key = jax.random.fold_in(jax.random.key(epoch), index)
            params, momenta, state = step(
                params, momenta, state, digits.images[rows], digits.labels[rows], key
            )
    return eqx.combine(params, static), state


def accuracy(module: DigitClassifier, state: eqx.nn.State, digits: Digits) -> float:
    """The share of the images that are told right."""
    network = eqx.nn.inference_mode(module)
    told = jax.jit(jax.vmap(lambda image: network(image, state)[0]["digit"]))(digits.images)
    return float((told == digits.labels).mean())
