"""The digit classifier: a small convolutional network in plain JAX.

What lives here: its weights' shapes and its arithmetic. What does not: data and training
(`examples.digits.training`), and the export (`examples.digits.make_bundle`).
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["CLASSES", "FULL_INK", "SIDE", "Weights", "init_weights", "logits", "predict"]

Weights: TypeAlias = dict[str, Any]

SIDE = 8
"""Pixels per side of an image."""
FULL_INK = 16
"""The largest value of a pixel; 0 is paper."""
CLASSES = 10

_CHANNELS = (24, 48)


def init_weights(seed: int) -> Weights:
    """He-initialised weights, the same for the same seed.

    Shapes:
        conv kernels: (height, width, in, out).
        dense kernel: (features, classes).
    """
    random = np.random.default_rng(seed)
    first, second = _CHANNELS
    features = (SIDE // 2) ** 2 * second

    def kernel(*shape: int) -> Any:
        fan_in = np.prod(shape[:-1])
        return random.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)

    return {
        "conv1.kernel": kernel(3, 3, 1, first),
        "conv1.bias": np.zeros(first, np.float32),
        "conv2.kernel": kernel(3, 3, first, second),
        "conv2.bias": np.zeros(second, np.float32),
        "dense.kernel": kernel(features, CLASSES),
        "dense.bias": np.zeros(CLASSES, np.float32),
    }


def logits(image: Any, weights: Weights) -> Any:
    """Scores per class.

    Shapes:
        image: (n, 8, 8), 0 to 16, any dtype.
        result: (n, 10) float32.
    """
    x = image.astype(jnp.float32)[..., None] / FULL_INK
    x = jax.nn.relu(_convolve(x, weights["conv1.kernel"]) + weights["conv1.bias"])
    x = jax.nn.relu(_convolve(x, weights["conv2.kernel"]) + weights["conv2.bias"])
    n, height, width, channels = x.shape
    x = x.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))
    return x.reshape(n, -1) @ weights["dense.kernel"] + weights["dense.bias"]


def predict(image: Any, weights: Weights) -> tuple[Any, Any]:
    """What the bundle's program returns.

    Shapes:
        image: (n, 8, 8) uint8.
        result: probabilities (n, 10) float32, digit (n,) int32.
    """
    scores = logits(image, weights)
    return jax.nn.softmax(scores), jnp.argmax(scores, axis=-1).astype(jnp.int32)


def _convolve(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
