"""Reading the weights of a loaded model again."""

import os
from pathlib import Path

import pytest
from support.engine_residency import UNIT_BYTES, numbers, write_weights
from typing_extensions import override

from hloserve.bundle.weights import WeightsFile, WeightTensor
from hloserve.core.errors import WeightsProblem
from hloserve.engine.residency.host_weights import HostCopy, PrivateStore, WeightsSource


def test_copies_are_independent_and_right(tmp_path: Path) -> None:
    """Each read has memory of its own, which goes when the copy is given back."""
    with WeightsFile.open(write_weights(tmp_path / "w", numbers(3), numbers(4, 2))) as weights:
        source = WeightsSource("m", weights, PrivateStore())
        first, second = source.read(), source.read()
        held = first.arrays[0]
        first.release(is_unused=True)

        assert [3, 4] == [array[0, 0] for array in second.arrays]
        assert 0 == held[0, 0], "its memory was given back"
        assert 3 * UNIT_BYTES == source.nbytes


def test_copy_that_a_transfer_still_reads_keeps_its_memory(tmp_path: Path) -> None:
    """It goes with the last reference."""
    with WeightsFile.open(write_weights(tmp_path / "w", numbers(3))) as weights:
        copy = WeightsSource("m", weights, PrivateStore()).read()
        held = copy.arrays[0]

        copy.release(is_unused=False)

        assert 3 == held[0, 0]


def test_file_that_is_written_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """Half of the old and half of the new would be weights that nobody has trained."""
    released: list[bool] = []

    class _Copy(HostCopy):
        arrays = ()

        @override
        def release(self, *, is_unused: bool) -> None:
            released.append(is_unused)

    class _Slow(PrivateStore):
        @override
        def acquire(self, model: str, weights: WeightsFile, token: str) -> HostCopy:
            os.utime(weights.path, ns=(1, 1))
            return _Copy()

    with WeightsFile.open(write_weights(tmp_path / "w", numbers(3))) as weights:
        source = WeightsSource("m", weights, _Slow())
        with pytest.raises(WeightsProblem, match="changed after the model was loaded"):
            source.read()

    assert [True] == released


def test_host_without_room_is_an_error_of_the_bundle(tmp_path: Path) -> None:
    """It names the bytes that are needed."""
    with WeightsFile.open(write_weights(tmp_path / "w", numbers(3))) as weights:
        (tensor,) = weights.arguments
        huge = WeightTensor("w", tensor.dtype, (2**58,), tensor.offset, 2**60)
        weights.arguments = (huge,)

        with pytest.raises(WeightsProblem, match=f"no room for {2**60} bytes"):
            WeightsSource("m", weights, PrivateStore()).read()
