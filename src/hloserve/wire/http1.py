"""HTTP/1.1 without I/O: the server's side of a connection.

What lives here: the only use of httptools (llhttp), limits, framing defences, order of replies.
What does not: sockets, timers and routing (`hloserve.server.rest_transport`), message values and
head formatting (`hloserve.wire.http1_messages`), the client's side (`hloserve.wire.http1_client`).
One thread per connection object.

Rules.
1. Requests are answered strictly in the order they came; `respond` may be called in any order.
2. Whatever cannot be parsed, or goes over a limit, gets one error response in its turn and ends
   the connection. Nothing that follows on it is read: its framing cannot be trusted.
3. A body is never allocated from its announced length alone (`hloserve.wire.http1_body`).
4. llhttp's leniencies stay off. Its own checks refuse both framings at once, repeated lengths,
   folded headers, bare line feeds and odd chunk sizes; the rest is refused here.
5. A parser sees at most `_SLICE_BYTES` at a time, and no more while `max_pipelined` requests wait.
   The bytes of a long body bypass it.

Source: RFC 9112 (HTTP/1.1), RFC 9110 (semantics), RFC 9113 section 3.4 (preface).
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import httptools

from hloserve.wire.http1_body import BodyAssembly
from hloserve.wire.http1_messages import (
    Body,
    HttpLimits,
    HttpRequest,
    format_error_body,
    format_response_head,
    http2_goaway,
)

__all__ = ["CommonHeaders", "HttpServerConnection", "ParserError", "Phase", "ResponseParser"]

ParserError = httptools.HttpParserError
ResponseParser = httptools.HttpResponseParser

_SLICE_BYTES = 16 * 2**10
_OPENING_BYTES = 16
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_KNOWN_ONCE = frozenset({b"host", b"content-type", b"expect", b"inference-header-content-length"})


class CommonHeaders:
    """Header lines shared by all connections of a server, e.g. the date; each ends in CRLF."""

    __slots__ = ("lines",)

    def __init__(self, lines: bytes = b"") -> None:
        self.lines = lines


class Phase:
    """What of the next request has arrived. Plain integers: they are compared per read."""

    IDLE: Final = 0
    HEAD: Final = 1
    BODY: Final = 2


class _Refused(Exception):
    """Ends the parsing of a connection with an error response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class HttpServerConnection:
    """The server's side of one connection.

    Feed it bytes with `receive` (or straight into `body_buffer`), answer each request with
    `respond`, send `take_output`, and close once `should_close` is true and all is sent.

    Attributes:
        phase: what of the next request has arrived.
        should_close: True once the last response is in the output.
        is_refused: True once input is thrown away unread, because it broke a rule.
        is_draining: set it to make the last pending response end the connection.
    """

    __slots__ = (
        "_assembly",
        "_backlog",
        "_body",
        "_common",
        "_continue_due",
        "_fed_bytes",
        "_header_count",
        "_headers",
        "_is_open",
        "_keep_alive",
        "_limits",
        "_method",
        "_opening",
        "_out",
        "_parser",
        "_pending",
        "_ready",
        "_target",
        "is_draining",
        "is_refused",
        "phase",
        "should_close",
    )

    def __init__(self, limits: HttpLimits, common: CommonHeaders | None = None) -> None:
        self._assembly: BodyAssembly | None = None
        self._limits = limits
        self._common = common or CommonHeaders()
        self._parser: Any = None
        self._pending: deque[HttpRequest] = deque()
        self._ready: list[HttpRequest] = []
        self._out: list[bytes] = []
        self._backlog = b""
        self._opening: bytes | None = b""
        self._is_open = True
        self.phase: int = Phase.IDLE
        self.should_close = False
        self.is_draining = False
        self.is_refused = False
        self._start_message()

    # -- what the transport calls -----------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """True while no further request is taken; stop reading until it is false."""
        return len(self._pending) >= self._limits.max_pipelined

    @property
    def has_pending(self) -> bool:
        """True while a request is unanswered, or its answer waits for an earlier one."""
        return bool(self._pending)

    @property
    def has_backlog(self) -> bool:
        """True while received bytes wait unparsed: call `receive(b"")` once not full."""
        return bool(self._backlog)

    def receive(self, data: bytes | memoryview) -> list[HttpRequest]:
        """Take bytes from the peer; return the requests that they complete.

        Malformed input never raises: it becomes an error response in the output.
        """
        if self._backlog:
            data = self._backlog + bytes(data)
            self._backlog = b""
        position, end = 0, len(data)
        while position < end and self._is_open:
            if self.is_full:
                self._backlog = bytes(data[position:])
                break
            if self._assembly is not None and self._assembly.length is not None:
                position += self._fill(data[position:])
            elif end - position <= _SLICE_BYTES and not position:
                position += self._feed(data)
            else:
                position += self._feed(data[position : position + _SLICE_BYTES])
        ready, self._ready = self._ready, []
        return ready

    def body_buffer(self) -> memoryview | None:
        """Where to read the next bytes of a long body into, or None: use `receive`."""
        assembly = self._assembly
        if assembly is None or assembly.length is None or not self._is_open:
            return None
        try:
            return assembly.tail()
        except MemoryError:
            self._refuse_memory()
            return None

    def body_received(self, count: int) -> list[HttpRequest]:
        """Say that `count` bytes were read into `body_buffer`."""
        assert self._assembly is not None, "body_received without body_buffer"
        self._assembly.advance(count)
        self._finish_if_complete()
        ready, self._ready = self._ready, []
        return ready

    def respond(
        self,
        request: HttpRequest,
        status: int,
        body: bytes = b"",
        content_type: str = "",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Answer a request. Its bytes enter the output when it is its turn."""
        assert request.reply is None, "a request was answered twice"
        pending = self._pending
        if self.is_draining and pending and pending[-1] is request:
            request.keep_alive = self._is_open = False
        close = not request.keep_alive
        head = format_response_head(
            status, content_type, len(body), headers, self._common.lines, close
        )
        request.reply = (head, b"" if request.method == "HEAD" else body)
        self._release()

    def refuse(self, status: int, message: str) -> None:
        """End the connection with an error response after the pending ones."""
        if not self._is_open:
            return
        self.is_refused = True
        self._is_open = self._continue_due = False
        self._parser = self._assembly = None
        self._backlog = b""
        refusal = HttpRequest("", b"", {}, b"", keep_alive=False)
        self._pending.append(refusal)
        self.respond(refusal, status, format_error_body(message), "application/json")

    def abandon(self) -> list[HttpRequest]:
        """Say that the peer has gone; returns the requests that are still unanswered."""
        unanswered = [request for request in self._pending if request.reply is None]
        self._pending.clear()
        self._out.clear()
        self._is_open = False
        self._parser = self._assembly = None
        self._backlog = b""
        return unanswered

    def take_output(self) -> list[bytes]:
        """The bytes to send now, in order; each call hands them out once."""
        out, self._out = self._out, []
        return out

    # -- in ------------------------------------------------------------------------------------

    def _start_message(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._method = ""
        self._target = b""
        self._body: Body = b""
        self._header_count = self._fed_bytes = 0
        self._keep_alive = True
        self._assembly = None
        self._continue_due = False

    def _feed(self, data: bytes | memoryview) -> int:
        """Give one slice to the parser; returns how much of it was used."""
        if self._opening is not None:
            self._opening = (self._opening + bytes(data[:_OPENING_BYTES]))[:_OPENING_BYTES]
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
            if self.phase != Phase.IDLE:
                self._check_progress(len(data))
        except httptools.HttpParserUpgrade as upgrade:  # ignored: the request is served as it is
            if self._assembly is not None:
                self._parser = None
            return int(upgrade.args[0])
        except (httptools.HttpParserError, _Refused) as error:
            self._refuse_for(error)
        return len(data)

    def _check_progress(self, count: int) -> None:
        """Bound what the parser may gather without telling: heads, trailers, chunk extensions."""
        if self._continue_due:
            self._send_continue()
        assembly = self._assembly
        if assembly is not None and assembly.length is not None:
            self._parser = None  # the rest of the body bypasses it, and the next message is new
            return
        self._fed_bytes += count
        if self._fed_bytes > self._limits.max_header_bytes + _SLICE_BYTES:
            raise self._head_too_large()

    def _fill(self, data: bytes | memoryview) -> int:
        """Copy into a body of known length; returns how much of `data` was used."""
        assert self._assembly is not None, "no body is expected"
        try:
            count = self._assembly.fill(data)
        except MemoryError:
            self._refuse_memory()
            return len(data)
        self._finish_if_complete()
        return count

    def _refuse_memory(self) -> None:
        self.refuse(503, "not enough memory for the request body; try again later")

    def _refuse_for(self, error: Exception) -> None:
        opening = self._opening or b""
        if opening.startswith(b"PRI * HTTP/2"):
            self.is_refused = True
            self._is_open = False
            self._parser = None
            self._out.append(http2_goaway(self._limits.grpc_hint))
            self.should_close = True
            return
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
        if isinstance(cause, _Refused):
            self.refuse(cause.status, cause.message)
        elif isinstance(error, httptools.HttpParserCallbackError):
            assert cause is not None, "httptools keeps the callback's exception"
            raise cause  # a defect of ours, not of the peer
        elif opening.startswith(b"\x16\x03"):
            self.refuse(400, "this port speaks plain HTTP, the client began with TLS")
        elif isinstance(error, httptools.HttpParserInvalidMethodError):
            self.refuse(400, "malformed request: not an HTTP method")
        else:
            self.refuse(400, f"malformed request: {error}")

    # llhttp calls these, in this order, possibly several times per message for url and body.

    def on_message_begin(self) -> None:
        """A request's first byte arrived."""
        self._start_message()
        self.phase = Phase.HEAD

    def on_url(self, piece: bytes) -> None:
        """A part of the target arrived."""
        self._target += piece
        if len(self._target) > self._limits.max_target_bytes:
            limit = self._limits.max_target_bytes
            raise _Refused(414, f"request target is longer than {limit} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, is complete."""
        self._header_count += 1
        if self._header_count > self._limits.max_headers:
            raise _Refused(431, f"more than {self._limits.max_headers} headers")
        if self.phase == Phase.BODY:
            return  # trailers carry nothing for us
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name in _KNOWN_ONCE:
                raise _Refused(400, f"header {name.decode('latin-1')} is given twice")
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        """The head is complete: decide about keep-alive, expectation and the body."""
        headers, parser = self._headers, self._parser
        version = parser.get_http_version()
        self._check_head(version)
        self._fed_bytes = 0
        self._keep_alive = parser.should_keep_alive()
        self.phase = Phase.BODY
        announced = headers.get(b"content-length")
        if announced is not None:
            length = int(announced)
            if length > self._limits.max_body_bytes:
                raise self._body_too_large(f" of {length} bytes")
            if length:
                self._assembly = BodyAssembly(length)
        elif b"transfer-encoding" in headers:
            self._check_coding(version, headers[b"transfer-encoding"])
            self._assembly = BodyAssembly(None)
        if b"expect" in headers and version == "1.1":
            if headers[b"expect"].strip().lower() != b"100-continue":
                raise _Refused(417, "the only expectation served here is 100-continue")
            self._continue_due = self._assembly is not None

    def _check_head(self, version: str) -> None:
        limits, headers = self._limits, self._headers
        if self._fed_bytes or limits.max_header_bytes < _SLICE_BYTES:
            size = sum(map(len, headers)) + sum(map(len, headers.values()))
            if size > limits.max_header_bytes:
                raise self._head_too_large()
        if version == "1.1":
            if b"host" not in headers:
                raise _Refused(400, "header Host is missing; HTTP/1.1 requires it")
        elif version != "1.0":
            raise _Refused(505, "only HTTP/1.1 and HTTP/1.0 are served here")
        self._method = self._parser.get_method().decode()
        if self._method == "CONNECT":
            raise _Refused(405, "CONNECT is not served here")

    def _check_coding(self, version: str, coding: bytes) -> None:
        """Refuse what another HTTP implementation on the way could frame differently."""
        if version == "1.0":
            raise _Refused(400, "Transfer-Encoding does not exist in HTTP/1.0")
        if coding.strip().lower() != b"chunked":
            raise _Refused(501, "the only transfer coding served here is chunked")
        if self._parser.should_upgrade():
            raise _Refused(400, "an upgrade request with a chunked body is not served")

    def on_body(self, data: bytes) -> None:
        """A piece of the body arrived."""
        assembly = self._assembly
        assert assembly is not None, "a body without framing"
        self._continue_due = False
        self._fed_bytes = 0
        if assembly.length is None:
            if not assembly.append(data, self._limits.max_body_bytes):
                raise self._body_too_large("")
        elif len(data) == assembly.length:
            self._body = data
        else:
            assembly.fill(data)

    def on_message_complete(self) -> None:
        """The parser saw a whole message; an upgrade request's body is still to come."""
        assembly = self._assembly
        if assembly is not None and not self._body:
            if assembly.length is not None and not assembly.is_complete:
                return  # llhttp skips the body of an upgrade; `receive` goes on to fill it
            self._body = assembly.finish()
        self._emit()

    def _finish_if_complete(self) -> None:
        assembly = self._assembly
        self._continue_due = False
        if assembly is not None and assembly.is_complete:
            self._body = assembly.finish()
            self._emit()

    def _emit(self) -> None:
        request = HttpRequest(
            self._method, self._target, self._headers, self._body, self._keep_alive
        )
        self._pending.append(request)
        self._ready.append(request)
        self._assembly = self._opening = None
        self._body = b""
        self.phase = Phase.IDLE
        if not self._keep_alive:
            self._is_open = False
            self._parser = None

    def _head_too_large(self) -> _Refused:
        return _Refused(431, f"headers are longer than {self._limits.max_header_bytes} bytes")

    def _body_too_large(self, size: str) -> _Refused:
        limits = self._limits
        return _Refused(
            413,
            f"request body{size} is larger than the limit of {limits.max_body_bytes} bytes;"
            f" the server's setting is {limits.body_setting}",
        )

    # -- out -----------------------------------------------------------------------------------

    def _release(self) -> None:
        """Move the answers whose turn it is into the output."""
        pending, out = self._pending, self._out
        while pending:
            request = pending[0]
            if request.reply is None:
                return
            out.extend(request.reply)
            pending.popleft()
            if not request.keep_alive:
                self.should_close = True
                return
        if self._continue_due:
            self._send_continue()

    def _send_continue(self) -> None:
        """Ask for the body, once the earlier requests are answered."""
        if not self._pending:
            self._out.append(_CONTINUE)
            self._continue_due = False
