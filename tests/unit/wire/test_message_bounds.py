"""What a message may make the server hold is bounded before it is made."""

import tracemalloc

import pytest

from hloserve.core.errors import BadRequest, MalformedBody
from hloserve.wire.protobuf_fields import check_fields, length_delimited, varint
from hloserve.wire.v2_json import decode_infer_request as decode_json
from hloserve.wire.v2_protobuf import decode_infer_request

MODEL = length_delimited(1, b"m")
NAMED = length_delimited(1, b"x") + length_delimited(2, b"FP32")


def peak_of(body: bytes, match: str) -> int:
    """Bytes that refusing a message takes at most, beside the message."""
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match=match):
            decode_infer_request(body, 0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_shape_of_millions_of_extents_is_refused_unread() -> None:
    """Each byte would be eight in memory."""
    tensor = NAMED + length_delimited(3, b"\1" * 4_000_000)
    body = MODEL + length_delimited(5, tensor)

    assert peak_of(body, "bytes for its name, shape and parameters") < 3 * len(body)


def test_thousands_of_parameters_of_a_tensor_are_refused_unread() -> None:
    """Entries of a map take more than their bytes, too."""
    tensor = NAMED + length_delimited(4, b"\n\1a") * 20_000
    assert peak_of(MODEL + length_delimited(5, tensor), "more than 16384 fields") < 10**7


def test_parameters_of_an_output_are_bounded() -> None:
    """They have a handful."""
    output = length_delimited(1, b"y") + length_delimited(2, b"\n\1a") * 20_000
    assert peak_of(MODEL + length_delimited(6, output), "a requested output takes") < 10**6


def test_typed_contents_are_bounded_in_bytes_and_in_pieces() -> None:
    """A string of no bytes takes two on the wire and sixteen in the parser."""
    strings = length_delimited(5, length_delimited(8, b"") * 300_000)
    numbers = length_delimited(5, length_delimited(5, b"\1" * (64 * 2**20)))

    assert peak_of(MODEL + length_delimited(5, NAMED + strings), "more than 262144 pieces") < 10**7
    with pytest.raises(MalformedBody, match="bytes of typed contents"):
        decode_infer_request(MODEL + length_delimited(5, NAMED + numbers), 0)


@pytest.mark.parametrize("body", [b"\x42\x05abc", b"\x42", b"\x00", b"\x42\x80"])
def test_pieces_that_end_early_are_malformed(body: bytes) -> None:
    """As in every other message."""
    with pytest.raises(MalformedBody):
        check_fields(body, 10, "they")


def test_the_limit_itself_is_allowed() -> None:
    """Also of the longest numbers."""
    check_fields((varint(1 << 3) + varint(2**64 - 1)) * 10, 10, "they")


def test_json_is_bounded_before_it_is_parsed() -> None:
    """A number takes up to ten times its text."""
    body = b" " * (64 * 2**20 + 1)
    with pytest.raises(MalformedBody, match="send large tensors as binary tensors"):
        decode_json("m", "", body, None, 0, 0)


def test_inputs_and_outputs_are_bounded_in_number() -> None:
    """In JSON as in protobuf."""
    many = b",".join(
        b'{"name":"%d","shape":[0],"datatype":"FP32","data":[]}' % n for n in range(16385)
    )
    with pytest.raises(BadRequest, match="16385 inputs"):
        decode_json("m", "", b'{"inputs":[%b]}' % many, None, 0, 0)
    outputs = b",".join(b'{"name":"%d"}' % n for n in range(16385))
    with pytest.raises(BadRequest, match="16385 outputs"):
        decode_json("m", "", b'{"inputs":[],"outputs":[%b]}' % outputs, None, 0, 0)


def test_strings_of_all_inputs_count_together() -> None:
    """However they are spread over inputs."""
    empty = length_delimited(7, bytes(4 * 100_000))
    inputs = b"".join(
        length_delimited(
            5,
            length_delimited(1, b"%d" % n)
            + length_delimited(2, b"BYTES")
            + length_delimited(3, varint(100_000)),
        )
        for n in range(3)
    )
    with pytest.raises(BadRequest, match="input '2': with it the message announces 300000 strings"):
        decode_infer_request(MODEL + inputs + empty * 3, 0)
