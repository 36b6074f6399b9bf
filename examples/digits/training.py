"""Training the digit classifier on scikit-learn's digits, in plain JAX.

What lives here: the split, augmentation and the optimiser. What does not: the network
(`examples.digits.network`). Everything is seeded: the same versions on the same machine give the
same weights.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from examples.digits.network import FULL_INK, SIDE, Weights, init_weights, logits

__all__ = ["Digits", "accuracy", "load_split", "train"]

_SEED = 20
_EPOCHS = 60
_BATCH = 64
_PEAK_RATE = 4e-3
_WEIGHT_DECAY = 1e-4
_LABEL_SMOOTHING = 0.02


@dataclass(frozen=True)
class Digits:
    """Images (n, 8, 8) uint8, 0 to 16, and labels (n,) int32, of both halves of the split."""

    train_images: Any
    train_labels: Any
    test_images: Any
    test_labels: Any


def load_split() -> Digits:
    """Split scikit-learn's digits: train on the first four fifths, hold the last fifth out.

    Not shuffled: neighbours in the file are often of the same writer, so a shuffled split would
    test on hands that training has seen, and look better than it is.
    """
    data = load_digits()
    images, labels = data.images.astype(np.uint8), data.target.astype(np.int32)
    cut = len(labels) * 4 // 5
    return Digits(images[:cut], labels[:cut], images[cut:], labels[cut:])


def train(digits: Digits, *, epochs: int = _EPOCHS) -> Weights:
    """Train by Adam with a one-cycle rate; every image is distorted a little."""
    random = np.random.default_rng(_SEED)
    weights = {name: jnp.asarray(value) for name, value in init_weights(_SEED).items()}
    moments = jax.tree.map(lambda w: (jnp.zeros_like(w), jnp.zeros_like(w)), weights)
    count = len(digits.train_labels)
    steps = epochs * (count // _BATCH)
    step = 0
    for _ in range(epochs):
        order = random.permutation(count)[: count // _BATCH * _BATCH].reshape(-1, _BATCH)
        for rows in order:
            step += 1
            images = _augment(digits.train_images[rows], random)
            rate = _PEAK_RATE * min(step / (0.1 * steps), (steps - step) / (0.9 * steps))
            weights, moments = _update(
                weights, moments, images, digits.train_labels[rows], rate, step
            )
    return {name: np.asarray(value) for name, value in weights.items()}


def accuracy(weights: Weights, images: Any, labels: Any) -> float:
    """Fraction of images whose most likely class is their label."""
    return float(np.mean(np.argmax(jax.jit(logits)(images, weights), axis=-1) == labels))


def _augment(images: Any, random: np.random.Generator) -> Any:
    """Turn, stretch, slant and shift each image a little and vary its ink, as other hands do.

    Shapes:
        images: (n, 8, 8) any dtype.
        result: (n, 8, 8) float32, 0 to 16.
    """
    count = len(images)

    def spread(deviation: float) -> Any:
        return random.normal(0, deviation, (count, 1, 1))

    angle, slant = spread(0.1), spread(0.075)
    tall, wide = np.exp(spread(0.06)), np.exp(spread(0.06))
    centre = (SIDE - 1) / 2
    y, x = np.meshgrid(np.arange(SIDE) - centre, np.arange(SIDE) - centre, indexing="ij")
    rows = tall * (np.cos(angle) * y - np.sin(angle) * x) + spread(0.3) + centre
    columns = wide * (np.sin(angle) * y + np.cos(angle) * x + slant * y) + spread(0.3) + centre
    ink = _sample(images, rows, columns) * random.uniform(0.8, 1.2, (count, 1, 1))
    return np.clip(ink + random.normal(0, 0.5, ink.shape), 0, FULL_INK).astype(np.float32)


def _sample(images: Any, rows: Any, columns: Any) -> Any:
    """Read images between their pixels, bilinearly; outside of an image there is no ink."""
    margin = 2
    padded = np.pad(images.astype(np.float32), ((0, 0), (margin, margin), (margin, margin)))
    last = SIDE + 2 * margin - 1
    rows, columns = (np.clip(at + margin, 0, last - 1e-3) for at in (rows, columns))
    top, left = rows.astype(int), columns.astype(int)
    down, right = rows - top, columns - left
    image = np.arange(len(images))[:, None, None]
    upper = (1 - right) * padded[image, top, left] + right * padded[image, top, left + 1]
    lower = (1 - right) * padded[image, top + 1, left] + right * padded[image, top + 1, left + 1]
    return (1 - down) * upper + down * lower


def _loss(weights: Weights, images: Any, labels: Any) -> Any:
    wanted = jax.nn.one_hot(labels, 10) * (1 - _LABEL_SMOOTHING) + _LABEL_SMOOTHING / 10
    return -jnp.mean(jnp.sum(wanted * jax.nn.log_softmax(logits(images, weights)), axis=-1))


@jax.jit
def _update(
    weights: Weights, moments: Any, images: Any, labels: Any, rate: Any, step: Any
) -> tuple[Weights, Any]:
    """One step of Adam with decoupled weight decay."""
    gradients = jax.grad(_loss)(weights, images, labels)
    updated, kept = {}, {}
    for name, weight in weights.items():
        gradient = gradients[name]
        mean = 0.9 * moments[name][0] + 0.1 * gradient
        square = 0.99 * moments[name][1] + 0.01 * gradient**2
        direction = (mean / (1 - 0.9**step)) / (jnp.sqrt(square / (1 - 0.99**step)) + 1e-8)
        updated[name] = weight - rate * (direction + _WEIGHT_DECAY * weight)
        kept[name] = (mean, square)
    return updated, kept
