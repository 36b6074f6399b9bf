"""A request head that came before: recognised by its bytes, not parsed again.

What lives here: taking a whole small request apart whose head is, but for the length of its body,
one that the parser has passed. What does not: parsing (`hloserve.wire.http1`). One thread.

A client sends the same head with every request. llhttp and its callbacks take 3.1 us to find that
out, comparing takes 1.2.

Rules.
1. Only what the parser passed is remembered: a head framed by one Content-Length, on a connection
   that goes on, without an expectation or an upgrade.
2. All of it must be the same, byte by byte, except for the digits of Content-Length, and the body
   must be there, whole, with nothing behind it. Everything else goes to the parser.
"""

from typing import Self

from hloserve.wire.http1_messages import HttpRequest

__all__ = ["KnownHead"]

_MOST_HEAD_BYTES = 4096
_MOST_DIGITS = 8
_LENGTH = b"\r\ncontent-length:"
_EXCLUDED = frozenset({b"expect", b"upgrade", b"transfer-encoding"})


class KnownHead:
    """One head, split at its Content-Length. Made by `learn`."""

    __slots__ = ("_after", "_before", "_digits", "_request")

    def __init__(self, before: bytes, digits: bytes, after: bytes, request: HttpRequest) -> None:
        self._before, self._digits, self._after = before, digits, after
        self._request = request

    @classmethod
    def learn(cls, text: bytes, request: HttpRequest) -> Self | None:
        """Remember the head of a request.

        Args:
            text: what the parser made the request of, no more and no less.
            request: what it made.

        Returns:
            None when the head is not of the kind that is remembered.
        """
        headers = request.headers
        end = len(text) - len(request.body)
        if (
            end > _MOST_HEAD_BYTES
            or not request.keep_alive
            or b"content-length" not in headers
            or not _EXCLUDED.isdisjoint(headers)
        ):
            return None
        head = text[:end]
        folded = head.lower()
        start = folded.find(_LENGTH) + len(_LENGTH)
        digits = headers[b"content-length"]
        start = head.find(digits, start)
        stop = start + len(digits)
        is_plain = (
            folded.count(_LENGTH) == 1
            and head[stop : stop + 2] == b"\r\n"
            and head.endswith(b"\r\n\r\n")
            and digits.isdigit()
            and len(digits) <= _MOST_DIGITS
            and int(digits) == len(request.body)
        )
        if not is_plain:
            return None
        bare = HttpRequest(request.method, request.target, headers, b"", keep_alive=True)
        return cls(head[:start], digits, head[stop:], bare)

    def match(self, text: bytes, max_body_bytes: int) -> HttpRequest | None:
        """The request that `text` is, if its head is this one and nothing is missing or left."""
        before, after = self._before, self._after
        if not text.startswith(before):
            return None
        start = len(before)
        stop = text.find(b"\r", start, start + _MOST_DIGITS + 1)
        if stop < 0 or not text.startswith(after, stop):
            return None
        digits = text[start:stop]
        body = text[stop + len(after) :]
        if not digits.isdigit() or int(digits) != len(body) or len(body) > max_body_bytes:
            return None
        like = self._request
        headers = like.headers
        if digits != self._digits:
            headers = {**headers, b"content-length": digits}
        return HttpRequest(like.method, like.target, headers, body, True)
