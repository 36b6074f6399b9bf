"""Reading HTTP/1.1 requests from bytes, without I/O: the only use of httptools (llhttp).

What lives here: parsing, limits, framing defences. What does not: the order of answers and the
output (`hloserve.wire.http1_server`), message values (`hloserve.wire.http1_messages`), sockets
(`hloserve.server.rest_transport`). One thread per reader.

Rules.
1. What cannot be parsed, or goes over a limit, raises `Refused` once; the reader is useless then,
   because the framing of what follows cannot be trusted.
2. A body is never allocated from its announced length alone (`hloserve.wire.http1_body`).
3. llhttp's leniencies stay off. Its own checks refuse both framings at once, repeated lengths,
   folded headers, bare line feeds and odd chunk sizes; the rest is refused here.
4. A parser sees at most `SLICE_BYTES` at a time, which bounds what one call can make of it. The
   bytes of a long body bypass it, and so does a small request whose head was parsed before
   (`hloserve.wire.http1_known_head`).

Source: RFC 9112 (HTTP/1.1), RFC 9110 (semantics).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import httptools
from typing_extensions import override

from hloserve.core.errors import HloserveError
from hloserve.wire.http1_body import BodyAssembly
from hloserve.wire.http1_known_head import KnownHead
from hloserve.wire.http1_messages import Body, HttpLimits, HttpRequest
from hloserve.wire.status import challenge_headers, http_status

__all__ = [
    "SLICE_BYTES",
    "GuardedReader",
    "HeadCheck",
    "ParserError",
    "Phase",
    "Refused",
    "RequestReader",
    "ResponseParser",
]

ParserError = httptools.HttpParserError
ResponseParser = httptools.HttpResponseParser

SLICE_BYTES = 16 * 2**10
HeadCheck: TypeAlias = Callable[[str, bytes, Mapping[bytes, bytes]], None]
"""Looks at method, target and headers before the body is read; what it raises is the answer."""

_LESSONS = 8
"""Heads that a connection remembers, one after the other: a client that sends another one each time
is not learnt from for ever."""

_MOST_LENGTH_DIGITS = 20
"""Of 2**64 - 1. The parser takes any number of leading zeros, Python reads 4300 digits at most."""

_KNOWN_ONCE = frozenset({b"host", b"content-type", b"expect", b"inference-header-content-length"})


class Phase:
    """What of the next request has arrived. Plain integers: they are compared per read."""

    IDLE: Final = 0
    HEAD: Final = 1
    BODY: Final = 2


class Refused(Exception):
    """Ends a connection with an error response of `status`."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


class RequestReader:
    """Makes requests of bytes.

    Attributes:
        ready: the requests that are complete; the caller takes them away.
        phase: what of the next request has arrived.
        assembly: the body on its way; None between bodies.
        wants_continue: the client waits for 100 Continue before it sends the body.
        knows_interim: False once a request of HTTP/1.0 has come, which has no interim responses.
        has_ended: the last request said that no other follows; feed no more.
    """

    __slots__ = (
        "_body",
        "_fed_bytes",
        "_headers",
        "_keep_alive",
        "_known",
        "_lessons",
        "_limits",
        "_method",
        "_parser",
        "_repeated_headers",
        "_target",
        "assembly",
        "has_ended",
        "knows_interim",
        "phase",
        "ready",
        "wants_continue",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._parser: Any = None
        self.assembly: BodyAssembly | None = None
        self._headers: dict[bytes, bytes] = {}
        self._target, self._method = b"", ""
        self._body: Body = b""
        self._repeated_headers = self._fed_bytes = 0
        self._keep_alive = True
        self._known: KnownHead | None = None
        self._lessons = _LESSONS if limits.max_header_bytes >= SLICE_BYTES else 0
        self.ready: list[HttpRequest] = []
        self.phase: int = Phase.IDLE
        self.wants_continue = self.has_ended = False
        self.knows_interim = True

    def read(self, data: bytes | memoryview) -> int:
        """Take at most `SLICE_BYTES` of input; returns how much of it was used.

        Raises:
            Refused: it is no request, or over a limit. `ready` holds what came before.
            MemoryError: the body does not fit.
        """
        if self.assembly is not None and self.assembly.length is not None:
            count = self.assembly.fill(data)
            self._finish_if_complete()
            return count
        is_start = self.phase == Phase.IDLE and not self.ready
        if is_start and self._known is not None and self._take_known(self._known, data):
            return len(data)
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # ignored: the request is served as it is
            if self.assembly is not None:
                self._parser = None
            return int(upgrade.args[0])
        except httptools.HttpParserError as error:
            if not self.has_ended:
                raise _translate(error) from None
        if self.phase != Phase.IDLE:
            self._check_progress(len(data))
        elif is_start and self._lessons and len(self.ready) == 1:
            self._lessons -= 1
            self._known = KnownHead.learn(bytes(data), self.ready[0])
        return len(data)

    def body_received(self, count: int) -> None:
        """Say that `count` bytes were put into the tail of `assembly`."""
        assert self.assembly is not None, "body_received without a body"
        self.assembly.advance(count)
        self._finish_if_complete()

    def _take_known(self, known: KnownHead, data: bytes | memoryview) -> bool:
        """Take a request whose head was parsed before; False when it must be parsed."""
        request = known.match(bytes(data), self._limits.max_body_bytes)
        if request is None:
            return False
        self._admit(request.method, request.target, request.headers)
        self.ready.append(request)
        return True

    def _admit(self, method: str, target: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request by its head. Everybody may ask here."""

    def close(self) -> None:
        """Let go of everything; what is incomplete is lost."""
        if self.assembly is not None and self.assembly.claim is not None:
            self.assembly.claim.end()
        self._parser = self.assembly = self._known = None
        self.wants_continue = False
        self.has_ended = True

    def _check_progress(self, count: int) -> None:
        """Bound what the parser may gather without telling: heads, trailers, chunk extensions."""
        assembly = self.assembly
        if assembly is not None and assembly.length is not None:
            self._parser = None  # the rest of the body bypasses it, and the next message is new
            return
        self._fed_bytes += count
        if self._fed_bytes > self._limits.max_header_bytes + SLICE_BYTES:
            raise self._head_too_large()

    # llhttp calls these, in this order, possibly several times per message for url and body.

    def on_message_begin(self) -> None:
        """A request's first byte arrived."""
        self._headers = {}
        self._target = b""
        self._repeated_headers = self._fed_bytes = 0
        self.phase = Phase.HEAD

    def on_url(self, piece: bytes) -> None:
        """A part of the target arrived."""
        self._target += piece
        if len(self._target) > self._limits.max_target_bytes:
            limit = self._limits.max_target_bytes
            raise Refused(414, f"request target is longer than {limit} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, is complete. Trailers carry nothing for us."""
        if self.phase == Phase.HEAD:
            name = name.lower()
            headers = self._headers
            if name in headers:
                value = self._join_repeated(name, value)
            headers[name] = value

    def _join_repeated(self, name: bytes, value: bytes) -> bytes:
        if name in _KNOWN_ONCE:
            raise Refused(400, f"header {name.decode('latin-1')} is given twice")
        self._repeated_headers += 1
        self._check_header_count()
        return self._headers[name] + b", " + value

    def _check_header_count(self) -> None:
        if len(self._headers) + self._repeated_headers > self._limits.max_headers:
            raise Refused(431, f"more than {self._limits.max_headers} headers")

    def on_headers_complete(self) -> None:
        """The head is complete: decide about keep-alive, expectation and the body."""
        headers, parser = self._headers, self._parser
        keep_alive = self._keep_alive = parser.should_keep_alive()
        # llhttp keeps only HTTP/1.1 alive unasked; making a string of its version takes longer
        is_plain = keep_alive and b"connection" not in headers
        version = "1.1" if is_plain else parser.get_http_version()
        self._check_head(version)
        self._fed_bytes = 0
        self.phase = Phase.BODY
        announced = headers.get(b"content-length")
        if announced is not None:
            if len(announced) > _MOST_LENGTH_DIGITS:
                raise Refused(400, "Content-Length has more digits than any length")
            length = int(announced)
            if length > self._limits.max_body_bytes:
                raise self._body_too_large(f" of {length} bytes")
            if length:
                self.assembly = BodyAssembly(length)
        elif b"transfer-encoding" in headers:
            self._check_coding(version, headers[b"transfer-encoding"])
            self.assembly = BodyAssembly(None)
        if b"expect" in headers and version == "1.1":
            if headers[b"expect"].strip().lower() != b"100-continue":
                raise Refused(417, "the only expectation served here is 100-continue")
            self.wants_continue = self.assembly is not None

    def _check_head(self, version: str) -> None:
        limits, headers = self._limits, self._headers
        if len(headers) > limits.max_headers:
            self._check_header_count()
        if self._fed_bytes or limits.max_header_bytes < SLICE_BYTES:
            size = sum(map(len, headers)) + sum(map(len, headers.values()))
            if size > limits.max_header_bytes:
                raise self._head_too_large()
        if version == "1.1":
            if b"host" not in headers:
                raise Refused(400, "header Host is missing; HTTP/1.1 requires it")
        elif version == "1.0":
            self.knows_interim = False
        else:
            raise Refused(505, "only HTTP/1.1 and HTTP/1.0 are served here")
        self._method = self._parser.get_method().decode()
        if self._method == "CONNECT":
            raise Refused(405, "CONNECT is not served here")
        self._admit(self._method, self._target, headers)

    def _check_coding(self, version: str, coding: bytes) -> None:
        """Refuse what another HTTP implementation on the way could frame differently."""
        if version == "1.0":
            raise Refused(400, "Transfer-Encoding does not exist in HTTP/1.0")
        if coding.strip().lower() != b"chunked":
            raise Refused(501, "the only transfer coding served here is chunked")
        if self._parser.should_upgrade():
            raise Refused(400, "an upgrade request with a chunked body is not served")

    def on_body(self, data: bytes) -> None:
        """A piece of the body arrived."""
        assembly = self.assembly
        assert assembly is not None, "a body without framing"
        self.wants_continue = False
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
        assembly = self.assembly
        if assembly is not None and not self._body:
            if assembly.length is not None and not assembly.is_complete:
                return  # llhttp skips the body of an upgrade; `read` goes on to fill it
            self._body = assembly.finish()
        self._emit()

    def _finish_if_complete(self) -> None:
        assembly = self.assembly
        self.wants_continue = False
        if assembly is not None and assembly.is_complete:
            self._body = assembly.finish()
            self._emit()

    def _emit(self) -> None:
        body = self._body
        request = HttpRequest(self._method, self._target, self._headers, body, self._keep_alive)
        self.ready.append(request)
        assembly, self.assembly = self.assembly, None
        if assembly is not None and assembly.claim is not None:
            request.context = assembly.claim
            assembly.claim.finish(len(body))
        self._body = b""
        self.phase = Phase.IDLE
        self.wants_continue = False
        if not self._keep_alive:
            self.has_ended = True
            self._parser = None

    def _head_too_large(self) -> Refused:
        return Refused(431, f"headers are longer than {self._limits.max_header_bytes} bytes")

    def _body_too_large(self, size: str) -> Refused:
        limits = self._limits
        return Refused(
            413,
            f"request body{size} is larger than the limit of {limits.max_body_bytes} bytes;"
            f" the server's setting is {limits.body_setting}",
        )


class GuardedReader(RequestReader):
    """A reader of requests that somebody must allow, by their heads.

    Args:
        check: called once per request, before its body is read. An error that it raises is the
            answer, and ends the connection.
    """

    __slots__ = ("_check",)

    def __init__(self, limits: HttpLimits, check: HeadCheck) -> None:
        super().__init__(limits)
        self._check = check

    @override
    def _admit(self, method: str, target: bytes, headers: Mapping[bytes, bytes]) -> None:
        try:
            self._check(method, target, headers)
        except HloserveError as error:
            raise Refused(http_status(error), str(error), challenge_headers(error)) from error


def _translate(error: Exception) -> Exception:
    """Turn llhttp's error into the answer to it; what our own callbacks raised comes out again."""
    if isinstance(error, httptools.HttpParserCallbackError):
        assert error.__context__ is not None, "httptools keeps the callback's exception"
        cause = error.__context__
        assert isinstance(cause, Exception), "interrupts do not come through a callback"
        return cause
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return Refused(400, "malformed request: not an HTTP method")
    return Refused(400, f"malformed request: {error}")
