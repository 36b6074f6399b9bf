"""Rows laid together and cut apart."""

import numpy as np
import pytest
from support.engine_models import spec

from hloserve.core.dtypes import DTYPES, DType
from hloserve.core.errors import BackendFailed
from hloserve.core.tensors import Array
from hloserve.engine.assembly import (
    StagingArea,
    assemble,
    check_outputs,
    is_transferable,
    join_outputs,
    slice_rows,
    split_inputs,
)
from hloserve.engine.backend import ALIGNMENT_BYTES
from hloserve.engine.fake_backend import FakeBackend

X = spec("x", "nc", c=3)
LARGE = spec("x", "nc", c=4096)


def _rows(*values: int, width: int = 3) -> Array:
    return np.repeat(np.array(values, np.float32)[:, None], width, axis=1)


def _aligned(shape: tuple[int, ...], skew_bytes: int = 0) -> Array:
    staging = StagingArea()
    nbytes = int(np.prod(shape)) * 4
    raw = staging.take((nbytes + ALIGNMENT_BYTES,), np.dtype(np.uint8))
    array = raw[skew_bytes : skew_bytes + nbytes].view(np.float32).reshape(shape)
    array[...] = np.arange(array.size, dtype=np.float32).reshape(shape)
    return array


def test_requests_follow_each_other_and_zeros_follow_them() -> None:
    """Rows come in the order of the requests; the rest of the program is zeros."""
    (batch,) = assemble([X], [[_rows(1, 2)], [_rows(3)]], rows=3, size=4, staging=StagingArea())

    assert batch[:, 0].tolist() == [1, 2, 3, 0]


def test_rows_of_the_dispatch_before_do_not_show_in_the_padding() -> None:
    """Staging memory is used again, and what it held is gone."""
    staging = StagingArea()
    assemble([X], [[_rows(7, 7, 7)], [_rows(7)]], rows=4, size=4, staging=staging)

    (batch,) = assemble([X], [[_rows(1)]], rows=1, size=4, staging=staging)

    assert batch[:, 2].tolist() == [1, 0, 0, 0]


def test_each_input_is_joined_along_its_own_batch_axis() -> None:
    """Two inputs with the batch in different places are laid together each in its way."""
    specs = [X, spec("y", "hnw", h=2, w=2)]
    first = [_rows(1), np.full((2, 1, 2), 10, np.float32)]
    second = [_rows(2, 3), np.full((2, 2, 2), 20, np.float32)]

    x, y = assemble(specs, [first, second], rows=3, size=4, staging=StagingArea())

    assert x[:, 0].tolist() == [1, 2, 3, 0]
    assert y.shape == (2, 4, 2)
    assert y[1, :, 1].tolist() == [10, 20, 20, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_is_assembled(dtype: DType) -> None:
    """Rows of any element type keep their bits."""
    bits = np.arange(3 * dtype.itemsize, dtype=np.uint8) % 2
    row = bits.view(dtype.numpy).reshape(1, 3)

    (batch,) = assemble(
        [spec("x", "nc", dtype, c=3)], [[row], [row]], rows=2, size=4, staging=StagingArea()
    )

    assert dtype.numpy == batch.dtype
    assert bits.tobytes() * 2 + bytes(6 * dtype.itemsize) == batch.tobytes()


def test_everything_assembled_lies_where_the_device_takes_it() -> None:
    """Assembled inputs are contiguous and aligned, the second one too."""
    for batch in assemble(
        [X, X], [[_rows(1), _rows(2)]] * 3, rows=3, size=4, staging=StagingArea()
    ):
        assert is_transferable(batch)


def test_large_lone_request_that_fills_the_program_is_not_copied() -> None:
    """An aligned array of the right rows goes through as it is."""
    array = _aligned((2, 4096))

    (batch,) = assemble([LARGE], [[array]], rows=2, size=2, staging=StagingArea())

    assert batch is array


@pytest.mark.parametrize(
    "array",
    [
        _aligned((2, 4096), skew_bytes=4),
        _aligned((2, 8192))[:, ::2],
        _rows(1, 2, width=4096).copy("F"),
    ],
    ids=["misaligned", "strided", "fortran"],
)
def test_large_lone_request_that_lies_badly_is_copied(array: Array) -> None:
    """What the device would have to copy itself is copied into staging memory."""
    (batch,) = assemble([LARGE], [[array]], rows=2, size=2, staging=StagingArea())

    assert is_transferable(batch)
    assert not np.shares_memory(batch, array)
    np.testing.assert_array_equal(array, batch)


def test_lone_request_without_a_batch_axis_goes_as_it_is() -> None:
    """An unbatched input has its own shape, whatever size the program has."""
    scalar = np.array(5, np.float32)

    (batch,) = assemble([spec("x", "")], [[scalar]], rows=1, size=0, staging=StagingArea())

    assert batch.shape == ()
    assert batch == 5


def test_staging_memory_is_used_again() -> None:
    """A second dispatch of the same size takes no new memory."""
    staging = StagingArea()
    assemble([LARGE], [[_rows(1, width=4096)]] * 2, rows=2, size=4, staging=staging)
    capacity = staging.capacity_bytes

    assemble([LARGE], [[_rows(2, width=4096)]] * 2, rows=2, size=4, staging=staging)

    assert capacity == staging.capacity_bytes


def test_arrays_of_one_dispatch_do_not_overlap_when_the_area_grows() -> None:
    """Growing leaves what was handed out before in place."""
    staging = StagingArea()
    staging.start()
    taken = [staging.take((extent,), np.dtype(np.int64)) for extent in (1, 0, 100, 3, 5000, 7)]

    for number, array in enumerate(taken):
        array[...] = number

    for number, array in enumerate(taken):
        assert set(array.tolist()) <= {number}
        assert array.ctypes.data % ALIGNMENT_BYTES == 0 or array.size == 0


def test_each_caller_gets_views_of_its_own_rows() -> None:
    """Results are cut along the batch axis of each output, without copying."""
    specs = [spec("y", "nc", c=3), spec("z", "cn", c=2)]
    outputs = [_rows(1, 2, 3, 4), np.arange(8, dtype=np.float32).reshape(2, 4)]

    _, (y, z), _ = slice_rows(specs, outputs, rows=[1, 2, 1])

    assert y[:, 0].tolist() == [2, 3]
    assert z.tolist() == [[1, 2], [5, 6]]
    assert np.shares_memory(y, outputs[0])


def test_output_without_a_batch_axis_is_given_whole() -> None:
    """What belongs to the batch as a whole is not cut."""
    whole = np.arange(3, dtype=np.float32)

    first, second = slice_rows([spec("w", "c", c=3)], [whole], rows=[1, 2])

    assert first[0] is whole
    assert second[0] is whole


def test_declared_shapes_pass_the_check() -> None:
    """Results of the declared shapes go through; open axes take what the program gives."""
    check_outputs(
        "m",
        [spec("y", "nc", c=3), spec("z", "wn", w=-1)],
        [_rows(1, 2), np.zeros((17, 2), np.float32)],
        rows=2,
    )
    check_outputs("m", [spec("z", "n")], [np.zeros(9, np.float32)], rows=None)


@pytest.mark.parametrize(
    "outputs",
    [[], [_rows(1)], [_rows(1, 2, width=4)], [np.zeros(2, np.float32)]],
    ids=["missing", "too few rows", "wrong extent", "wrong rank"],
)
def test_result_of_another_shape_is_refused(outputs: list[Array]) -> None:
    """Wrong rows are never delivered; the error says what came."""
    with pytest.raises(BackendFailed, match=r"declared|came with shape"):
        check_outputs("m", [spec("y", "nc", c=3)], outputs, rows=2)


def test_split_and_join_give_the_request_back() -> None:
    """A request that is cut into parts and joined again is the same."""
    specs = [X, spec("y", "wn", w=2)]
    inputs = [_rows(*range(19)), np.arange(38, dtype=np.float32).reshape(2, 19)]

    parts = split_inputs(specs, inputs, rows=19, largest=8)

    assert [rows for rows, _ in parts] == [8, 8, 3]
    for whole, joined in zip(inputs, join_outputs(specs, [p for _, p in parts]), strict=True):
        np.testing.assert_array_equal(whole, joined)


def test_joining_one_part_copies_nothing() -> None:
    """The usual request, in one part, is passed on."""
    array = _rows(1)

    assert join_outputs([X], [[array]])[0] is array


def test_staging_memory_stays_pinned_until_the_dispatch_that_outgrew_it_has_ended() -> None:
    """A transfer may still read what the area has given out before it grew."""
    backend = FakeBackend()
    staging = StagingArea(backend)
    staging.start()
    first = staging.take((100,), np.dtype(np.uint8))
    second = staging.take((1000,), np.dtype(np.uint8))

    assert [_holds(memory, first, second) for memory in backend.pinned] == [
        [True, False],
        [False, True],
    ]
    staging.start()
    assert [_holds(memory, first, second) for memory in backend.pinned] == [[False, True]]
    staging.close()
    assert backend.pinned == []


def _holds(memory: Array, *arrays: Array) -> list[bool]:
    return [bool(np.shares_memory(memory, array)) for array in arrays]


def test_staging_memory_is_used_where_pinning_is_refused() -> None:
    """Then transfers are slower, and nothing else."""

    class Unpinned(FakeBackend):
        def pin(self, memory: Array) -> bool:
            return False

        def unpin(self, memory: Array) -> None:
            raise AssertionError("it was not pinned")

    staging = StagingArea(Unpinned())
    for nbytes in (10, 1000):
        staging.start()
        staging.take((nbytes,), np.dtype(np.uint8))[...] = 1
    staging.close()

    assert staging.capacity_bytes == 0
