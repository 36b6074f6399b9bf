"""The protobuf codec: round trips, agreement with protobuf's own parser, hostile bytes."""

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hloserve.core.dtypes import BYTES, DTYPES, by_token
from hloserve.core.errors import HloserveError, MalformedBody
from hloserve.core.requests import NEVER_NS, InferRequest, InferResponse
from hloserve.core.tensors import Array
from hloserve.wire.protobuf_fields import length_delimited, split_fields, varint
from hloserve.wire.protos import inference_pb2
from hloserve.wire.tensor_bytes import bytes_of
from hloserve.wire.v2_protobuf import (
    decode_infer_request,
    decode_infer_response,
    encode_infer_request,
    encode_infer_response,
)

dtypes = st.sampled_from([dtype for dtype in (*DTYPES, BYTES) if dtype.kserve])
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
texts = st.text(max_size=12)
names = st.text(min_size=1, max_size=12)
parameters = st.dictionaries(
    texts.filter(lambda key: key not in ("timeout", "reactant_timeout_ns", "priority")),
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=9),
    max_size=3,
)


@st.composite
def tensors(draw: st.DrawFn) -> Array:
    """An array of any wire datatype, any small shape, any bits or strings."""
    dtype, shape = draw(dtypes), draw(shapes)
    if dtype is BYTES:
        count = int(np.prod(shape, dtype=int))
        strings = np.empty(count, object)
        strings[:] = draw(st.lists(st.binary(max_size=20), min_size=count, max_size=count))
        return strings.reshape(shape)
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype is by_token("bool"):
        raw = bytes(byte & 1 for byte in raw)
    array: Array = np.ndarray(shape, dtype.numpy, bytearray(raw))
    return array.T if draw(st.booleans()) else array


def assert_same(sent: dict[str, Array], got: dict[str, Array]) -> None:
    """Names in order, dtypes, shapes and bits."""
    assert list(sent) == list(got)
    for name, array in sent.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert bytes(bytes_of(got[name])) == bytes(bytes_of(array))


@given(
    names,
    st.dictionaries(texts, tensors(), max_size=3),
    texts,
    texts,
    st.lists(names, max_size=3, unique=True).map(tuple),
    parameters,
)
def test_requests_round_trip(
    model: str,
    inputs: dict[str, Array],
    request_id: str,
    version: str,
    outputs: tuple[str, ...],
    given_parameters: dict[str, Any],
) -> None:
    """Whatever the client can say the server reads, and protobuf writes the same bytes."""
    request = InferRequest(model, inputs, request_id, version, outputs, parameters=given_parameters)

    body = encode_infer_request(request)
    decoded = decode_infer_request(body, 0)

    assert (decoded.model, decoded.id, decoded.version) == (model, request_id, version)
    assert (decoded.outputs, decoded.deadline_ns) == (outputs, NEVER_NS)
    assert decoded.parameters == given_parameters
    assert_same(inputs, decoded.inputs)
    parsed = inference_pb2.ModelInferRequest.FromString(body)
    assert len(parsed.SerializeToString()) == len(body)


@given(names, st.dictionaries(texts, tensors(), max_size=3), texts, texts)
def test_responses_round_trip(
    model: str, outputs: dict[str, Array], request_id: str, version: str
) -> None:
    """What the server answers the client reads, and protobuf writes the same bytes."""
    body = encode_infer_response(InferResponse(model, outputs, request_id, version))
    decoded = decode_infer_response(body)

    assert (decoded.model, decoded.id, decoded.version) == (model, request_id, version)
    assert_same(outputs, decoded.outputs)
    assert inference_pb2.ModelInferResponse.FromString(body).SerializeToString() == body


@given(
    st.sampled_from(["INT8", "INT16", "INT32", "UINT8", "UINT16", "UINT32", "INT64", "FP64"]),
    st.data(),
)
def test_typed_contents_are_exact_or_refused(datatype: str, data: st.DataObject) -> None:
    """No typed value changes on its way in: it arrives as it is, or is refused."""
    dtype = next(dtype for dtype in DTYPES if dtype.kserve == datatype)
    assert dtype.contents_field is not None
    wide = {"int_contents": "<i4", "uint_contents": "<u4"}.get(dtype.contents_field)
    values = data.draw(arrays.arrays(wide or dtype.numpy, st.integers(0, 5))).tolist()
    request = inference_pb2.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(tensor.contents, dtype.contents_field).extend(values)

    try:
        array = decode_infer_request(request.SerializeToString(), 0).inputs["x"]
    except HloserveError:
        limits = np.iinfo(dtype.numpy)
        assert any(not limits.min <= value <= limits.max for value in values)
    else:
        np.testing.assert_array_equal(array, np.array(values, dtype.numpy))


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_typed_strings_are_exact(values: list[bytes]) -> None:
    """bytes_contents arrive as they are."""
    request = inference_pb2.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype="BYTES", shape=[len(values)])
    tensor.contents.bytes_contents.extend(values)

    array = decode_infer_request(request.SerializeToString(), 0).inputs["x"]

    assert values == array.tolist()


records = st.one_of(
    st.builds(length_delimited, st.integers(1, 20), st.binary(max_size=20)),
    st.builds(
        lambda number, value: varint(number << 3) + varint(value),
        st.integers(1, 20),
        st.integers(0, 2**64 - 1),
    ),
    st.builds(
        lambda number, data: varint(number << 3 | 1) + data,
        st.integers(1, 20),
        st.binary(min_size=8, max_size=8),
    ),
    st.builds(
        lambda number, data: varint(number << 3 | 5) + data,
        st.integers(1, 20),
        st.binary(min_size=4, max_size=4),
    ),
    st.binary(max_size=6),
)


@given(st.lists(records, max_size=8).map(b"".join))
@example(b"\x8a\x00\x01a")  # a tag in more bytes than it needs
@example(b"\x0a\x80\x80\x80\x80\x00")  # so a length
def test_splitting_agrees_with_protobuf(body: bytes) -> None:
    """A message that protobuf refuses is refused; the fields of every other are protobuf's.

    Raw contents are of bytes, so protobuf's parser shows them as they came. Groups, which no V2
    message has, are the one thing that protobuf skips and we refuse.
    """
    fields, reason = None, ""
    try:
        fields = split_fields(body, 15)
    except MalformedBody as error:
        reason = error.reason
    try:
        parsed = inference_pb2.ModelInferRequest.FromString(body)
    except DecodeError:
        if fields is not None:  # only what is inside of a record can be wrong
            assert any(fields[number] for number in range(1, 7))
        return
    if fields is None:
        assert "wire type" in reason or "tag" in reason or "number" in reason
    else:
        assert [bytes(record) for record in fields[7] or []] == list(parsed.raw_input_contents)
        assert len(fields[5] or []) == len(parsed.inputs)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Hostile bodies raise our errors and nothing else, from server and from client code."""
    for decode in (lambda: decode_infer_request(body, 0), lambda: decode_infer_response(body)):
        try:
            decode()
        except HloserveError:
            continue


@given(st.dictionaries(names, tensors(), min_size=1, max_size=2), st.data())
def test_damaged_requests_are_read_or_refused(
    inputs: dict[str, Array], data: st.DataObject
) -> None:
    """A request with a byte changed, or cut anywhere, never escapes as another exception."""
    body = bytearray(encode_infer_request(InferRequest("m", inputs, "id", outputs=("y",))))
    index = data.draw(st.integers(0, len(body) - 1))
    body[index] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))

    for damaged in (bytes(body), bytes(body[:cut])):
        try:
            decoded = decode_infer_request(damaged, 0)
        except HloserveError:
            continue
        for array in decoded.inputs.values():
            assert array.nbytes <= len(damaged)
