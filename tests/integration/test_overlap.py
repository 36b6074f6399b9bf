"""A worker on a device that runs ahead, from its ports to its end.

The device is fake, and the worker a thread of this process.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.server_worker import RunningWorker, running_worker, write_scale

from hloserve import Client
from hloserve.core.errors import Unavailable
from hloserve.core.tensors import Array
from hloserve.engine.fake_backend import FakeBackend


@pytest.fixture
def backend(caplog: pytest.LogCaptureFixture) -> Iterator[FakeBackend]:
    """A device that executes on a thread of its own."""
    caplog.set_level(logging.CRITICAL + 1, logger="hloserve")
    backend = FakeBackend(runs_ahead=True)
    yield backend
    backend.close()


def _rows(value: float) -> dict[str, Array]:
    return {"x": np.full((1, 4), value, np.float32)}


@pytest.mark.parametrize(("wish", "expected"), [("auto", 2), (3, 3)])
def test_as_many_dispatches_are_in_flight_as_the_settings_say(
    tmp_path: Path, backend: FakeBackend, wish: object, expected: int
) -> None:
    """And each caller has its own answer."""
    write_scale(tmp_path, sizes=[1])
    settings = {"runtime.dispatches_in_flight": wish}
    with running_worker(tmp_path, backend, settings) as worker:
        backend.gate.close()
        address = "{}:{}".format(*worker.addresses.grpc)
        loaded = backend.transfer_gate.arrivals
        with ThreadPoolExecutor(8) as callers, Client(address) as client:
            answers = [callers.submit(client.infer, "scale", _rows(i)) for i in range(8)]
            while worker.on_loop(lambda: worker.worker.inference.in_flight) < 8:
                pass
            for ended in range(1, 8):
                backend.gate.let_through()
                backend.transfer_gate.wait_for_arrivals(loaded + min(8, ended + expected))
            backend.gate.open()
            values = [float(answer.result()["y"][0, 0]) for answer in answers]

    assert values == [2.0 * i for i in range(8)]
    assert backend.most_in_flight == expected


def test_worker_whose_device_is_lost_sends_its_callers_elsewhere_and_ends_with_status_1(
    tmp_path: Path, backend: FakeBackend
) -> None:
    """Its supervisor starts another one."""
    write_scale(tmp_path, sizes=[1])
    worker = RunningWorker(tmp_path, backend, {})
    with Client("{}:{}".format(*worker.addresses.grpc)) as client:
        assert client.infer("scale", _rows(1))["y"][0, 0] == 2
        backend.is_lost = True
        with pytest.raises(Unavailable, match="the device is lost"):
            client.infer("scale", _rows(1))

    assert worker.join() == 1
