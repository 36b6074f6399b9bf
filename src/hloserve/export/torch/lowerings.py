"""Torch operators in JAX where torchax has none, a wrong one or one that unrolls loops.

What lives here: `LOWERINGS`, from an overload to a function of JAX arrays. What does not: the rest
of the operators (`hloserve.export.torch.ops`) and recurrent layers
(`hloserve.export.torch.recurrence`).

Rules.
1. Extents may be symbolic: nothing here asks whether one equals or exceeds another.
2. The interpreter casts results to the dtype that torch says, so lowerings need not.

Source: the operators' documentation and, for argument order, ``native_functions.yaml`` of torch.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from hloserve.export.torch.arrays import dtype_of

__all__ = ["LOWERINGS", "Lowering", "lowers"]

Lowering: TypeAlias = Callable[..., Any]
"""A torch operator on JAX arrays; dtypes among its arguments are torch's."""

LOWERINGS: dict[str, Lowering] = {}
"""By name of the overload, such as ``linear.default``."""


def lowers(*overloads: str) -> Callable[[Lowering], Lowering]:
    """Register the decorated function for these overloads of `torch.ops.aten`."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(overloads, function))
        return function

    return register


@lowers("scaled_dot_product_attention.default")
def attend(  # noqa: PLR0913  # torch's own arguments
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention with the scores and their sum in float32, as torch's kernels keep them.

    A row that attends to nothing is zero, as torch has it, and not NaN.

    Shapes:
        query: (..., h, q, d); key: (..., g, k, d); value: (..., g, k, v).
        attn_mask: broadcastable to (..., h, q, k), bool or added to the scores.
    """
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = jnp.repeat(key, repeats, -3), jnp.repeat(value, repeats, -3)
    wide = jnp.promote_types(query.dtype, jnp.float32)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = jnp.einsum("...qd,...kd->...qk", query, key, preferred_element_type=wide)
    scores = scores * jnp.asarray(factor, wide)
    if is_causal:
        rows, columns = (jnp.arange(extent) for extent in scores.shape[-2:])
        scores = jnp.where(columns <= rows[:, None], scores, -jnp.inf)
    if attn_mask is not None:
        masked = attn_mask.dtype == jnp.bool_
        scores = (
            jnp.where(attn_mask, scores, -jnp.inf) if masked else scores + attn_mask.astype(wide)
        )
    highest = jnp.max(scores, -1, keepdims=True)
    shares = jnp.exp(scores - jnp.where(jnp.isneginf(highest), 0, highest))
    total = jnp.sum(shares, -1, keepdims=True)
    shares = shares / jnp.where(total == 0, 1, total)
    return jnp.einsum("...qk,...kd->...qd", shares.astype(query.dtype), value)


@lowers("convolution.default", "_convolution.default")
def convolve(  # noqa: PLR0913  # torch's own arguments
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_flags_of_cudnn: Any,
) -> Any:
    """Convolution, and its transpose, over 1 to 3 axes.

    Shapes:
        x: (n, c, ...); weight: (o, c / groups, ...), transposed (c, o / groups, ...).
    """
    spatial = weight.ndim - 2
    strides, paddings, dilations, output_paddings = (
        _per_axis(given, spatial) for given in (stride, padding, dilation, output_padding)
    )
    pads = [(pad, pad) for pad in paddings]
    if transposed:
        weight = _transposed_kernel(weight, groups)
        reach = [d * (k - 1) for d, k in zip(dilations, weight.shape[2:], strict=True)]
        pads = [
            (far - pad, far - pad + extra)
            for far, pad, extra in zip(reach, paddings, output_paddings, strict=True)
        ]
    y = jax.lax.conv_general_dilated(
        x,
        weight,
        [1] * spatial if transposed else strides,
        pads,
        lhs_dilation=strides if transposed else None,
        rhs_dilation=dilations,
        feature_group_count=groups,
    )
    if bias is not None:
        y = y + bias.reshape(-1, *[1] * spatial)
    return y


def _per_axis(given: Sequence[int], axes: int) -> list[int]:
    return list(given) * axes if len(given) == 1 else list(given)


def _transposed_kernel(weight: Any, groups: int) -> Any:
    """The kernel of the equal convolution: flipped, and (o, c / groups, ...)."""
    weight = jnp.flip(weight, range(2, weight.ndim))
    channels, per_group, *window = weight.shape
    weight = weight.reshape(groups, channels // groups, per_group, *window).swapaxes(1, 2)
    return weight.reshape(groups * per_group, channels // groups, *window)


@lowers("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def pool_adaptively(x: Any, output_size: Sequence[int]) -> tuple[Any, Any]:
    """Maximum over bins from ``floor(i n / o)`` to ``ceil((i + 1) n / o)``, and where it was.

    Shapes:
        x: (..., *spatial), static in the spatial axes; results: (..., *output_size).
    """
    axes = len(output_size)
    spatial = x.shape[-axes:]
    lowest = (
        jnp.asarray(-jnp.inf, x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else jnp.asarray(jnp.iinfo(x.dtype).min, x.dtype)
    )
    places, inside = jnp.zeros((), jnp.int64), jnp.ones((), bool)
    windows = x
    for number, (extent, bins) in enumerate(zip(spatial, output_size, strict=True)):
        taken, real = _bins(extent, bins)
        # each spatial axis becomes two: its bins, and the places within a bin
        windows = jnp.take(windows, taken, axis=x.ndim - axes + 2 * number)
        alone = [1] * (2 * axes)
        alone[2 * number : 2 * number + 2] = taken.shape
        places = places * extent + taken.reshape(alone)
        inside = inside & real.reshape(alone)
    windows = jnp.where(inside, windows, lowest)
    outer = tuple(x.shape[:-axes])
    order = [*range(len(outer)), *(len(outer) + 2 * axis for axis in range(axes))]
    order += [len(outer) + 2 * axis + 1 for axis in range(axes)]
    width = math.prod(windows.shape[len(outer) + 1 :: 2])
    windows = windows.transpose(order).reshape(*outer, *output_size, width)
    places = places.transpose([axis - len(outer) for axis in order[len(outer) :]])
    best = jnp.argmax(windows, -1)
    flat_places = jnp.broadcast_to(places.reshape(*output_size, width), windows.shape)
    return jnp.max(windows, -1), jnp.take_along_axis(flat_places, best[..., None], -1)[..., 0]


def _bins(extent: int, bins: int) -> tuple[Any, Any]:
    """Places of each bin, padded to the widest, and which of them are real: (bins, width)."""
    starts = [index * extent // bins for index in range(bins)]
    ends = [-(-(index + 1) * extent // bins) for index in range(bins)]
    width = max(end - start for start, end in zip(starts, ends, strict=True))
    places = np.array(starts)[:, None] + np.arange(width)
    return np.minimum(places, extent - 1), places < np.array(ends)[:, None]


@lowers("embedding_bag.padding_idx")
def embed_bags(
    weight: Any,
    indices: Any,
    offsets: Any,
    _scale_grad_by_freq: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Any, None, None, None]:
    """Sum (mode 0), mean (1) or maximum (2) of the rows of each bag; an empty bag is zero.

    The other three results serve training and are left out.
    """
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    # Every offset begins a bag; one beyond the last index begins an empty bag and is dropped.
    begun = jnp.zeros(indices.shape, jnp.int32).at[offsets[:bags]].add(1, mode="drop")
    bag = jnp.cumsum(begun) - 1
    rows = jnp.take(weight, indices, axis=0)
    counted = jnp.ones(indices.shape, bool)
    if padding_idx is not None:
        counted = indices != (padding_idx + (weight.shape[0] if padding_idx < 0 else 0))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    zeros = jnp.zeros((bags, weight.shape[1]), weight.dtype)
    sizes = jnp.zeros((bags,), jnp.int32).at[bag].add(counted.astype(jnp.int32))[:, None]
    if mode == 2:
        rows = jnp.where(counted[:, None], rows, -jnp.inf)
        return jnp.where(sizes == 0, 0, (zeros - jnp.inf).at[bag].max(rows)), None, None, None
    total = zeros.at[bag].add(jnp.where(counted[:, None], rows, 0))
    return (total / jnp.maximum(sizes, 1) if mode == 1 else total), None, None, None


@lowers("full_like.default")
def fill_like(x: Any, value: Any, *, dtype: Any = None, **_allocation: Any) -> Any:
    """An array of one value, whatever the memory format."""
    known = dtype_of(dtype)
    return jnp.full(x.shape, value, x.dtype if known is None else known.numpy)


@lowers("fill.Scalar", "fill.Tensor")
def fill(x: Any, value: Any, **_allocation: Any) -> Any:
    """An array like `x` of one value."""
    return jnp.full(x.shape, value, x.dtype)


@lowers("arange.start_step")
def count_up(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, **_place: Any) -> Any:
    """Numbers at equal distance; of symbolic extents too."""
    known = dtype_of(dtype)
    if all(isinstance(bound, int | float) for bound in (start, end, step)):
        return jnp.arange(start, end, step, None if known is None else known.numpy)
    return start + step * jnp.arange(-((start - end) // step))


@lowers("topk.default")
def pick_largest(
    x: Any, count: int, axis: int = -1, largest: bool = True, _sorted: bool = True
) -> tuple[Any, Any]:
    """The largest or smallest of an axis, in order; of equal ones the first."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    if largest:
        return _moved(functools.partial(jax.lax.top_k, k=count), x, axis)
    order = jnp.argsort(x, axis, stable=True)
    taken = jax.lax.slice_in_dim(order, 0, count, axis=axis)
    return jnp.take_along_axis(x, taken, axis), taken


def _moved(function: Callable[[Any], Sequence[Any]], x: Any, axis: int) -> tuple[Any, ...]:
    """Apply a function of the last axis to another one."""
    return tuple(jnp.moveaxis(result, -1, axis) for result in function(jnp.moveaxis(x, axis, -1)))


@lowers("sym_size.int")
def read_extent(x: Any, axis: int) -> Any:
    """The extent of an axis: an integer or a symbolic one."""
    return x.shape[axis]


@lowers("sym_numel.default")
def count_elements(x: Any) -> Any:
    """The number of elements: an integer or a symbolic one."""
    return math.prod(x.shape)


@lowers("_local_scalar_dense.default", "item.default")
def read_scalar(x: Any) -> Any:
    """The element of an array of one element, which the graph goes on to compute with."""
    return x.reshape(())


def resize_smoothly(
    kernel: Callable[[Any], Any],
    reach: int,
    x: Any,
    output_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Any:
    """Interpolation whose kernel is widened when an image gets smaller, axis by axis.

    Shapes:
        x: (n, c, h, w); result: (n, c, *output_size).
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    for axis, size, scale in zip((2, 3), output_size, scales or (None, None), strict=True):
        extent = x.shape[axis]
        step = 1 / scale if scale else extent / size
        if align_corners:
            step = (extent - 1) / (size - 1) if size > 1 else 0.0
        # the middles of the results, in places of x; a place j covers j to j + 1
        middles = step * (jnp.arange(size, dtype=wide) + 0.5)[:, None]
        width = max(step, 1.0)
        first = jnp.maximum(jnp.floor(middles - reach * width + 0.5), 0)
        last = jnp.minimum(jnp.floor(middles + reach * width + 0.5), extent)
        places = jnp.arange(extent, dtype=wide)
        weights = kernel((places + 0.5 - middles) / width)
        weights = jnp.where((places >= first) & (places < last), weights, 0)
        weights = weights / weights.sum(-1, keepdims=True)
        x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ weights.T.astype(x.dtype), -1, axis)
    return x


def _triangle(distance: Any) -> Any:
    return jnp.maximum(1 - jnp.abs(distance), 0)


def _cubic(distance: Any) -> Any:
    a, d = -0.5, jnp.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return jnp.where(d < 1, near, jnp.where(d < 2, far, 0))


lowers("_upsample_bilinear2d_aa.default")(functools.partial(resize_smoothly, _triangle, 1))
lowers("_upsample_bicubic2d_aa.default")(functools.partial(resize_smoothly, _cubic, 2))
