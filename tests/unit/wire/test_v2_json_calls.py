"""V2 answers in JSON other than inference."""

import json
from dataclasses import replace

from hloserve.core.requests import (
    ModelIndexEntry,
    ModelMetadata,
    ModelState,
    ServerMetadata,
    TensorMetadata,
)
from hloserve.wire import v2_json as codec


def test_health_answers() -> None:
    """Health has the bodies of the specification."""
    assert codec.encode_live(True) == b'{"live":true}'
    assert codec.encode_ready(False) == b'{"ready":false}'
    assert codec.encode_model_ready('a"b', True) == b'{"name":"a\\"b","ready":true}'


def test_server_metadata() -> None:
    """Name, version, extensions."""
    got = json.loads(codec.encode_server_metadata(ServerMetadata("s", "1.0", ("a", "b"))))

    assert got == {"name": "s", "version": "1.0", "extensions": ["a", "b"]}


def test_model_metadata() -> None:
    """Tensors with their row-major shapes; versions are always there."""
    metadata = ModelMetadata(
        "m", (), "cpu", (TensorMetadata("x", "FP32", (-1, 3)),), (TensorMetadata("y", "I", ()),)
    )

    assert json.loads(codec.encode_model_metadata(metadata)) == {
        "name": "m",
        "versions": [],
        "platform": "cpu",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "I", "shape": []}],
    }
    batched = replace(metadata, batch_sizes=(1, 8))
    assert [1, 8] == json.loads(codec.encode_model_metadata(batched))["batch_sizes"]


def test_index() -> None:
    """The index is a bare array of models with their states."""
    entries = [ModelIndexEntry("m", "", ModelState.FAILED, "broken")]

    assert json.loads(codec.encode_index(entries)) == [
        {"name": "m", "version": "", "state": "UNAVAILABLE", "reason": "broken"}
    ]


def test_error() -> None:
    """Every error has one member."""
    assert codec.encode_error("no") == b'{"error":"no"}'
