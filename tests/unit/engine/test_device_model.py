"""Which program fits a request."""

import numpy as np
import pytest
from support.engine_models import build_model, spec

from hloserve.core.errors import BadRequest, TensorMismatch
from hloserve.core.tensors import Array, TensorSpec
from hloserve.engine.device_model import DeviceModel, variant_key
from hloserve.engine.fake_backend import FakeBackend


def _zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


@pytest.fixture
def two_inputs() -> DeviceModel:
    """A model whose second input has its batch axis in another place."""
    return build_model(
        FakeBackend(),
        function="first",
        inputs=[spec("image", "nc", c=3), spec("mask", "wn", w=2)],
    )


def _variants() -> DeviceModel:
    return build_model(
        FakeBackend(),
        function="first",
        inputs=[spec("x", "nw", w=-1), spec("y", "nhw", h=-1, w=-1)],
        outputs=[spec("z", "nw", w=-1)],
        shapes=[{"w": 4, "h": 2}, {"w": 8, "h": 2}],
    )


def test_rows_are_the_extent_of_the_batch_axis(two_inputs: DeviceModel) -> None:
    """Rows are read along the batch axis of each input, wherever it is."""
    assert two_inputs.rows_of([_zeros(5, 3), _zeros(2, 5)]) == 5


def test_inputs_that_disagree_about_rows_are_refused(two_inputs: DeviceModel) -> None:
    """A request whose image has four rows and whose mask has three is refused by name."""
    with pytest.raises(TensorMismatch) as caught:
        two_inputs.rows_of([_zeros(4, 3), _zeros(2, 3)])

    assert caught.value.tensor == "input 'mask'"
    assert "4 as in input 'image'" in str(caught.value)


def test_request_may_have_no_rows_but_not_in_one_input_only(two_inputs: DeviceModel) -> None:
    """Zero is a number of rows; inputs must agree on it like on any other."""
    assert two_inputs.rows_of([_zeros(0, 3), _zeros(2, 0)]) == 0
    with pytest.raises(TensorMismatch, match="0 as in input"):
        two_inputs.rows_of([_zeros(0, 3), _zeros(2, 1)])


def test_model_without_a_batch_axis_has_one_row() -> None:
    """Without a batch axis a request counts as one row."""
    model = build_model(
        FakeBackend(), inputs=[spec("x", "c", c=3)], outputs=[spec("y", "c", c=3)], sizes=[0]
    )

    assert model.rows_of([_zeros(3)]) == 1
    assert not model.has_batch_axis


@pytest.mark.parametrize(
    ("inputs", "outputs", "sizes", "expected"),
    [
        ([spec("x", "nc", c=3)], [spec("y", "cn", c=3)], [1, 4], True),
        ([spec("x", "nc", c=3)], [spec("y", "c", c=3)], [1, 4], False),
        ([spec("x", "nc", c=3)], [spec("y", "nc", c=3)], [0], False),
        ([spec("x", "c", c=3)], [spec("y", "c", c=3)], [0], False),
        ([], [spec("y", "nc", c=3)], [1], False),
    ],
    ids=["all batched", "output unbatched", "size 0", "unbatched", "no inputs"],
)
def test_only_a_model_that_is_batched_throughout_is_coalesced(
    inputs: list[TensorSpec], outputs: list[TensorSpec], sizes: list[int], expected: bool
) -> None:
    """Coalescing needs an input, a batch axis everywhere, and a batch size in every program."""
    model = build_model(
        FakeBackend(), function="first", inputs=inputs, outputs=outputs, sizes=sizes
    )

    assert expected is model.can_coalesce


def test_variant_key_follows_inputs_and_axes() -> None:
    """A letter that two inputs share appears once for each."""
    model = _variants()

    assert variant_key(model.inputs, {"w": 4, "h": 2}) == (4, 2, 4)
    assert model.variant_of([_zeros(1, 8), _zeros(1, 2, 8)]) == (8, 2, 8)


def test_shape_without_a_program_is_refused_with_the_shapes_that_have_one() -> None:
    """The error lists the compiled shapes in the words of the manifest."""
    with pytest.raises(BadRequest) as caught:
        _variants().variant_of([_zeros(1, 5), _zeros(1, 2, 5)])

    assert "x.w=5, y.h=2, y.w=5" in str(caught.value)
    assert "compiled: x.w=4, y.h=2, y.w=4; x.w=8, y.h=2, y.w=8" in str(caught.value)


def test_sizes_are_sorted_and_empty_for_an_unknown_variant() -> None:
    """Sizes come ascending; a variant that is not compiled has none."""
    model = build_model(FakeBackend(), sizes=[8, 1, 4])

    assert model.sizes(()) == (1, 4, 8)
    assert model.largest_size(()) == 8
    assert model.sizes((7,)) == ()
    assert model.largest_size((7,)) == 0


@pytest.mark.parametrize(("cap", "expected"), [(None, 8), (2, 2), (100, 8)])
def test_reported_batch_size_is_the_largest_one_within_the_cap(
    cap: int | None, expected: int
) -> None:
    """What the server reports is what it coalesces at most."""
    model = build_model(FakeBackend(), sizes=[1, 4, 8], max_batch_size=cap)

    assert expected == model.effective_max_batch_size


def test_unbatched_model_reports_zero() -> None:
    """A model without batch sizes reports 0."""
    model = build_model(
        FakeBackend(), inputs=[spec("x", "c", c=3)], outputs=[spec("y", "c", c=3)], sizes=[0]
    )

    assert model.effective_max_batch_size == 0


def test_model_that_cannot_be_padded_takes_compiled_row_counts_only() -> None:
    """A model with an answer over the whole batch refuses rows that it has no program for."""
    model = build_model(FakeBackend(), function="total", outputs=[spec("sum", "")], sizes=[1, 4])

    model.check_rows((), 4)
    with pytest.raises(BadRequest, match="send 1 or 4 rows"):
        model.check_rows((), 3)


def test_program_of_any_size_takes_any_rows() -> None:
    """Under size 0 every row count has a program."""
    build_model(FakeBackend(), sizes=[0]).check_rows((), 17)
