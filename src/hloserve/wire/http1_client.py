"""HTTP/1.1 without I/O: a client's side, for the command line, the tests and the load generator.

What lives here: requests to bytes, bytes to responses, pipelining included. What does not:
sockets, and HTTP features that this project's server never uses (redirects, cookies). One thread
per connection object.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from hloserve.core.errors import MalformedBody
from hloserve.wire.http1 import ParserError, ResponseParser
from hloserve.wire.http1_messages import Body, HttpResponse, format_request

__all__ = ["HttpClientConnection"]


class HttpClientConnection:
    """The client's side of one connection.

    Args:
        host: the Host header, ``name:port``.
        max_body_bytes: cap of a response body.
    """

    __slots__ = (
        "_body",
        "_headers",
        "_host",
        "_is_reading",
        "_max_body_bytes",
        "_parser",
        "_ready",
        "_waiting",
    )

    def __init__(self, host: str, max_body_bytes: int = 2**31) -> None:
        self._host = host
        self._max_body_bytes = max_body_bytes
        self._parser: Any = ResponseParser(self)
        self._waiting: deque[str] = deque()
        self._ready: list[HttpResponse] = []
        self._headers: dict[bytes, bytes] = {}
        self._body: bytes | bytearray = b""
        self._is_reading = False

    @property
    def waiting(self) -> int:
        """Requests that are not answered yet."""
        return len(self._waiting)

    def request(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]] = (),
        body: Body | None = None,
    ) -> bytes:
        """Write a request; its response comes out of `receive`, in order.

        Args:
            method: any but HEAD and CONNECT, whose responses are framed unlike all others.
            target: percent-encoded path and query.
            headers: further headers.
            body: sent with a Content-Length.
        """
        assert method not in ("HEAD", "CONNECT"), f"{method} is not for this client"
        self._waiting.append(method)
        return format_request(method, target, self._host, headers, body)

    def receive(self, data: bytes | memoryview) -> list[HttpResponse]:
        """Take bytes from the server; return the responses that they complete.

        Raises:
            MalformedBody: they are not HTTP/1.1, over the cap, or answer nothing.
        """
        try:
            self._parser.feed_data(data)
        except ParserError as error:
            cause = error.__context__
            if isinstance(cause, MalformedBody):
                raise cause from None
            raise MalformedBody(f"the server's answer is not HTTP/1.1: {error}") from error
        ready, self._ready = self._ready, []
        return ready

    def receive_end(self) -> list[HttpResponse]:
        """Say that the server closed; a body that only the end delimits is complete now.

        Raises:
            MalformedBody: a response is incomplete, or never began.
        """
        headers = self._headers
        if self._is_reading and not {b"content-length", b"transfer-encoding"} & headers.keys():
            self.on_message_complete()
        if self._waiting:
            raise MalformedBody(
                f"the server closed the connection, {len(self._waiting)} requests are unanswered"
            )
        ready, self._ready = self._ready, []
        return ready

    def on_message_begin(self) -> None:
        """A response's first byte arrived."""
        if not self._waiting:
            raise MalformedBody("the server sent a response that answers no request")
        self._headers = {}
        self._body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is complete."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._is_reading = True

    def on_body(self, data: bytes) -> None:
        """A piece of the body arrived."""
        if len(self._body) + len(data) > self._max_body_bytes:
            raise MalformedBody(f"the response is longer than {self._max_body_bytes} bytes")
        if not self._body:
            self._body = data
            return
        if type(self._body) is bytes:
            self._body = bytearray(self._body)
        self._body += data

    def on_message_complete(self) -> None:
        """A response is complete; interim ones (1xx) are passed over."""
        self._is_reading = False
        parser = self._parser
        status = parser.get_status_code()
        if status < 200:
            return
        self._waiting.popleft()
        body: Body = self._body if type(self._body) is bytes else memoryview(self._body)
        self._ready.append(HttpResponse(status, self._headers, body, parser.should_keep_alive()))
        self._body = b""
