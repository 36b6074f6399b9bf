"""`hloserve status`: what is made of a server's words."""

import socket
from dataclasses import replace

import pytest

from hloserve.cli.main import run
from hloserve.cli.status import describe_server, print_status
from hloserve.core.errors import ModelNotReady, NotImplementedYet
from hloserve.core.model_control import ControlStatus, Floor, ModelControlStatus
from hloserve.core.model_reports import Duration, ModelReport
from hloserve.core.requests import (
    ModelIndexEntry,
    ModelMetadata,
    ModelState,
    ServerMetadata,
    TensorMetadata,
)


class _FakeServer:
    """Answers like a client that is connected to a server with one good and one broken model."""

    def __init__(
        self,
        *,
        is_ready: bool = True,
        has_statistics: bool = True,
        device: ControlStatus | None = None,
    ) -> None:
        self._is_ready = is_ready
        self._device = device
        self._has_statistics = has_statistics

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata("hloserve", "0.1.0", ("binary_tensor_data",))

    def is_server_live(self) -> bool:
        return True

    def is_server_ready(self) -> bool:
        return self._is_ready

    def repository_index(self) -> tuple[ModelIndexEntry, ...]:
        return (
            ModelIndexEntry("digits", "1", ModelState.READY, ""),
            ModelIndexEntry("br\x1boken", "1", ModelState.FAILED, "no\nprogram"),
        )

    def model_metadata(self, model: str) -> ModelMetadata:
        if model != "digits":
            raise ModelNotReady(model, "its load failed")
        image, digit = (
            TensorMetadata("image", "UINT8", (-1, 8)),
            TensorMetadata("digit", "INT32", (-1,)),
        )
        return ModelMetadata(model, ("1",), "hloserve", (image,), (digit,), (1, 8))

    def model_statistics(self) -> tuple[ModelReport, ...]:
        if not self._has_statistics:
            raise NotImplementedYet("method ModelStatistics")
        some = Duration(1, 1)
        report = ModelReport(
            name="digits", version="1", last_inference_ms=1, inference_count=70,
            execution_count=5, success=Duration(60, 1), fail=Duration(3, 1), queue=some,
            compute_input=some, compute_infer=some, compute_output=some, batches=(), memory=(),
        )  # fmt: skip
        return (report,)

    @property
    def control(self) -> "_FakeControl":
        return _FakeControl(self._device)


class _FakeControl:
    """Tells of one model on a device, unless it is told not to."""

    def __init__(self, device: ControlStatus | None) -> None:
        self._device = device

    def status(self) -> ControlStatus:
        if self._device is None:
            raise NotImplementedYet("method ModelControlStatus")
        return self._device


DIGITS = ModelControlStatus(
    name="digits", floor=Floor.DEVICE, is_on_device=True, is_on_host=True, weight_bytes=2048,
    weight=2.5, queue_depth=4, compute_seconds=1.5, requests_served=60, dispatch_count=5,
    rows_served=70, padded_rows=80, requests_expired=1, requests_failed=0, max_batch_size=8,
    batch_input_name="image", batch_axis=1,
)  # fmt: skip
DEVICE = ControlStatus(
    residency_mode="externally_managed", discipline="fair", has_weight_cache=True,
    max_bytes=1 << 30, resident_bytes=1 << 29, pinned_bytes=1 << 20, scratch_bytes=0, loads=12,
    loaded_bytes=1 << 31, load_seconds=0.25, evictions=3, hits=99, compactions=0, models=(DIGITS,),
)  # fmt: skip


def test_counts_of_a_model_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests served and failed, and rows; a server without statistics has none."""
    with_counts, without = (
        describe_server(_FakeServer(has_statistics=has), "host:1") for has in (True, False)
    )

    print_status(with_counts)
    print_status(without)

    digits = with_counts["models"][0]
    assert (digits["requests_served"], digits["requests_failed"]) == (60, 3)
    assert (digits["rows_served"], digits["executions"]) == (70, 5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[-4:] == ["60", "3", "70", "-"]
    assert lines[6].split()[-4:] == ["-", "-", "-", "-"]


def test_server_and_models_are_described() -> None:
    """Every model of the index is there, with its tensors when it is loaded."""
    found = describe_server(_FakeServer(), "host:1")

    digits, broken = found["models"]
    assert (True, True) == (found["live"], found["ready"])
    assert [{"name": "image", "datatype": "UINT8", "shape": [-1, 8]}] == digits["inputs"]
    assert ([1, 8], []) == (digits["batch_sizes"], broken["batch_sizes"])
    assert ("UNAVAILABLE", "no\nprogram", []) == (
        broken["state"],
        broken["reason"],
        broken["inputs"],
    )


def test_status_is_one_line_per_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed status has the server's state and a row for each model, safe for a terminal."""
    print_status(describe_server(_FakeServer(is_ready=False), "host:1"))

    first, _, digits, broken = capsys.readouterr().out.splitlines()
    assert "hloserve 0.1.0 at host:1: live, not ready" == first
    assert "image UINT8(?, 8)" in digits
    assert "digit INT32(?)" in digits
    assert "  1,8  " in digits
    assert r"br\x1boken  UNAVAILABLE" in broken
    assert r"no\nprogram" in broken


def test_device_and_what_models_have_there_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, floors, shares, queues and time of the device, in a table of their own."""
    print_status(describe_server(_FakeServer(device=DEVICE), "host:1"))

    *_, blank, device, heads, digits = capsys.readouterr().out.splitlines()
    assert "" == blank
    assert (
        "device: fair, externally_managed, 512 MiB of 1 GiB of weights that come and go,"
        " 1 MiB pinned; loads: 12, waited for 0.250 s; evictions: 3, hits: 99" == device
    )
    assert heads.split() == [
        "MODEL", "SIZE", "FLOOR", "RESIDENT", "WEIGHT", "QUEUED", "EXECUTIONS", "ROWS", "PADDING",
        "COMPUTE",
    ]  # fmt: skip
    assert "digits 2 KiB device device, host 2.5 4 5 70 10 1.500 s" == " ".join(digits.split())


def test_device_without_a_weight_cache_has_all_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no budget to tell of, and weights that are nowhere are told as well."""
    nowhere = replace(DIGITS, is_on_device=False, is_on_host=False)
    device = replace(DEVICE, has_weight_cache=False, models=(nowhere,))
    print_status(describe_server(_FakeServer(device=device), "host:1"))

    *_, line, _, digits = capsys.readouterr().out.splitlines()
    assert "device: fair, all weights are on it" == line
    assert "device  no  " in digits


def test_device_is_told_as_json() -> None:
    """For scripts: the device, and its part of each model that is loaded."""
    found = describe_server(_FakeServer(device=DEVICE), "host:1")

    assert ("fair", "externally_managed", 1 << 30) == (
        found["device"]["discipline"],
        found["device"]["residency_mode"],
        found["device"]["weights_max_bytes"],
    )
    digits, broken = found["models"]
    assert ("device", True, True, 2048) == (
        digits["floor"],
        digits["on_device"],
        digits["on_host"],
        digits["weight_bytes"],
    )
    assert (2.5, 4, 1.5, 80) == (
        digits["weight"],
        digits["queue_depth"],
        digits["compute_seconds"],
        digits["padded_rows"],
    )
    assert "floor" not in broken


def test_server_without_control_is_described_without_a_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another server's models are shown all the same."""
    found = describe_server(_FakeServer(), "host:1")
    print_status(found)

    assert found["device"] is None
    assert "device:" not in capsys.readouterr().out


def test_server_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Asking where nothing listens ends with status 1 and a message that names the address."""
    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"

        assert 1 == run(["status", "--url", address])

    assert address in capsys.readouterr().err


def test_address_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """An address without a port, or a URL of another protocol, is told as such."""
    assert 1 == run(["status", "--url", "nowhere"])
    assert "error: " in capsys.readouterr().err
