"""Shared memory from the client's side, against a worker on the fake device."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.conformance_worker import write_identities
from support.server_worker import RunningWorker, running_worker

from hloserve.client import Client
from hloserve.core.dtypes import F32, U8
from hloserve.core.errors import BadRequest, HloserveError, NotPossibleNow
from hloserve.core.requests import Placement, SharedTensor
from hloserve.wire.shared_memory import SHARED_MEMORY_DIR


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """A worker of identity models, with shared memory."""
    repository = tmp_path_factory.mktemp("identities")
    write_identities(repository)
    with running_worker(repository, settings={"shared_memory.enabled": True}) as running:
        yield running


@pytest.fixture
def client(worker: RunningWorker) -> Iterator[Client]:
    """A client of it."""
    with Client("{}:{}".format(*worker.addresses.grpc)) as made:
        yield made


def _objects() -> set[str]:
    return {path.name for path in SHARED_MEMORY_DIR.glob(f"hloserve-{os.getpid()}-*")}


def test_arrays_go_in_and_out_through_memory_that_is_gone_afterwards(client: Client) -> None:
    """An input, an output, and both in the same call; then object and registration are removed."""
    before = _objects()
    with client.shared_memory(4096) as memory:
        x, y = memory.array((2, 3), np.float32), memory.array((4, 3), np.float32)
        x.array[...] = [[1, 2, 3], [4, 5, 6]]

        inline = client.infer("f32", {"x": x})
        placed = client.infer("f32", {"x": np.ones((3, 3), np.float32)}, into={"y": y})
        both = client.infer("f32", {"x": x}, into={"y": y})

        assert memory.name in {region.name for region in client.shared_memory_status()}
        assert {memory.name} == _objects() - before
        np.testing.assert_array_equal(x.array, inline["y"])
        assert (3, 3) == placed["y"].shape
        np.testing.assert_array_equal(x.array, both["y"])
        np.testing.assert_array_equal(x.array, y.array[:2])
        assert np.shares_memory(both["y"], y.array)

    assert before == _objects()
    assert memory.name not in {region.name for region in client.shared_memory_status()}
    assert 6 == both["y"][1, 2]


def test_shared_and_plain_inputs_go_together(client: Client) -> None:
    """Each as it was given."""
    with client.shared_memory(4096) as memory:
        shared = memory.copy([[1.0, 2.0, 3.0]]), memory.copy(np.full((1, 3), 7, np.float32))
        plain = np.ones((1, 3), np.float32)

        outputs = client.infer("two", {"a": plain, "b": shared[1]})
        swapped = client.infer("two", {"a": shared[1], "b": plain}, outputs=["sum"])

        assert [[8, 8, 8]] == outputs["sum"].tolist() == swapped["sum"].tolist()
        with pytest.raises(BadRequest, match="'a': datatype is FP64, expected FP32"):
            client.infer("two", {"a": shared[0], "b": plain})


def test_memory_is_registered_again_with_a_server_that_has_forgotten_it(
    worker: RunningWorker, client: Client
) -> None:
    """As one does that was started anew."""
    with client.shared_memory(4096) as memory:
        x = memory.copy(np.ones((1, 3), np.float32))
        worker.on_loop(worker.worker.shared_memory.close)

        assert [[1, 1, 1]] == client.infer("f32", {"x": x})["y"].tolist()


def test_memory_that_is_not_taken_leaves_no_object(tmp_path: Path) -> None:
    """A server that has shared memory off says so."""
    before = _objects()
    write_identities(tmp_path)
    with (
        running_worker(tmp_path) as worker,
        Client("{}:{}".format(*worker.addresses.grpc)) as client,
        pytest.raises(NotPossibleNow, match=r"shared_memory\.enabled"),
    ):
        client.shared_memory(4096)

    assert before == _objects()


def test_memory_ends_somewhere(client: Client) -> None:
    """What does not fit is refused, and does no harm to what is there."""
    with client.shared_memory(128) as memory:
        memory.array((3,), np.uint8)

        with pytest.raises(BadRequest, match="needs 65 bytes, 64 of 128 are free"):
            memory.array((65,), np.uint8)
        with pytest.raises(BadRequest, match="does not fit"):
            memory.array((-1,), np.uint8)
        with pytest.raises(BadRequest, match="dtype complex128 cannot be"):
            memory.array((1,), np.complex128)
        with pytest.raises(BadRequest, match="dtype object cannot be"):
            memory.copy(np.array(["text"], object))
        assert 0 == memory.array((64,), np.uint8).array.ctypes.data % 64
    memory.close()
    with pytest.raises(NotPossibleNow, match="closed"):
        memory.array((1,), np.uint8)
    with pytest.raises(BadRequest, match="0 bytes"):
        client.shared_memory(0)
    with pytest.raises(NotPossibleNow, match="cannot be made"):
        client.shared_memory(2**60)


def test_memory_that_is_forgotten_is_removed(client: Client) -> None:
    """Nobody closed it; its object does not stay behind."""
    before = _objects()
    memory = client.shared_memory(4096)
    assert before < _objects()

    del memory
    gc.collect()

    assert before == _objects()


@pytest.mark.parametrize(
    ("place", "shape"),
    [(("other", 0, 8), (2,)), ((None, 64, 8), (2,)), ((None, 0, 4), (2,)), ((None, 0, 64), (16,))],
)
def test_server_that_wrote_elsewhere_is_not_believed(
    client: Client, place: tuple[str | None, int, int], shape: tuple[int, ...]
) -> None:
    """No view is made of what was not written."""
    with client.shared_memory(4096) as memory:
        y = memory.array((2,), np.float32)
        region, offset, size = place
        told = Placement(memory.name if region is None else region, offset, size)

        with pytest.raises(HloserveError, match="output 'y': the server says"):
            y.view("y", SharedTensor(F32, shape, told))
        fine = SharedTensor(U8, (8,), Placement(memory.name, 0, 8))
        assert (8,) == y.view("y", fine).shape
