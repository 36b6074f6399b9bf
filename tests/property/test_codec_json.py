"""V2 JSON: what is written reads back, and no bytes raise anything but our errors."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.rest_json import binary_body, binary_tensor, body_of, decode, tensor

from hloserve.core.dtypes import BYTES, DTYPES, DType
from hloserve.core.errors import BadRequest, HloserveError
from hloserve.core.requests import InferRequest, InferResponse
from hloserve.core.tensors import Array
from hloserve.wire.tensor_bytes import bytes_of
from hloserve.wire.v2_json import OutputForms, decode_raw_input, encode_infer_response

WIRE_DTYPES = [dtype for dtype in (*DTYPES, BYTES) if dtype.kserve is not None]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def _encoded(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """An array of any datatype that crosses the wire: any bit pattern, any text."""
    dtype: DType = draw(st.sampled_from(WIRE_DTYPES))
    shape = draw(SHAPES)
    count = int(np.prod(shape, dtype=int))
    if dtype is BYTES:
        strings = np.empty(count, object)
        strings[:] = draw(st.lists(st.text(), min_size=count, max_size=count).map(_encoded))
        return strings.reshape(shape)
    if dtype.token == "bool":
        values = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return np.array(values, np.bool_).reshape(shape)
    size = count * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    return np.frombuffer(data, dtype.numpy).reshape(shape)


def assert_same(expected: Array, got: Array) -> None:
    """Equal in dtype, shape and value; NaN equals NaN whatever its payload."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype.kind in "fV":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            wide, other = expected.astype(np.float64), got.astype(np.float64)
        np.testing.assert_array_equal(wide, other)
        is_number = ~np.isnan(wide)
        np.testing.assert_array_equal(np.signbit(wide)[is_number], np.signbit(other)[is_number])
    elif expected.dtype.hasobject:
        assert got.tolist() == expected.tolist()
    else:
        assert got.tobytes() == expected.tobytes()


def as_inputs(body: bytes, length: int | None) -> bytes:
    """Turn a response into the request that sends its outputs back."""
    cut = len(body) if length is None else length
    message = json.loads(body[:cut])
    return json.dumps({"inputs": message["outputs"]}).encode()


@given(st.lists(arrays(), max_size=3), st.booleans())
def test_json_reads_back(tensors: list[Array], nested: bool) -> None:
    """Every value of every datatype survives JSON, flat or nested."""
    outputs = {f"t{n}": array for n, array in enumerate(tensors)}
    body, _, length = encode_infer_response(
        InferResponse("m", outputs), OutputForms(non_finite="string")
    )
    assert length is None
    message = json.loads(body)
    if nested:
        for output in message["outputs"]:
            values = np.array(output["data"], object).reshape(output["shape"])
            output["data"] = values.tolist()

    request, _ = decode(json.dumps({"inputs": message["outputs"]}).encode())

    assert list(request.inputs) == list(outputs)
    for name, array in outputs.items():
        assert_same(array, request.inputs[name])


@given(st.lists(arrays(), max_size=3), st.lists(st.booleans(), min_size=3, max_size=3))
def test_binary_reads_back(tensors: list[Array], forms: list[bool]) -> None:
    """Binary and JSON outputs mix, and every bit of the binary ones survives."""
    outputs = {f"t{n}": array for n, array in enumerate(tensors)}
    is_binary = {f"t{n}": form for n, form in enumerate(forms)}
    chosen = OutputForms(is_binary=is_binary, non_finite="string")
    body, _, length = encode_infer_response(InferResponse("m", outputs), chosen)
    text = as_inputs(body, length)
    rest = b"" if length is None else body[length:]

    request, _ = decode(text + rest, str(len(text)))

    for name, array in outputs.items():
        if chosen.is_binary[name]:
            assert bytes(bytes_of(request.inputs[name])) == bytes(bytes_of(array))
        assert_same(array, request.inputs[name])


MEMBERS = st.sampled_from(
    [
        "inputs",
        "outputs",
        "name",
        "shape",
        "datatype",
        "data",
        "parameters",
        "id",
        "binary_data_size",
        "timeout",
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["FP32", "INT8", "BOOL", "BF16", "BYTES", "NaN", "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MEMBERS, inner, max_size=6),
    max_leaves=10,
)
TENSOR_LIKE = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "y"]) | JSON,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON,
        "datatype": st.sampled_from([dtype.kserve for dtype in WIRE_DTYPES]) | JSON,
    },
    optional={"data": st.lists(JSON, max_size=4) | JSON, "parameters": JSON},
)


def outcome_of(
    body: bytes | memoryview, length: str | None
) -> tuple[InferRequest, OutputForms] | str:
    """The decoded request, or the text of the error; nothing else may come out."""
    try:
        return decode(body, length)
    except HloserveError as error:
        return str(error)


@given(
    st.fixed_dictionaries(
        {"inputs": st.lists(TENSOR_LIKE, max_size=3) | JSON},
        optional={"id": JSON, "outputs": JSON, "parameters": JSON},
    ),
    st.binary(max_size=12),
    st.none() | st.text(max_size=3) | st.integers(0, 400).map(str),
)
def test_structured_nonsense_raises_only_our_errors(
    message: Any, rest: bytes, length: str | None
) -> None:
    """Requests of the right outline and wrong content are refused, never worse."""
    body = json.dumps(message).encode("utf-8", "surrogatepass") + rest

    outcome = outcome_of(body, length)
    if isinstance(outcome, str):
        assert 0 < len(outcome) < 1000
        return
    request, forms = outcome
    for array in request.inputs.values():
        assert array.nbytes <= 10_000
    if forms.raw is not None:
        with pytest.raises(BadRequest):
            decode_raw_input(forms.raw, [])


VALID, VALID_LENGTH = binary_body(
    binary_tensor(bytes(16), [2, 2], name="a"),
    (tensor([[1, 2.5], [3, float("nan")]], [2, 2]), b""),
    binary_tensor(b"\x01\x00", [2], "BOOL", "c"),
    binary_tensor(b"\2\0\0\0ab\0\0\0\0", [2], "BYTES", "d"),
    (tensor(["a", ""], [2], "BYTES", "e"), b""),
    id="7",
    parameters={"timeout": 5, "binary_data_output": True},
    outputs=[{"name": "y", "parameters": {"binary_data": False}}],
)


@given(
    st.lists(
        st.tuples(st.integers(0, len(VALID)), st.integers(0, 8), st.binary(max_size=8)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([None, VALID_LENGTH, "1"]),
)
def test_mutated_requests_raise_only_our_errors(
    edits: list[tuple[int, int, bytes]], length: str | None
) -> None:
    """A damaged request is refused or still makes sense."""
    body = VALID
    for position, removed, added in edits:
        body = body[:position] + added + body[position + removed :]
    for whole in (body, memoryview(body)):
        outcome = outcome_of(whole, length)
        if not isinstance(outcome, str):
            assert all(not array.flags.writeable for array in outcome[0].inputs.values())


@given(st.integers(0, len(VALID) - 1))
def test_every_cut_is_refused(cut: int) -> None:
    """A body that ends early is never taken for whole."""
    with pytest.raises(HloserveError):
        decode(VALID[:cut], VALID_LENGTH)


@given(st.binary(max_size=64))
def test_any_bytes_raise_only_our_errors(body: bytes) -> None:
    """Bytes that are nothing are refused."""
    with pytest.raises(BadRequest):
        decode(body)
    assert decode(body_of(), None)[0].inputs == {}
