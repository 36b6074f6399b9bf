"""Training the detector on drawn shapes: both stages at once, in plain JAX.

Usage, in the repository's root, to make ``weights.npz`` anew::

    python -m examples.object_detection.training

Everything is seeded. Both stages learn from the same images: the first one which anchors lie on a
shape, the second one from regions around the shapes, from the first one's own proposals and from
regions anywhere.
"""

import argparse
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.object_detection.network import (
    CONFIG,
    SIDE,
    WEIGHTS_FILE,
    Weights,
    init_weights,
    load_detector,
    stage1,
    stage2,
)
from examples.object_detection.shapes import CLASSES, Picture, draw_picture
from hloserve.export.detection import detector_ops
from hloserve.hooks.vision import generate_anchors, iou

__all__ = ["draw_training_picture", "found_share", "main", "train"]

_MOST_SHAPES = 14
_SEED = 7
_PEAK_RATE = 3e-3
_NEGATIVES = 48  # anchors without a shape that count per image: the most wrong ones
_JITTERED, _PROPOSED, _ANYWHERE = 20, 20, 8  # regions per image

_ANCHORS = np.concatenate(
    [
        generate_anchors(SIDE // stride, SIDE // stride, stride, cell)
        for stride, cell in zip((8, 16), CONFIG.cell_anchors, strict=True)
    ]
).astype(np.float32)


class _Examples(NamedTuple):
    """Images and their shapes; missing shapes are boxes of zeros of class 0."""

    images: Any  # [n, 3, side, side], uint8
    boxes: Any  # [n, most, 4], float32
    classes: Any  # [n, most], int32


def draw_training_picture(random: np.random.Generator) -> Picture:
    """Any number of shapes, some pictures with bars above and below."""
    shapes = int(random.integers(0, _MOST_SHAPES + 1))
    largest = float(np.interp(shapes, [3, 7, _MOST_SHAPES], [44, 28, 20]))
    margin = int(random.choice([0, 0, 16]))
    while True:
        with suppress(ValueError):  # they did not fit: draw others
            return draw_picture(
                random, shapes, sizes=(14, largest), margin=margin, noise=random.uniform(0, 8)
            )


def train(*, steps: int = 3000, batch: int = 16, images: int = 4000) -> Weights:
    """Train by Adam with a one-cycle rate.

    Args:
        steps: updates of the weights.
        batch: images per update.
        images: how many are drawn; they are used again and again.
    """
    random = np.random.default_rng(_SEED)
    examples = _draw_examples(random, images)
    weights = jax.tree.map(jnp.asarray, init_weights(random))
    optimiser = optax.adam(optax.cosine_onecycle_schedule(steps, _PEAK_RATE))
    state = optimiser.init(weights)

    @jax.jit
    def update(weights: Any, state: Any, examples: _Examples, key: Any) -> Any:
        loss, slopes = jax.value_and_grad(_loss)(weights, examples, key)
        changes, state = optimiser.update(slopes, state)
        return optax.apply_updates(weights, changes), state, loss

    key = jax.random.key(_SEED)
    for step in range(steps):
        rows = random.choice(images, batch, replace=False)
        taken = _Examples(*(part[rows] for part in examples))
        weights, state, loss = update(weights, state, taken, jax.random.fold_in(key, step))
        if step % 100 == 0:
            print(f"step {step}: loss {float(loss):.3f}", flush=True)
    return {name: np.asarray(value) for name, value in weights.items()}


def _draw_examples(random: np.random.Generator, count: int) -> _Examples:
    images = np.zeros((count, 3, SIDE, SIDE), np.uint8)
    boxes = np.zeros((count, _MOST_SHAPES, 4), np.float32)
    classes = np.zeros((count, _MOST_SHAPES), np.int32)
    for row in range(count):
        picture = draw_training_picture(random)
        shapes = len(picture.boxes)
        images[row] = picture.pixels.transpose(2, 0, 1)
        boxes[row, :shapes], classes[row, :shapes] = picture.boxes, picture.classes
    return _Examples(images, boxes, classes)


def _loss(weights: Weights, examples: _Examples, key: Any) -> Any:
    pixels = examples.images.astype(jnp.float32) / 255
    features, objectness, deltas = stage1(pixels, weights)
    flat = jnp.concatenate([_flat(each, 1)[..., 0] for each in objectness], axis=1)
    codes = jnp.concatenate([_flat(each, 4) for each in deltas], axis=1)
    keys = jax.random.split(key, len(pixels))
    per_image = jax.vmap(partial(_image_loss, weights))
    return per_image(features, flat, codes, examples.boxes, examples.classes, keys).mean()


def _flat(maps: Any, size: int) -> Any:
    """In the order of the anchors: [n, h * w * a, size]."""
    count, channels, height, width = maps.shape
    split = maps.reshape(count, channels // size, size, height, width)
    return split.transpose(0, 3, 4, 1, 2).reshape(count, -1, size)


def _image_loss(
    weights: Weights, features: Any, logits: Any, codes: Any, boxes: Any, classes: Any, key: Any
) -> Any:
    is_shape = classes > 0
    overlap = jnp.where(is_shape, _overlaps(_ANCHORS, boxes), 0)  # [anchors, shapes]
    best = overlap.max(axis=1)
    is_best = ((overlap == overlap.max(axis=0)) & (overlap > 0.2)).any(axis=1)
    is_on = (best >= 0.5) | is_best
    shape = overlap.argmax(axis=1)
    losses = optax.sigmoid_binary_cross_entropy(logits, is_on.astype(jnp.float32))
    negatives, _ = jax.lax.top_k(jnp.where(is_on | (best >= 0.3), 0, losses), _NEGATIVES)
    wanted = _encode(boxes[shape], _ANCHORS, (1, 1, 1, 1))
    ons = jnp.maximum(is_on.sum(), 1)
    first = negatives.mean() + jnp.where(is_on, losses, 0).sum() / ons
    first += (
        jnp.where(is_on, optax.huber_loss(codes, wanted, delta=0.2).sum(axis=1), 0).sum() / ons * 4
    )
    regions = _regions(logits, codes, boxes, is_shape, key)
    return first + _head_loss(weights, features, regions, boxes, classes)


def _regions(logits: Any, codes: Any, boxes: Any, is_shape: Any, key: Any) -> Any:
    """What the second stage learns from: [regions, 4]."""
    at, moved, scaled, anywhere = jax.random.split(key, 4)
    likely = is_shape / jnp.maximum(is_shape.sum(), 1)
    chosen = boxes[jax.random.choice(at, len(boxes), (_JITTERED,), p=likely)]
    sizes = chosen[:, 2:] - chosen[:, :2]
    centres = chosen[:, :2] + sizes * (0.5 + jax.random.normal(moved, sizes.shape) * 0.12)
    halves = sizes / 2 * jnp.exp(jax.random.normal(scaled, sizes.shape) * 0.2)
    jittered = jnp.concatenate([centres - halves, centres + halves], axis=1)
    _, top = jax.lax.top_k(logits, _PROPOSED)
    proposed = detector_ops.decode(codes[top], jnp.asarray(_ANCHORS)[top], (1, 1, 1, 1))
    corners = jax.random.uniform(anywhere, (_ANYWHERE, 4)) * jnp.array([100, 100, 50, 50])
    free = jnp.concatenate([corners[:, :2], corners[:, :2] + corners[:, 2:] + 8], axis=1)
    regions = jnp.concatenate([jittered, proposed, free])
    return jax.lax.stop_gradient(detector_ops.clip(regions, (SIDE, SIDE)))


def _head_loss(weights: Weights, features: Any, regions: Any, boxes: Any, classes: Any) -> Any:
    levels = detector_ops.assign_levels(
        regions,
        2,
        min_level=3,
        canonical_level=CONFIG.canonical_level,
        canonical_size=CONFIG.canonical_size,
    )
    maps = [
        detector_ops.FeatureMap(each[None], stride)
        for each, stride in zip(features, CONFIG.roi_strides, strict=True)
    ]
    pooled = detector_ops.pool_regions(
        maps,
        regions,
        levels,
        pooled_size=CONFIG.pooled_size,
        sampling_ratio=CONFIG.sampling_ratio,
        aligned=CONFIG.aligned,
    )
    logits, codes = stage2(pooled, weights)
    overlap = jnp.where(classes > 0, _overlaps(regions, boxes), 0)
    shape = overlap.argmax(axis=1)
    number = jnp.where(overlap.max(axis=1) >= 0.5, classes[shape], 0)
    told = optax.softmax_cross_entropy_with_integer_labels(logits, number)
    wanted = _encode(boxes[shape], regions, CONFIG.box_weights)
    own = jnp.take_along_axis(codes.reshape(len(regions), -1, 4), number[:, None, None], axis=1)
    off = optax.huber_loss(own[:, 0], wanted).sum(axis=1)
    is_on = number > 0
    return told.mean() * 2 + 3 * jnp.where(is_on, off, 0).sum() / jnp.maximum(is_on.sum(), 1)


def _encode(boxes: Any, anchors: Any, weights: Any) -> Any:
    """What `detector_ops.decode` would turn into `boxes`; finite for boxes that are none."""
    sizes = jnp.maximum(anchors[:, 2:] - anchors[:, :2], 1)
    wanted = jnp.maximum(boxes[:, 2:] - boxes[:, :2], 1)
    moves = (boxes[:, :2] + wanted / 2 - anchors[:, :2] - sizes / 2) / sizes
    codes = jnp.concatenate([moves, jnp.log(wanted / sizes)], axis=1)
    return codes * jnp.array(weights, jnp.float32)


def _overlaps(first: Any, second: Any) -> Any:
    low = jnp.maximum(first[:, None, :2], second[None, :, :2])
    high = jnp.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = jnp.maximum(high - low, 0).prod(axis=2)
    areas = [jnp.maximum(each[:, 2:] - each[:, :2], 0).prod(axis=1) for each in (first, second)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    return jnp.where(union > 0, shared / jnp.where(union > 0, union, 1), 0)


def found_share(pictures: int = 200, seed: int = 1) -> tuple[float, float]:
    """How much of other pictures the stored detector finds, and how much of what it finds is there.

    A shape is found by a detection of its class that overlaps it by more than half.

    Returns:
        Recall and precision, 0 to 1.
    """
    random = np.random.default_rng(seed)
    detector = load_detector()
    detect = jax.jit(detector.detect)
    there = found = right = 0
    for _ in range(pictures):
        picture = draw_training_picture(random)
        if len(picture.boxes) > CONFIG.max_detections:
            continue
        got = detect(picture.pixels.transpose(2, 0, 1)[None], detector.weights)
        rows = np.asarray(got["DETECTIONS"])[: int(got["NUM_DETECTIONS"][0])]
        is_same = iou(picture.boxes, rows[:, :4]) > 0.5
        is_same &= picture.classes[:, None] == rows[None, :, 5]
        there, found = there + len(picture.boxes), found + len(rows)
        right += int(is_same.any(axis=1).sum())
    return right / there, right / found


def main() -> None:
    """Train, store the weights, and say how good they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    weights = train(steps=parser.parse_args().steps)
    stored = {name: value.astype(np.float16) for name, value in weights.items()}
    np.savez_compressed(WEIGHTS_FILE, **stored)
    recall, precision = found_share()
    print(f"{len(CLASSES) - 1} classes: recall {recall:.1%}, precision {precision:.1%}")


if __name__ == "__main__":
    main()
