"""`hloserve status`: what is made of a server's words."""

import socket

import pytest

from hloserve.cli.main import run
from hloserve.cli.status import describe_server, print_status
from hloserve.core.errors import ModelNotReady, NotImplementedYet
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

    def __init__(self, *, is_ready: bool = True, has_statistics: bool = True) -> None:
        self._is_ready = is_ready
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
