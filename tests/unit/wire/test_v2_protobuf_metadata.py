"""Health, metadata and repository messages: tritonclient reads ours, we read tritonclient's."""

from collections.abc import Callable

import pytest
from tritonclient.grpc import service_pb2 as triton

from hloserve.core.errors import MalformedBody
from hloserve.core.requests import (
    ModelIndexEntry,
    ModelMetadata,
    ModelState,
    ServerMetadata,
    TensorMetadata,
)
from hloserve.wire import v2_protobuf_metadata as calls

METADATA = ModelMetadata(
    "m",
    ("1", "2"),
    "cpu",
    (TensorMetadata("x", "FP32", (-1, 3)), TensorMetadata("n", "INT64", ())),
    (TensorMetadata("y", "BF16", (-1,)),),
    (1, 8, 32),
)


@pytest.mark.parametrize("value", [True, False])
def test_health_answers_cross_both_ways(value: bool) -> None:
    """Live, ready and model ready are one bool each."""
    live = calls.encode_server_live(is_live=value)
    ready = calls.encode_server_ready(is_ready=value)
    model = calls.encode_model_ready(is_ready=value)

    assert triton.ServerLiveResponse.FromString(live).live is value
    assert triton.ServerReadyResponse.FromString(ready).ready is value
    assert triton.ModelReadyResponse.FromString(model).ready is value
    assert calls.decode_server_live(live) is value
    assert calls.decode_server_ready(ready) is value
    assert calls.decode_model_ready(model) is value


def test_model_names_cross_both_ways() -> None:
    """A readiness or metadata request names a model and perhaps a version."""
    theirs = triton.ModelReadyRequest(name="m", version="2").SerializeToString()

    assert calls.decode_model_ready_request(theirs) == ("m", "2")
    assert calls.decode_model_metadata_request(theirs) == ("m", "2")
    assert calls.encode_model_ready_request("m", "2") == theirs
    assert calls.encode_model_metadata_request("m", "2") == theirs
    assert calls.decode_model_ready_request(calls.encode_model_ready_request("m")) == ("m", "")


def test_server_metadata_crosses_both_ways() -> None:
    """Name, version and extensions in their order."""
    metadata = ServerMetadata("hloserve", "0.1.0", ("binary_tensor_data", "parameters"))
    body = calls.encode_server_metadata(metadata)

    theirs = triton.ServerMetadataResponse.FromString(body)

    assert (theirs.name, theirs.version) == ("hloserve", "0.1.0")
    assert list(theirs.extensions) == ["binary_tensor_data", "parameters"]
    assert calls.decode_server_metadata(body) == metadata


def test_model_metadata_crosses_both_ways() -> None:
    """Open axes are -1, a scalar has an empty shape, the platform is passed through."""
    body = calls.encode_model_metadata(METADATA)

    theirs = triton.ModelMetadataResponse.FromString(body)

    assert (theirs.name, list(theirs.versions), theirs.platform) == ("m", ["1", "2"], "cpu")
    assert [(t.name, t.datatype, list(t.shape)) for t in theirs.inputs] == [
        ("x", "FP32", [-1, 3]),
        ("n", "INT64", []),
    ]
    assert [(t.name, t.datatype, list(t.shape)) for t in theirs.outputs] == [("y", "BF16", [-1])]
    assert calls.decode_model_metadata(body) == METADATA


def test_repository_index_crosses_both_ways() -> None:
    """Names, states and the reason why a model is not ready."""
    models = (
        ModelIndexEntry("a", "", ModelState.READY, ""),
        ModelIndexEntry("b", "", ModelState.FAILED, "weights are missing"),
        ModelIndexEntry("c", "1", ModelState.LOADING, "compiling"),
    )
    body = calls.encode_repository_index(models)

    theirs = triton.RepositoryIndexResponse.FromString(body)

    assert [(m.name, m.version, m.state, m.reason) for m in theirs.models] == [
        ("a", "", "READY", ""),
        ("b", "", "UNAVAILABLE", "weights are missing"),
        ("c", "1", "LOADING", "compiling"),
    ]
    assert calls.decode_repository_index(body) == models


def test_states_of_other_servers_count_as_not_served() -> None:
    """A state that has no name here is never taken for READY."""
    response = triton.RepositoryIndexResponse()
    response.models.add(name="m", state="UNLOADING")

    (entry,) = calls.decode_repository_index(response.SerializeToString())

    assert entry.state is ModelState.FAILED


@pytest.mark.parametrize("is_ready_only", [True, False])
def test_index_requests_cross_both_ways(is_ready_only: bool) -> None:
    """`ready` filters; the repository's name is ignored."""
    theirs = triton.RepositoryIndexRequest(repository_name="any", ready=is_ready_only)

    assert calls.decode_repository_index_request(theirs.SerializeToString()) is is_ready_only
    assert (
        calls.decode_repository_index_request(calls.encode_repository_index_request(is_ready_only))
        is is_ready_only
    )
    assert calls.decode_repository_index_request(b"") is False


@pytest.mark.parametrize(
    "decode",
    [
        calls.decode_model_ready_request,
        calls.decode_model_metadata_request,
        calls.decode_repository_index_request,
        calls.decode_model_metadata,
        calls.decode_server_live,
    ],
    ids=lambda decode: decode.__name__,
)
@pytest.mark.parametrize("body", [b"\x0a\x05a", b"\x0b", b"\x0a\x01\xff"], ids=repr)
def test_bodies_that_are_no_message_are_malformed(
    decode: Callable[[bytes], object], body: bytes
) -> None:
    """Truncated bodies, groups and names that are not UTF-8 are the caller's fault."""
    if body == b"\x0a\x01\xff" and decode is calls.decode_server_live:
        assert decode(body) is False  # an unknown field, and skipped as such
        return

    with pytest.raises(MalformedBody, match="is not a valid"):
        decode(body)


def test_requests_are_read_from_any_buffer() -> None:
    """The transport may hand over a bytearray or a view."""
    body = calls.encode_model_ready_request("m")

    assert calls.decode_model_ready_request(bytearray(body)) == ("m", "")
    assert calls.decode_model_ready_request(memoryview(body)) == ("m", "")
