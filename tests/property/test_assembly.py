"""Rows that go in come out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.engine_strategies import Traffic, traffic

from hloserve.engine.assembly import (
    StagingArea,
    assemble,
    is_transferable,
    join_outputs,
    slice_rows,
    split_inputs,
)

STAGING = StagingArea()
"""Used by all examples: what an earlier one left must not show."""


@given(traffic(), st.integers(0, 4))
def test_slicing_undoes_assembling(sent: Traffic, padding: int) -> None:
    """Each request finds its own bits at its own rows, whatever the axes, and zeros follow."""
    rows = sum(sent.rows)

    batch = assemble(sent.specs, sent.inputs, rows, rows + padding, STAGING)

    *slices, rest = slice_rows(sent.specs, batch, [*sent.rows, padding])
    for inputs, cut in zip(sent.inputs, slices, strict=True):
        for mine, got in zip(inputs, cut, strict=True):
            assert got.shape == mine.shape
            assert got.dtype == mine.dtype
            assert got.tobytes() == mine.tobytes()
    for zeros in rest:
        assert not any(zeros.tobytes())


@given(traffic(), st.integers(0, 4))
def test_assembled_inputs_are_ready_for_the_device(sent: Traffic, padding: int) -> None:
    """Every input has the program's rows, contiguous, aligned, and apart from the others."""
    size = sum(sent.rows) + padding

    batch = assemble(sent.specs, sent.inputs, sum(sent.rows), size, STAGING)

    for spec, array in zip(sent.specs, batch, strict=True):
        assert array.shape == spec.concrete_shape(size)
        assert array.size == 0 or is_transferable(array)
    for place, array in enumerate(batch):
        assert not any(np.shares_memory(array, other) for other in batch[place + 1 :])


@given(traffic(), st.integers(1, 5))
def test_joining_undoes_splitting(sent: Traffic, largest: int) -> None:
    """A request cut into parts and joined again has the same bits."""
    specs, rows, inputs = sent.specs, sent.rows[0], sent.inputs[0]

    parts = split_inputs(specs, inputs, rows, largest)

    assert all(count <= largest for count, _ in parts)
    for whole, joined in zip(inputs, join_outputs(specs, [p for _, p in parts]), strict=True):
        assert joined.shape == whole.shape
        assert joined.tobytes() == whole.tobytes()
