"""Hypothesis strategies for everything that a bundle is made of."""

import string
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from hloserve.bundle.io_spec import IOSpec
from hloserve.core.dtypes import DTYPES, DType
from hloserve.core.tensors import Array

T = TypeVar("T")

dtypes = st.sampled_from(DTYPES)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
extents = st.integers(1, 6)
_LETTERS = [letter for letter in string.ascii_letters if letter not in "nb"]

plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(["no", "1e3", "2026-01-01", "~", "0x1f", "1:30", ".inf", "- a", "a: b", "#"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(names, children, max_size=3),
    max_leaves=8,
)


@st.composite
def io_specs(
    draw: Callable[[st.SearchStrategy[Any]], Any],
    *,
    is_batched: bool | None = None,
    allow_variable: bool = False,
    max_rank: int = 4,
) -> IOSpec:
    """A declaration without faults.

    Args:
        draw: given by Hypothesis.
        is_batched: whether it has a batch axis; None: either.
        allow_variable: whether axes may be -1.
        max_rank: most axes, the batch axis included.
    """
    rank = draw(st.integers(1 if is_batched else 0, max_rank))
    has_batch = draw(st.booleans()) and rank > 0 if is_batched is None else is_batched
    batch_axis = draw(st.integers(0, rank - 1)) if has_batch else None
    extent = st.just(-1) | extents if allow_variable else extents
    shape = draw(st.lists(extent, min_size=rank, max_size=rank))
    count = rank - has_batch
    letters = draw(
        st.none() | st.lists(st.sampled_from(_LETTERS), min_size=count, max_size=count, unique=True)
    )
    wire_dtypes = [dtype for dtype in DTYPES if dtype.kserve is not None]
    dtype = draw(st.sampled_from(wire_dtypes))
    return IOSpec(draw(names), dtype, tuple(shape), batch_axis, letters)


def sections(
    specs: st.SearchStrategy[IOSpec], max_size: int = 3
) -> st.SearchStrategy[list[IOSpec]]:
    """A section of tensors with unique names."""
    return st.lists(specs, max_size=max_size, unique_by=lambda spec: spec.name)


@st.composite
def arrays(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Array:
    """An array of any of the dtypes, with any bits, in any memory order."""
    dtype: DType = draw(dtypes)
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    size = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype.token == "bool":
        data = bytes(byte & 1 for byte in data)
    array: Array = np.frombuffer(data, dtype.numpy).reshape(shape)
    axes = draw(st.permutations(range(len(shape))))
    return array.transpose(axes)


weights = st.dictionaries(names.filter(lambda name: name != "__metadata__"), arrays(), max_size=4)


@st.composite
def mutations(draw: Callable[[st.SearchStrategy[Any]], Any], original: bytes) -> bytes:
    """The bytes with a few of them changed, cut out, doubled or put in."""
    content = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        to = draw(st.integers(at, min(len(content), at + 8)))
        piece = draw(
            st.binary(max_size=4)
            | st.sampled_from([b'"', b"{", b"}", b"[", b"]", b",", b":", b"-1", b"9" * 30, b"null"])
            | st.just(bytes(content[at:to]) * 2)
        )
        content[at:to] = piece
    return bytes(content)


def as_mapping(pairs: Mapping[str, T]) -> list[tuple[str, T]]:
    """Pairs in order, to compare the order of two mappings too."""
    return list(pairs.items())
