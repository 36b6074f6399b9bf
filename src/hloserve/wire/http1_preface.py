"""What an HTTP/2 client hears on the HTTP/1.1 port: where gRPC is.

What lives here: just enough of HTTP/2 to fail one call with a text, in frames that every HTTP/2
client understands. What does not: HTTP/2 (`hloserve.wire.http2`). One thread.

A GOAWAY alone would not do: gRPC clients take it for "not processed", connect again, and show
nothing but their deadline in the end. So the first call is answered.

Source: RFC 9113 sections 3.4, 4.1, 6.5 and 6.8; RFC 7541 section 6.2.2; gRPC over HTTP/2.
"""

from urllib.parse import quote

__all__ = ["PREFACE", "Http2Redirect"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_HEADERS, _SETTINGS, _GOAWAY = 1, 4, 7
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_MAX_FRAME_BYTES = 2**14
_UNIMPLEMENTED = b"12"
_STATUS_200 = b"\x88"


class Http2Redirect:
    """Answers the first call on a connection, then ends it.

    Args:
        text: where to go.
        preface_left: bytes of the preface that are still to come.

    Attributes:
        is_done: True once nothing more is to be said.
    """

    def __init__(self, text: str, preface_left: int) -> None:
        self._text = text
        self._skip = preface_left
        self._rest = b""
        self._has_begun = False
        self.is_done = False

    def receive(self, data: bytes | memoryview) -> bytes:
        """Take bytes after the recognised opening; return the bytes to send."""
        out = b""
        if not self._has_begun:
            self._has_begun = True
            out = _frame(_SETTINGS, 0, 0, b"") + _frame(_SETTINGS, _ACK, 0, b"")
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        rest = self._rest + bytes(data[skipped:])
        while len(rest) >= 9 and not self.is_done:
            length, kind = int.from_bytes(rest[:3], "big"), rest[3]
            stream = int.from_bytes(rest[5:9], "big") & 0x7FFFFFFF
            if kind == _HEADERS:
                out += self._answer(stream)
            elif length > _MAX_FRAME_BYTES:
                out += self.end()
            elif len(rest) < 9 + length:
                break
            else:
                rest = rest[9 + length :]
        self._rest = rest
        return out

    def end(self, last_stream: int = 0) -> bytes:
        """Say goodbye; the connection is over."""
        self.is_done = True
        self._rest = b""
        payload = last_stream.to_bytes(4, "big") + bytes(4) + self._text.encode()
        return _frame(_GOAWAY, 0, 0, payload)

    def _answer(self, stream: int) -> bytes:
        fields = _STATUS_200 + b"".join(
            b"\x00" + _string(name) + _string(value)
            for name, value in (
                (b"content-type", b"application/grpc"),
                (b"grpc-status", _UNIMPLEMENTED),
                (b"grpc-message", quote(self._text, safe=" ;,()").encode()),
            )
        )
        return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, fields) + self.end(stream)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def _string(text: bytes) -> bytes:
    """A string literal of HPACK, not Huffman-coded."""
    if len(text) < 127:
        return bytes((len(text),)) + text
    length, more = b"\x7f", len(text) - 127
    while more >= 128:
        length += bytes((more & 127 | 128,))
        more >>= 7
    return length + bytes((more,)) + text
