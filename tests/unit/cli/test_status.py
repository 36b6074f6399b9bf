"""`hloserve status`: what is made of a server's words."""

import socket

import pytest

from hloserve.cli.main import run
from hloserve.cli.status import describe_server, print_status
from hloserve.core.errors import ModelNotReady
from hloserve.core.requests import (
    ModelIndexEntry,
    ModelMetadata,
    ModelState,
    ServerMetadata,
    TensorMetadata,
)


class _FakeServer:
    """Answers like a client that is connected to a server with one good and one broken model."""

    def __init__(self, *, is_ready: bool = True) -> None:
        self._is_ready = is_ready

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
