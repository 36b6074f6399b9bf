"""Hypothesis strategies for queues, sizes and specs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from hloserve.core.dtypes import DTYPES, DType
from hloserve.core.tensors import Array, Axis, AxisKind, TensorSpec

compiled_sizes = st.sets(st.integers(1, 64), min_size=1, max_size=6).map(lambda s: tuple(sorted(s)))
"""Ascending batch sizes of one variant."""

caps = st.none() | st.integers(1, 70)
"""The operator's cap on coalescing."""

queues = st.lists(st.integers(1, 80), min_size=1, max_size=30)
"""Rows of queued requests, oldest first."""


@st.composite
def batched_specs(draw: st.DrawFn) -> TensorSpec:
    """A tensor of any dtype with its batch axis anywhere among up to four axes."""
    extents = draw(st.lists(st.integers(0, 3), max_size=3))
    axes = [Axis("abc"[i], AxisKind.FIXED, extent) for i, extent in enumerate(extents)]
    axes.insert(draw(st.integers(0, len(axes))), Axis("n", AxisKind.BATCH))
    return TensorSpec("t", draw(st.sampled_from(DTYPES)), tuple(axes))


def random_bits(dtype: DType, shape: Sequence[int], seed: int) -> Array:
    """An array of any bits that the dtype can hold."""
    count = int(np.prod(shape)) * dtype.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    if dtype.token == "bool":
        bits &= 1
    return bits.view(dtype.numpy).reshape(shape)


@dataclass(frozen=True)
class Traffic:
    """Requests that will share a batch: their specs, their rows, and their inputs."""

    specs: tuple[TensorSpec, ...]
    rows: tuple[int, ...]
    inputs: tuple[tuple[Array, ...], ...]


@st.composite
def traffic(draw: st.DrawFn) -> Traffic:
    """Up to six requests with up to three inputs each."""
    specs = tuple(draw(st.lists(batched_specs(), min_size=1, max_size=3)))
    rows = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=6)))
    seed = draw(st.integers(0, 2**32 - 1))
    inputs = tuple(
        tuple(random_bits(spec.dtype, spec.concrete_shape(count), seed + number) for spec in specs)
        for number, count in enumerate(rows)
    )
    return Traffic(specs, rows, inputs)
