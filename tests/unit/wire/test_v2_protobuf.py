"""ModelInfer in protobuf: what is read, what is refused, and that tritonclient agrees."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tritonclient.grpc import InferResult
from tritonclient.grpc import service_pb2 as triton

from hloserve.core.dtypes import DTYPES, DType, by_kserve, by_token
from hloserve.core.errors import (
    BadRequest,
    DuplicateTensor,
    MalformedBody,
    TensorMismatch,
)
from hloserve.core.requests import (
    NEVER_NS,
    InferRequest,
    InferResponse,
    Placement,
    SharedTensor,
    SharedTensors,
)
from hloserve.core.tensors import Tensors
from hloserve.wire.v2_protobuf import (
    decode_infer_request,
    decode_infer_response,
    encode_infer_request,
    encode_infer_response,
)

KSERVE = [dtype for dtype in DTYPES if dtype.kserve]
TYPED = [dtype for dtype in KSERVE if dtype.contents_field]


def triton_request(*tensors: tuple[str, str, tuple[int, ...], bytes | None]) -> Any:
    """A request as tritonclient builds it: name, datatype, shape and raw bytes per input."""
    request = triton.ModelInferRequest(model_name="m")
    for name, datatype, shape, raw in tensors:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw is not None:
            request.raw_input_contents.append(raw)
    return request


def typed_request(datatype: str, shape: tuple[int, ...], field: str, values: list[Any]) -> bytes:
    """A request with one input `x` in typed contents."""
    request = triton_request(("x", datatype, shape, None))
    getattr(request.inputs[0].contents, field).extend(values)
    if not values:
        request.inputs[0].contents.SetInParent()
    return bytes(request.SerializeToString())


def decode(request: Any, now_ns: int = 0, deadline_ns: int = NEVER_NS) -> InferRequest:
    """Read a request of tritonclient's class."""
    return decode_infer_request(request.SerializeToString(), now_ns, deadline_ns)


def test_a_raw_request_is_read_with_everything_in_it() -> None:
    """Model, version, id, requested outputs in their order, arrays in numpy order."""
    request = triton_request(("x", "FP32", (2, 3), np.arange(6, dtype="f4").tobytes()))
    request.model_version, request.id = "3", "req-1"
    request.outputs.add(name="b")
    request.outputs.add(name="a")

    decoded = decode(request)

    assert (decoded.model, decoded.version, decoded.id) == ("m", "3", "req-1")
    assert decoded.outputs == ("b", "a")
    assert list(decoded.inputs) == ["x"]
    np.testing.assert_array_equal(decoded.inputs["x"], [[0, 1, 2], [3, 4, 5]])
    assert (decoded.deadline_ns, decoded.parameters) == (NEVER_NS, {})


def test_wire_shape_is_numpy_shape_for_every_element() -> None:
    """No axis is moved: element [n,c,h,w] on the wire is element [n,c,h,w] of the array."""
    array = np.arange(2 * 3 * 4 * 5, dtype=np.int32).reshape(2, 3, 4, 5)
    flat = [int(array[n, c, h, w]) for n, c, h, w in np.ndindex(2, 3, 4, 5)]
    raw = b"".join(value.to_bytes(4, "little") for value in flat)

    decoded = decode(triton_request(("x", "INT32", (2, 3, 4, 5), raw)))

    np.testing.assert_array_equal(decoded.inputs["x"], array)


@pytest.mark.parametrize("dtype", KSERVE, ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (1,)], ids=str)
def test_every_datatype_survives_the_trip_to_the_server(
    dtype: DType, shape: tuple[int, ...]
) -> None:
    """What the client encodes the server decodes, bit for bit, FP16 and BF16 included."""
    array = np.ones(shape, dtype.numpy)

    decoded = decode_infer_request(encode_infer_request(InferRequest("m", {"x": array})), 0)

    assert decoded.inputs["x"].dtype == dtype.numpy
    assert decoded.inputs["x"].shape == shape
    assert decoded.inputs["x"].tobytes() == array.tobytes()


def test_64_bit_values_are_exact() -> None:
    """2**40 stays 2**40, raw and typed."""
    raw = triton_request(("x", "INT64", (1,), np.array([2**40]).tobytes()))
    typed = typed_request("UINT64", (1,), "uint64_contents", [2**64 - 1])

    assert decode(raw).inputs["x"][0] == 2**40
    assert decode_infer_request(typed, 0).inputs["x"][0] == np.uint64(2**64 - 1)


@pytest.mark.parametrize("nbytes", [8, 65536])
def test_inputs_are_read_only_views_of_the_message(nbytes: int) -> None:
    """A large input is not copied out of the message; no input can be written to."""
    body = triton_request(("x", "UINT8", (nbytes,), bytes(nbytes))).SerializeToString()

    array = decode_infer_request(body, 0).inputs["x"]

    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(body, np.uint8)) is (nbytes > 16384)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("rows", [1, 5000])
def test_the_body_may_be_any_buffer(kind: Any, rows: int) -> None:
    """The transport hands over bytes, the buffer a message was assembled in, or a view."""
    array = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    body = kind(encode_infer_request(InferRequest("m", {"x": array}, id="7", outputs=("y",))))

    decoded = decode_infer_request(body, 0)

    assert (decoded.model, decoded.id, decoded.outputs) == ("m", "7", ("y",))
    np.testing.assert_array_equal(decoded.inputs["x"], array)


@pytest.mark.parametrize("dtype", TYPED, ids=str)
def test_typed_contents_are_read(dtype: DType) -> None:
    """Every datatype with a typed field is read from it, row-major."""
    assert dtype.contents_field is not None
    values = [bool(i % 2) if dtype.token == "bool" else i for i in range(6)]

    body = typed_request(dtype.kserve or "", (2, 3), dtype.contents_field, values)
    array = decode_infer_request(body, 0).inputs["x"]

    assert array.dtype == dtype.numpy
    np.testing.assert_array_equal(array, np.array(values, dtype.numpy).reshape(2, 3))


def test_typed_scalars_and_empty_tensors_are_read() -> None:
    """Rank 0 is one element; a tensor without elements needs no contents at all."""
    scalar = decode_infer_request(typed_request("FP64", (), "fp64_contents", [2.5]), 0)
    empty = decode_infer_request(typed_request("FP32", (0, 3), "fp32_contents", []), 0)
    bare = decode(triton_request(("x", "FP32", (0, 3), None)))

    assert scalar.inputs["x"].shape == ()
    assert scalar.inputs["x"] == 2.5
    assert empty.inputs["x"].shape == bare.inputs["x"].shape == (0, 3)


@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [
        ("INT8", "int_contents", 300),
        ("INT8", "int_contents", -129),
        ("INT16", "int_contents", 2**15),
        ("UINT8", "uint_contents", 256),
        ("UINT16", "uint_contents", 2**16),
    ],
)
def test_typed_values_out_of_range_are_refused(datatype: str, field: str, value: int) -> None:
    """A value that does not fit its datatype is refused with its place, not wrapped."""
    body = typed_request(datatype, (3,), field, [0, 1, value])

    with pytest.raises(BadRequest, match=rf"input 'x': element 2 is {value}, .*{datatype}"):
        decode_infer_request(body, 0)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_typed_counts_must_match_the_shape(count: int) -> None:
    """Too few and too many values are refused with both counts."""
    body = typed_request("FP32", (2, 2), "fp32_contents", [1.0] * count)

    with pytest.raises(TensorMismatch, match="input 'x'") as caught:
        decode_infer_request(body, 0)

    assert (caught.value.expected, caught.value.got) == (4, count)


def test_values_in_the_wrong_typed_field_are_refused() -> None:
    """FP32 values are read from fp32_contents only, and the message names that field."""
    with pytest.raises(TensorMismatch, match="fp32_contents"):
        decode_infer_request(typed_request("FP32", (1,), "fp64_contents", [1.0]), 0)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_have_no_typed_contents(datatype: str) -> None:
    """The message says where to put their bytes."""
    body = typed_request(datatype, (1,), "fp32_contents", [1.0])

    with pytest.raises(BadRequest, match=rf"input 'x': {datatype} .*raw_input_contents"):
        decode_infer_request(body, 0)


@pytest.mark.parametrize(
    ("datatype", "text"),
    [("STRING", "'STRING'"), ("FP8", "'FP8'"), ("", "''"), ("fp32", "fp32")],
)
def test_unknown_datatypes_are_refused_with_the_known_ones(datatype: str, text: str) -> None:
    """V2's names, exactly."""
    with pytest.raises(BadRequest, match=f"input 'x': .*{text}.*FP32"):
        decode(triton_request(("x", datatype, (1,), b"1234")))


@pytest.mark.parametrize(
    "shape",
    [(2**30, 2**30), (2**62, 2**62), (1, 2**62), (-4,), (0, 2**62, 2**62), (1,) * 65],
    ids=lambda shape: f"{shape[0]}x{len(shape)}",
)
@pytest.mark.parametrize("is_raw", [True, False], ids=["raw", "typed"])
def test_hostile_shapes_are_refused_before_allocation(shape: tuple[int, ...], is_raw: bool) -> None:
    """A shape that the bytes cannot fill is an error that names the input."""
    request = triton_request(("x", "FP32", shape, b"1234" if is_raw else None))
    if not is_raw:
        request.inputs[0].contents.fp32_contents.append(1.0)

    with pytest.raises(BadRequest, match="input 'x'"):
        decode(request)


def test_a_request_needs_a_model_name() -> None:
    """Without one it is refused, whatever else is in it."""
    for body in (b"", triton.ModelInferRequest(id="1").SerializeToString()):
        with pytest.raises(BadRequest, match="set model_name"):
            decode_infer_request(body, 0)


def test_duplicate_inputs_are_refused() -> None:
    """Two inputs of one name would hide one of them."""
    with pytest.raises(DuplicateTensor, match="input 'x'"):
        decode(triton_request(("x", "UINT8", (1,), b"1"), ("x", "UINT8", (1,), b"2")))


def test_duplicate_requested_outputs_are_refused() -> None:
    """An output can be asked for once."""
    request = triton_request(("x", "UINT8", (1,), b"1"))
    for name in ("a", "b", "a"):
        request.outputs.add(name=name)

    with pytest.raises(DuplicateTensor, match="output 'a'"):
        decode(request)


@pytest.mark.parametrize("entries", [1, 3])
def test_raw_contents_must_count_the_inputs(entries: int) -> None:
    """One entry per input; the message has both counts."""
    request = triton_request(("x", "UINT8", (1,), None), ("y", "UINT8", (1,), None))
    request.raw_input_contents.extend([b"1"] * entries)

    with pytest.raises(BadRequest, match=f"has {entries} entries for 2 inputs"):
        decode(request)


def test_raw_and_typed_contents_together_are_refused() -> None:
    """One input has one source."""
    request = triton_request(("x", "FP32", (1,), b"1234"))
    request.inputs[0].contents.fp32_contents.append(1.0)

    with pytest.raises(BadRequest, match="input 'x' has raw and typed contents"):
        decode(request)


def test_an_input_without_contents_is_refused() -> None:
    """The message says where to put them."""
    with pytest.raises(BadRequest, match="input 'x' has no contents; send raw_input_contents"):
        decode(triton_request(("x", "FP32", (1,), None)))


def _place(parameters: Any, region: str, offset: int, size: int) -> None:
    parameters["shared_memory_region"].string_param = region
    parameters["shared_memory_offset"].int64_param = offset
    parameters["shared_memory_byte_size"].int64_param = size


@pytest.mark.parametrize("has_all_entries", [True, False])
def test_shared_inputs_go_with_either_convention_of_raw_contents(has_all_entries: bool) -> None:
    """Raw contents are one per input, empty for those in shared memory, or one per other input."""
    request = triton_request(
        ("x", "UINT8", (1,), b"1"),
        ("s", "UINT8", (2,), b"" if has_all_entries else None),
        ("y", "UINT8", (1,), b"2"),
    )
    _place(request.inputs[1].parameters, "r", 4, 2)

    decoded = decode(request)

    assert decoded.shared is not None
    assert {"x": [49], "y": [50]} == {name: a.tolist() for name, a in decoded.inputs.items()}
    assert {"s": SharedTensor(by_token("u8"), (2,), Placement("r", 4, 2))} == decoded.shared.inputs


def test_request_of_shared_inputs_alone_needs_no_contents() -> None:
    """And is never taken for a repeat of another one."""
    request = triton_request(("s", "UINT8", (2,), None))
    _place(request.inputs[0].parameters, "r", 4, 2)

    for _ in range(4):
        decoded = decode(request)
        assert decoded.shared is not None
        assert not decoded.inputs


def test_shared_input_that_is_sent_too_is_refused() -> None:
    """One source per tensor."""
    request = triton_request(("s", "UINT8", (1,), b"1"))
    _place(request.inputs[0].parameters, "r", 0, 1)

    with pytest.raises(BadRequest, match="input 's' has contents and is in shared memory"):
        decode(request)


def test_wrong_count_of_raw_contents_beside_shared_inputs_is_refused() -> None:
    """Neither convention fits; the message says what would."""
    request = triton_request(
        ("s", "UINT8", (1,), b"1"), ("x", "UINT8", (1,), b"1"), ("y", "UINT8", (1,), None)
    )
    _place(request.inputs[0].parameters, "r", 0, 1)
    request.raw_input_contents.pop()

    with pytest.raises(BadRequest, match="1 entries for 2 inputs that is not in shared memory"):
        decode(request)


@pytest.mark.parametrize("times", [1, 4])
def test_outputs_in_shared_memory_have_places(times: int) -> None:
    """However often the same message comes."""
    request = triton_request(("x", "UINT8", (1,), b"1"))
    _place(request.outputs.add(name="y").parameters, "r", 0, 9)
    request.outputs.add(name="z")

    decoded = [decode(request) for _ in range(times)][-1]

    assert decoded.shared is not None
    assert {"y": Placement("r", 0, 9)} == decoded.shared.outputs
    assert ("y", "z") == decoded.outputs


def test_placed_tensors_survive_the_round_trip() -> None:
    """What a client writes is what the server reads, and the other way round."""
    tensor = SharedTensor(by_token("f32"), (1, 2), Placement("r", 2**40, 8))
    shared = SharedTensors({"s": tensor}, {"y": Placement("q", 0, 4)})
    request = InferRequest("m", {"x": np.zeros(1, np.uint8)}, outputs=("y", "z"), shared=shared)
    outputs: Tensors = {"y": np.zeros((1, 2), np.float32), "z": np.ones(1, np.uint8)}

    read = decode_infer_request(encode_infer_request(request), 0)
    body = encode_infer_response(InferResponse("m", outputs, shared={"y": tensor}))
    answer = decode_infer_response(body)

    assert (shared, ("y", "z")) == (read.shared, read.outputs)
    assert {"y": tensor} == answer.shared
    assert {"z": [1]} == {name: array.tolist() for name, array in answer.outputs.items()}


def test_outputs_may_be_asked_for_as_classes() -> None:
    """The counts arrive by output, and a message like it is read anew each time."""
    classified = triton_request(("x", "UINT8", (1,), b"1"))
    classified.outputs.add(name="y").parameters["classification"].int64_param = 2

    assert [{"y": 2}] * 4 == [decode(classified).classes for _ in range(4)]
    classified.outputs.add(name="z").parameters["classification"].string_param = "2"
    with pytest.raises(BadRequest, match="output 'z': classification is '2'"):
        decode(classified)


def test_priorities_arrive() -> None:
    """Of any integer type of parameters; without one it is the usual one."""
    urgent = triton_request(("x", "UINT8", (1,), b"1"))
    urgent.parameters["priority"].uint64_param = 3

    assert [3] * 4 == [decode(urgent).priority for _ in range(4)]
    assert 10 == decode(triton_request(("x", "UINT8", (1,), b"1"))).priority


def test_other_tensor_parameters_are_ignored() -> None:
    """Parameters that ask for nothing here do no harm."""
    request = triton_request(("x", "UINT8", (1,), b"1"))
    request.inputs[0].parameters["binary_data_size"].int64_param = 1
    request.outputs.add(name="y").parameters["binary_data"].bool_param = True

    assert decode(request).outputs == ("y",)


def test_parameters_of_every_type_are_read() -> None:
    """Triton's double and uint64 included; one without a value is the empty string."""
    request = triton_request()
    for key, field, value in (
        ("b", "bool_param", True),
        ("i", "int64_param", -5),
        ("s", "string_param", "text"),
        ("d", "double_param", 1.5),
        ("u", "uint64_param", 2**64 - 1),
    ):
        setattr(request.parameters[key], field, value)
    request.parameters["none"].SetInParent()

    assert decode(request).parameters == {
        "b": True,
        "i": -5,
        "s": "text",
        "d": 1.5,
        "u": 2**64 - 1,
        "none": "",
    }


@pytest.mark.parametrize("field", ["int64_param", "uint64_param"])
def test_budgets_in_parameters_become_a_deadline(field: str) -> None:
    """Nanoseconds of ReactantServer and microseconds of Triton, whichever is earlier."""
    request = triton_request()
    setattr(request.parameters["reactant_timeout_ns"], field, 5000)
    setattr(request.parameters["timeout"], field, 3)

    assert decode(request, now_ns=100).deadline_ns == 3100
    assert decode(request, now_ns=100, deadline_ns=200).deadline_ns == 200
    assert decode(request).parameters == {}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_texts_that_are_not_utf8_are_malformed(number: int) -> None:
    """Bad bytes in a name never come back in an answer."""
    body = b"\x0a\x01m" + bytes([number << 3 | 2, 1]) + b"\xff"

    with pytest.raises(MalformedBody, match="UTF-8"):
        decode_infer_request(body, 0)


@pytest.mark.parametrize("number", [4, 5, 6])
def test_malformed_inner_messages_are_refused(number: int) -> None:
    """A parameter, an input and an output that are no messages are told apart."""
    body = b"\x0a\x01m" + bytes([number << 3 | 2, 3]) + b"\x0a\x01\xff"

    with pytest.raises(MalformedBody, match="protobuf"):
        decode_infer_request(body, 0)


def test_the_last_of_repeated_texts_counts() -> None:
    """As in every protobuf parser."""
    assert decode_infer_request(b"\x0a\x01a\x0a\x01b", 0).model == "b"


def test_unknown_fields_are_ignored() -> None:
    """A newer client may send fields that this server does not know."""
    body = triton_request(("x", "UINT8", (1,), b"1")).SerializeToString() + b"\xfa\x3e\x03abc"

    assert decode_infer_request(body, 0).inputs["x"].tolist() == [ord("1")]


def test_a_cached_announcement_does_not_leak_between_requests() -> None:
    """Two requests with equal announcements and different bytes get different arrays."""
    first, second = (
        decode(triton_request(("x", "UINT8", (2,), raw))).inputs["x"] for raw in (b"12", b"34")
    )

    assert (first.tobytes(), second.tobytes()) == (b"12", b"34")


def test_long_names_are_read_past_the_cache() -> None:
    """Names longer than what is cached work the same."""
    name = "x" * 1000
    request = triton_request((name, "UINT8", (1,), b"1"))
    request.outputs.add(name=name)

    decoded = decode(request)

    assert (list(decoded.inputs), decoded.outputs) == ([name], (name,))


def test_tritonclient_reads_our_response() -> None:
    """Model and id are echoed; outputs carry datatype, shape and raw bytes, in their order."""
    y = np.arange(6, dtype=np.float32).reshape(2, 3)
    body = encode_infer_response(
        InferResponse("m", {"y": y, "n": np.array(7, np.int64)}, id="req-1")
    )

    response = triton.ModelInferResponse.FromString(body)

    assert (response.model_name, response.model_version, response.id) == ("m", "", "req-1")
    assert [(t.name, t.datatype, list(t.shape)) for t in response.outputs] == [
        ("y", "FP32", [2, 3]),
        ("n", "INT64", []),
    ]
    assert list(response.raw_output_contents) == [y.tobytes(), (7).to_bytes(8, "little")]
    assert not response.parameters


def test_tritonclient_finds_an_output_beside_one_in_shared_memory() -> None:
    """It counts contents by the outputs before: one in shared memory has an empty entry."""
    y = np.arange(2, dtype=np.float32)
    shared = {"x": SharedTensor(by_token("f32"), (2,), Placement("r", 0, 8))}
    body = encode_infer_response(InferResponse("m", {"x": y, "y": y}, shared=shared))

    response = triton.ModelInferResponse.FromString(body)

    np.testing.assert_array_equal(y, InferResult(response).as_numpy("y"))
    assert [b"", y.tobytes()] == list(response.raw_output_contents)
    np.testing.assert_array_equal(y, decode_infer_response(body).outputs["y"])


def test_our_bytes_are_those_of_protobuf() -> None:
    """Fields stand in the order of their numbers, so the message is what protobuf would write."""
    response = InferResponse("m", {"y": np.zeros((1, 10), np.float32), "z": np.ones(300)}, "i", "2")
    request = InferRequest("m", {"x": np.zeros(3, np.int8)}, "i", "2", ("y", "z"))

    for body, kind in (
        (encode_infer_response(response), triton.ModelInferResponse),
        (encode_infer_request(request), triton.ModelInferRequest),
    ):
        assert kind.FromString(body).SerializeToString(deterministic=True) == body


def test_tritonclient_reads_our_request() -> None:
    """The client's request is what a Triton server expects."""
    request = InferRequest(
        "m",
        {"x": np.array([1, 2], ">i4"), "h": np.ones((2, 2), ml_dtypes.bfloat16).T},
        id="1",
        outputs=("y",),
        parameters={"b": True, "i": -1, "u": 2**63, "f": 0.5, "s": "t"},
    )

    parsed = triton.ModelInferRequest.FromString(encode_infer_request(request))

    assert [(t.name, t.datatype, list(t.shape)) for t in parsed.inputs] == [
        ("x", "INT32", [2]),
        ("h", "BF16", [2, 2]),
    ]
    assert parsed.raw_input_contents[0] == b"\1\0\0\0\2\0\0\0"
    assert [output.name for output in parsed.outputs] == ["y"]
    assert {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in parsed.parameters.items()
    } == request.parameters


@pytest.mark.parametrize("dtype", ["U3", "c8", "M8[s]", ml_dtypes.float8_e5m2], ids=str)
def test_arrays_without_a_datatype_cannot_be_sent(dtype: Any) -> None:
    """The message names the input and the dtype."""
    with pytest.raises(BadRequest, match=r"input 'x': arrays of dtype .* have no V2 datatype"):
        encode_infer_request(InferRequest("m", {"x": np.zeros(1, dtype)}))


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integers_beyond_64_bits_cannot_be_sent(value: int) -> None:
    """A parameter that no field holds is named."""
    with pytest.raises(BadRequest, match="parameter 'p'"):
        encode_infer_request(InferRequest("m", {}, parameters={"p": value}))


def test_messages_over_2_gib_are_not_made() -> None:
    """Tensors of 2 GiB together are refused before a byte is copied."""
    huge = np.broadcast_to(np.zeros((), np.uint8), (2**31,))

    with pytest.raises(
        BadRequest, match=r"outputs have more than 2 GiB .*'y' brings them to 2147483648"
    ):
        encode_infer_response(InferResponse("m", {"y": huge}))


def test_the_client_reads_typed_contents_of_other_servers() -> None:
    """Some V2 servers answer with typed contents."""
    response = triton.ModelInferResponse(model_name="m", id="1")
    output = response.outputs.add(name="y", datatype="INT32", shape=[2])
    output.contents.int_contents.extend([1, 2])

    decoded = decode_infer_response(response.SerializeToString())

    assert (decoded.model, decoded.id) == ("m", "1")
    np.testing.assert_array_equal(decoded.outputs["y"], np.array([1, 2], np.int32))


def test_an_answer_that_does_not_fit_itself_is_refused() -> None:
    """A server that answers an empty tensor for a shape of 4 elements is caught."""
    response = triton.ModelInferResponse(model_name="m")
    response.outputs.add(name="y", datatype="FP32", shape=[4])
    response.raw_output_contents.append(b"")

    with pytest.raises(TensorMismatch, match="output 'y'"):
        decode_infer_response(response.SerializeToString())


@pytest.mark.parametrize("dtype", KSERVE, ids=str)
def test_answers_keep_their_dtype(dtype: DType) -> None:
    """Every datatype comes back as the numpy dtype that it stands for."""
    array = np.ones((2, 2), dtype.numpy)

    outputs = decode_infer_response(encode_infer_response(InferResponse("m", {"y": array}))).outputs

    assert outputs["y"].dtype == by_kserve(dtype.kserve or "").numpy
    assert outputs["y"].tobytes() == array.tobytes()
