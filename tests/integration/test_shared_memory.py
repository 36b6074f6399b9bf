"""System shared memory through tritonclient: HTTP and gRPC, blocking and asyncio."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from support.server_worker import RunningWorker, fake_program, rows, running_worker, write_scale
from support.shared_objects import mappings_of
from tritonclient.utils import InferenceServerException, shared_memory

from hloserve.bundle import IOSpec, write_bundle

pytestmark = pytest.mark.integration

_ROWS_BYTES = rows(1, 2).nbytes
_LARGE = (1, 3 * 2**20 + 5)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """A worker with shared memory, "scale" (y = 2x) and "large", an identity of 12 MB rows."""
    repository = tmp_path_factory.mktemp("models")
    write_scale(repository)
    kind = f"1x{_LARGE[1]}xf32"
    write_bundle(
        repository / "large",
        "large",
        [IOSpec("x", "f32", _LARGE, batch_axis=0)],
        [IOSpec("y", "f32", _LARGE, batch_axis=0)],
        {1: fake_program("identity", [kind], [kind])},
        {},
    )
    with running_worker(repository, settings={"shared_memory.enabled": True}) as running:
        yield running


def _address(worker: RunningWorker, way: str) -> str:
    addresses = worker.addresses
    return "{}:{}".format(*(addresses.http if way == "http" else addresses.grpc))


@contextmanager
def _clients(worker: RunningWorker, way: str) -> Iterator[tuple[ModuleType, Any]]:
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[way]
    client = module.InferenceServerClient(_address(worker, way))
    try:
        yield module, client
    finally:
        client.close()


@contextmanager
def _object(name: str, nbytes: int) -> Iterator[Any]:
    """A region of tritonclient, its key and name the same."""
    handle = shared_memory.create_shared_memory_region(name, name, nbytes, create_only=True)
    try:
        yield handle
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def _name(what: str) -> str:
    return f"hloserve-test-{os.getpid()}-{what}"


def _register(client: Any, name: str, nbytes: int) -> None:
    client.register_system_shared_memory(name, name, nbytes)


def _request(
    module: ModuleType, region: str, offset: int = 0, *, shape: tuple[int, ...] = (2, 4)
) -> tuple[Any, Any]:
    """An input x and an output y in one region: first x, behind it y."""
    nbytes = 4 * int(np.prod(shape))
    tensor = module.InferInput("x", list(shape), "FP32")
    tensor.set_shared_memory(region, nbytes, offset)
    output = module.InferRequestedOutput("y")
    output.set_shared_memory(region, nbytes, offset + nbytes)
    return tensor, output


def _statuses(client: Any, way: str) -> dict[str, tuple[str, int]]:
    if way == "http":
        answer = client.get_system_shared_memory_status()
        return {region["name"]: (region["key"], region["byte_size"]) for region in answer}
    regions = client.get_system_shared_memory_status().regions
    return {name: (region.key, region.byte_size) for name, region in regions.items()}


@pytest.mark.parametrize("offset", [0, 16, 4096])
@pytest.mark.parametrize("way", ["http", "grpc"])
def test_tensors_go_through_shared_memory_both_ways(
    worker: RunningWorker, way: str, offset: int
) -> None:
    """The answer has no contents; the bytes are in the region, and nowhere else in it."""
    name, nbytes = _name("both"), offset + 2 * _ROWS_BYTES + 8
    with _clients(worker, way) as (module, client), _object(name, nbytes) as handle:
        shared_memory.set_shared_memory_region(handle, [np.full(nbytes, 9, np.uint8)])
        shared_memory.set_shared_memory_region(handle, [rows(1, 2)], offset)
        _register(client, name, nbytes)

        tensor, output = _request(module, name, offset)
        answer = client.infer("scale", [tensor], outputs=[output])

        # Over REST Triton does not repeat the place: its client would look for binary data.
        assert (name in str(answer.get_output("y"))) is (way == "grpc")
        y = shared_memory.get_contents_as_numpy(
            handle, np.float32, [2, 4], offset=offset + _ROWS_BYTES
        )
        np.testing.assert_array_equal(rows(2, 4), y)
        rest = shared_memory.get_contents_as_numpy(handle, np.uint8, [nbytes])
        assert {9} == {*rest[:offset].tolist(), *rest[-8:].tolist()}
        client.unregister_system_shared_memory(name)


@pytest.mark.parametrize("way", ["http", "grpc"])
def test_large_tensors_go_through_in_pieces(worker: RunningWorker, way: str) -> None:
    """Of a size that is no multiple of anything."""
    name, nbytes = _name("large"), 2 * 4 * _LARGE[1]
    x = np.arange(_LARGE[1], dtype=np.float32).reshape(_LARGE)
    with _clients(worker, way) as (module, client), _object(name, nbytes) as handle:
        shared_memory.set_shared_memory_region(handle, [x])
        _register(client, name, nbytes)

        tensor, output = _request(module, name, shape=_LARGE)
        client.infer("large", [tensor], outputs=[output])

        y = shared_memory.get_contents_as_numpy(handle, np.float32, _LARGE, offset=x.nbytes)
        np.testing.assert_array_equal(x, y)
        client.unregister_system_shared_memory(name)


@pytest.mark.parametrize("way", ["http", "grpc"])
def test_regions_are_listed_until_they_are_unregistered(worker: RunningWorker, way: str) -> None:
    """One by one, or all at once; unknown names do no harm."""
    first, second = _name("first"), _name("second")
    with (
        _clients(worker, way) as (_, client),
        _object(first, 64),
        _object(second, 128),
    ):
        client.unregister_system_shared_memory()
        _register(client, first, 64)
        _register(client, second, 128)
        _register(client, second, 100)  # replaces

        assert {first: (first, 64), second: (second, 100)} == _statuses(client, way)

        client.unregister_system_shared_memory(first)
        client.unregister_system_shared_memory("unknown")
        assert {second: (second, 100)} == _statuses(client, way)

        _register(client, first, 64)
        client.unregister_system_shared_memory()
        assert {} == _statuses(client, way)
        assert [1, 1] == [mappings_of(first), mappings_of(second)]


@pytest.mark.parametrize("way", ["http", "grpc"])
def test_region_that_was_unregistered_is_not_found(worker: RunningWorker, way: str) -> None:
    """The message is what clients look for before they register again."""
    name = _name("gone")
    with _clients(worker, way) as (module, client), _object(name, 64):
        _register(client, name, 64)
        client.unregister_system_shared_memory(name)

        tensor, _ = _request(module, name)
        with pytest.raises(InferenceServerException, match="unregistered shared memory region"):
            client.infer("scale", [tensor])


def test_asyncio_clients_use_shared_memory_too(worker: RunningWorker) -> None:
    """HTTP and gRPC, many requests at once, each with a place of its own."""

    async def ask(module: Any, address: str, name: str) -> None:
        client = module.InferenceServerClient(address)
        try:
            await client.register_system_shared_memory(name, name, 16 * 2 * _ROWS_BYTES)
            pairs = [_request(module, name, i * 2 * _ROWS_BYTES) for i in range(16)]
            await asyncio.gather(
                *(client.infer("scale", [tensor], outputs=[output]) for tensor, output in pairs)
            )
            await client.unregister_system_shared_memory(name)
        finally:
            await client.close()

    for way, module in (("http", tritonclient.http.aio), ("grpc", tritonclient.grpc.aio)):
        name = _name(f"aio-{way}")
        with _object(name, 16 * 2 * _ROWS_BYTES) as handle:
            for i in range(16):
                shared_memory.set_shared_memory_region(
                    handle, [rows(i, i + 0.5)], i * 2 * _ROWS_BYTES
                )
            asyncio.run(ask(module, _address(worker, way), name))
            for i in range(16):
                y = shared_memory.get_contents_as_numpy(
                    handle, np.float32, [2, 4], offset=(2 * i + 1) * _ROWS_BYTES
                )
                np.testing.assert_array_equal(rows(2 * i, 2 * i + 1), y)


def _in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  # the main thread raises it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_500_regions_come_and_go_under_requests(worker: RunningWorker) -> None:
    """A request finds its region or is told that it is gone; nothing else happens, and no leak."""
    name = _name("cycles")
    is_over = threading.Event()
    outcomes: set[str] = set()

    def cycle(client: Any) -> None:
        for _ in range(500):
            _register(client, name, 2 * _ROWS_BYTES)
            client.unregister_system_shared_memory(name)
        is_over.set()

    def ask(number: int) -> None:
        way = "http" if number == 1 else "grpc"
        with _clients(worker, way) as (module, client):
            if number == 0:
                cycle(client)
            while not is_over.is_set():
                tensor, output = _request(module, name)
                try:
                    client.infer("scale", [tensor], outputs=[output])
                    outcomes.add("served")
                except InferenceServerException as error:
                    is_gone = "unregistered shared memory region" in str(error)
                    outcomes.add("gone" if is_gone else str(error))

    with _object(name, 2 * _ROWS_BYTES) as handle:
        shared_memory.set_shared_memory_region(handle, [rows(1, 2)])
        _in_threads(3, ask)

        assert {"served", "gone"} >= outcomes >= {"gone"}
        assert 1 == mappings_of(name)


_DOOMED = """
import sys, numpy as np, tritonclient.grpc as grpc
from tritonclient.utils import shared_memory
address, name, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
handle = shared_memory.create_shared_memory_region(name, name, 2 * nbytes, create_only=True)
client = grpc.InferenceServerClient(address)
client.register_system_shared_memory(name, name, 2 * nbytes)
tensor = grpc.InferInput("x", [1, nbytes // 4], "FP32")
tensor.set_shared_memory(name, nbytes)
output = grpc.InferRequestedOutput("y")
output.set_shared_memory(name, nbytes, nbytes)
for _ in range(4):
    client.async_infer("large", [tensor], lambda result, error: None, outputs=[output])
client.infer("large", [tensor], outputs=[output])
print("asking", flush=True)
while True:
    client.async_infer("large", [tensor], lambda result, error: None, outputs=[output])
"""


def test_killed_client_leaves_nothing_but_its_registration(worker: RunningWorker) -> None:
    """Its requests end; when its region is unregistered by somebody else, its memory is free."""
    name, nbytes = _name("killed"), 4 * _LARGE[1]
    program = [sys.executable, "-c", _DOOMED, _address(worker, "grpc"), name, str(nbytes)]
    with ExitStack() as cleanup:
        cleanup.callback(lambda: Path("/dev/shm", name).unlink(missing_ok=True))
        doomed = subprocess.Popen(program, stdout=subprocess.PIPE)
        with doomed:
            assert doomed.stdout is not None
            assert b"asking" in doomed.stdout.readline()
            doomed.send_signal(signal.SIGKILL)
        _, client = cleanup.enter_context(_clients(worker, "grpc"))

        client.unregister_system_shared_memory(name)  # waits for the requests that hold it

        assert 0 == mappings_of(name)
        memory = worker.worker.shared_memory
        assert 0 == worker.on_loop(lambda: memory.copied_bytes)
