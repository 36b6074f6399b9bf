"""The first bytes of a connection to the gRPC port: does the peer speak HTTP/2?

What lives here: the decision, and the answer to a peer that speaks HTTP/1. What does not: HTTP/2
(`hloserve.wire.http2`). No I/O; the thread that drives the connection.
"""

from typing import Final

__all__ = ["HTTP1_ANSWER", "Preface"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_TEXT: Final = b"This port serves gRPC, which is HTTP/2. REST has a port of its own.\n"
HTTP1_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_TEXT), _TEXT)
)
_TLS_HANDSHAKE: Final = b"\x16\x03"


class Preface:
    """Collects bytes until it is known what the peer speaks.

    Attributes:
        is_http2: the preface is complete; `data` is what has come so far, preface included.
        fault: what the peer does instead; empty while undecided.
        answer: bytes to send to a peer that does not speak HTTP/2; may be empty.
    """

    __slots__ = ("answer", "data", "fault", "is_http2")

    def __init__(self) -> None:
        self.data = b""
        self.is_http2 = False
        self.fault = ""
        self.answer = b""

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes; to be called until there is a verdict."""
        self.data += data
        start = self.data[: len(_PREFACE)]
        if start == _PREFACE:
            self.is_http2 = True
        elif start.startswith(_TLS_HANDSHAKE):
            self.fault = "the peer speaks TLS, this port does not"
        elif start[:1].isalpha() and not _PREFACE.startswith(start):
            self.fault = "the peer speaks HTTP/1"
            self.answer = HTTP1_ANSWER
        elif not _PREFACE.startswith(start):
            self.fault = "the peer does not speak HTTP/2"
