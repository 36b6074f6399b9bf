"""What an HTTP/2 client hears on the HTTP/1.1 port."""

import pytest
from support.rest_wire import connection, feed, output, refusal

from hloserve.wire.http1_preface import PREFACE, Http2Redirect

SETTINGS = bytes(3) + b"\x04" + bytes(5)
CALL = b"\x00\x00\x03\x01\x04\x00\x00\x00\x01abc"


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Cut HTTP/2 frames: kind, flags, stream, payload."""
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        stream = int.from_bytes(data[5:9], "big")
        found.append((data[3], data[4], stream, data[9 : 9 + length]))
        data = data[9 + length :]
    return found


@pytest.mark.parametrize("step", [0, 1, 5, 11, 12, 13, 24, 33])
def test_first_call_is_answered_with_the_hint(step: int) -> None:
    """However the bytes arrive, the first call fails with the text, and the connection ends."""
    http = connection()

    assert feed(http, PREFACE + SETTINGS + CALL + b"more", step) == []

    settings, ack, answer, goaway = frames(output(http))
    assert settings == (4, 0, 0, b"")
    assert ack == (4, 1, 0, b"")
    assert answer[:3] == (1, 5, 1)  # HEADERS that end the stream of the call
    assert b"grpc-status\x0212" in answer[3]
    assert b"gRPC is served on another port" in answer[3]
    assert goaway[0] == 7
    assert goaway[3][:4] == b"\x00\x00\x00\x01"
    assert http.should_close
    assert http.is_refused


def test_client_that_only_connects_is_told_in_the_end() -> None:
    """Without a call the connection waits, and ends with the text when its time is over."""
    http = connection()
    feed(http, PREFACE + SETTINGS)
    assert not http.should_close
    output(http)

    http.refuse(408, "slow")

    [goaway] = frames(output(http))
    assert goaway[0] == 7
    assert b"gRPC is served on another port" in goaway[3]
    assert http.should_close


def test_oversized_frame_ends_it() -> None:
    """A frame over the protocol's default size is not waited for."""
    redirect = Http2Redirect("there", 0)

    sent = redirect.receive(b"\xff\xff\xff\x00" + bytes(5))

    assert redirect.is_done
    assert [4, 4, 7] == [frame[0] for frame in frames(sent)]


def test_long_text_is_whole() -> None:
    """A text longer than one length byte of HPACK can say arrives whole."""
    text = "x" * 5000

    [*_, answer, _] = frames(Http2Redirect(text, 0).receive(CALL))

    assert answer[3].endswith(b"\x7f\x89\x26" + text.encode())


@pytest.mark.parametrize("data", [b"PRI * HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_what_only_resembles_a_preface_is_malformed(data: bytes) -> None:
    """Only the preface is taken for HTTP/2."""
    assert refusal(connection(), data)[0] == 400
