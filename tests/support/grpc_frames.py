"""HTTP/2 frames written by hand, for peers that do what no library would do."""

from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS, ACK = 1, 4, 1
ENHANCE_YOUR_CALM, PROTOCOL_ERROR = 11, 1


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def hpack(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header fields as literals without indexing and without Huffman codes."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)


def request_fields(
    path: bytes = b"/test.Service/Echo",
    extra: Iterable[tuple[bytes, bytes]] = (),
    *,
    method: bytes = b"POST",
    content_type: bytes = b"application/grpc",
) -> list[tuple[bytes, bytes]]:
    """The headers of a gRPC request."""
    return [
        (b":method", method),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"content-type", content_type),
        (b"te", b"trailers"),
        *extra,
    ]


def request(
    stream: int,
    message: bytes | None = b"",
    path: bytes = b"/test.Service/Echo",
    method: bytes = b"POST",
    content_type: bytes = b"application/grpc",
) -> bytes:
    """HEADERS and, unless `message` is None, one DATA frame that ends the stream."""
    block = hpack(request_fields(path, method=method, content_type=content_type))
    head = frame(HEADERS, END_HEADERS, stream, block)
    if message is None:
        return head
    return head + frame(DATA, END_STREAM, stream, prefixed(message))


def prefixed(message: bytes, flag: int = 0) -> bytes:
    """A message with its gRPC prefix."""
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


def split_frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Frames as (kind, flags, stream, payload); the inverse of `frame`."""
    frames = []
    while data:
        length = int.from_bytes(data[:3], "big")
        stream = int.from_bytes(data[5:9], "big")
        frames.append((data[3], data[4], stream, data[9 : 9 + length]))
        data = data[9 + length :]
    return frames


def goaway_code(data: bytes) -> int | None:
    """The error code of the last GOAWAY in some output."""
    codes = [
        int.from_bytes(payload[4:8], "big")
        for kind, _, _, payload in split_frames(data)
        if kind == GOAWAY
    ]
    return codes[-1] if codes else None


def _string(value: bytes) -> bytes:
    if len(value) < 127:
        return bytes([len(value)]) + value
    rest, encoded = len(value) - 127, bytearray([127])
    while rest >= 128:
        encoded.append(rest % 128 + 128)
        rest //= 128
    return bytes(encoded) + bytes([rest]) + value
