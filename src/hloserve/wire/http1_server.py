"""HTTP/1.1 without I/O: the server's side of a connection.

What lives here: pipelining, the order of answers, refusals, the output. What does not: parsing
(`hloserve.wire.http1`), message values and head formatting (`hloserve.wire.http1_messages`),
sockets, timers and routing (`hloserve.server.rest_transport`). One thread per connection object.

Rules.
1. Requests are answered strictly in the order they came; `respond` may be called in any order.
2. Whatever is refused gets one error response in its turn, and ends the connection. Nothing that
   follows on it is read.
3. At most `max_pipelined` requests are handed out unanswered, and none after one with a body that
   is long or compressed, or a connection could hold, and keep us at work with, as many of those.
   Beyond them, what one slice of input made is kept as requests, the rest as bytes.
"""

from collections import deque
from collections.abc import Sequence

from hloserve.wire.http1 import (
    SLICE_BYTES,
    GuardedReader,
    HeadCheck,
    Phase,
    Refused,
    RequestReader,
)
from hloserve.wire.http1_body import BodyAssembly
from hloserve.wire.http1_messages import (
    HttpLimits,
    HttpRequest,
    format_error_body,
    format_response_head,
)
from hloserve.wire.http1_preface import PREFACE, Http2Redirect

__all__ = ["CommonHeaders", "HttpServerConnection", "Phase"]

_PREFACE_START = PREFACE[:12]
_TLS_START = b"\x16\x03"
_LONG_BODY_BYTES = 256 * 2**10
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class CommonHeaders:
    """Header lines shared by all connections of a server, e.g. the date; each ends in CRLF."""

    __slots__ = ("lines",)

    def __init__(self, lines: bytes = b"") -> None:
        self.lines = lines


class HttpServerConnection:
    """The server's side of one connection.

    Feed it bytes with `receive` (or straight into `body_buffer`), answer each request with
    `respond`, send `take_output`, and close once `should_close` is true and all is sent.

    Args:
        limits: what may be asked for.
        common: headers of every response.
        check: who may ask; everybody when left out.

    Attributes:
        should_close: True once the last response is in the output.
        is_refused: True once input is thrown away unread, because it broke a rule.
        is_draining: set it to make the last pending response end the connection.
    """

    __slots__ = (
        "_backlog",
        "_common",
        "_is_open",
        "_limits",
        "_opening",
        "_out",
        "_pending",
        "_reader",
        "_redirect",
        "_refusal",
        "is_draining",
        "is_refused",
        "should_close",
    )

    def __init__(
        self,
        limits: HttpLimits,
        common: CommonHeaders | None = None,
        check: HeadCheck | None = None,
    ) -> None:
        self._limits = limits
        self._common = common or CommonHeaders()
        self._reader = RequestReader(limits) if check is None else GuardedReader(limits, check)
        self._pending: deque[HttpRequest] = deque()
        self._out: list[bytes] = []
        self._backlog = b""
        self._opening: bytes | None = b""
        self._redirect: Http2Redirect | None = None
        self._refusal: Refused | None = None
        self._is_open = True
        self.should_close = False
        self.is_draining = False
        self.is_refused = False

    @property
    def phase(self) -> int:
        """What of the next request has arrived."""
        return self._reader.phase

    @property
    def is_full(self) -> bool:
        """True while no further request is taken: there are many, or the last is much work."""
        pending = self._pending
        return bool(pending) and (
            len(pending) >= self._limits.max_pipelined
            or len(pending[-1].body) > _LONG_BODY_BYTES
            or b"content-encoding" in pending[-1].headers
        )

    @property
    def has_work(self) -> bool:
        """True while there is output, input that waits for room, or no room for more."""
        return bool(
            self._out
            or self._backlog
            or self._reader.ready
            or self.should_close
            or len(self._pending) >= self._limits.max_pipelined
        )

    @property
    def has_pending(self) -> bool:
        """True while a request is unanswered, or its answer waits for an earlier one."""
        return bool(self._pending)

    @property
    def knows_interim(self) -> bool:
        """False when the client speaks HTTP/1.0, and must get final responses alone."""
        return self._reader.knows_interim

    @property
    def has_backlog(self) -> bool:
        """True while input waits for room: call `receive(b"")` once not full."""
        return bool(self._backlog or self._reader.ready)

    @property
    def is_blocked(self) -> bool:
        """True while input waits for room, or would have to: read nothing more."""
        return (
            len(self._pending) >= self._limits.max_pipelined
            or bool(self._backlog)
            or bool(self._reader.ready)
        )

    @property
    def assembly(self) -> BodyAssembly | None:
        """The body on its way, while it is not complete."""
        return self._reader.assembly

    def receive(self, data: bytes | memoryview) -> Sequence[HttpRequest]:
        """Take bytes from the peer; return the requests that they complete.

        Malformed input never raises: it becomes an error response in the output.
        """
        if self._opening is not None and self._has_preface(data):
            return ()
        if self._backlog:
            data = self._backlog + bytes(data)
            self._backlog = b""
        requests = self._take_ready() if self._reader.ready else []
        position, end = 0, len(data)
        while position < end and self._is_open and self._refusal is None:
            if self._pending and self.is_full:
                self._backlog = bytes(data[position:])
                break
            is_whole = not position and end <= SLICE_BYTES
            position += self._read(data if is_whole else data[position : position + SLICE_BYTES])
            requests += self._take_ready()
        if self._refusal is not None and not self._reader.ready:
            refusal = self._refusal
            self.refuse(refusal.status, refusal.message, refusal.headers)
        elif self._reader.wants_continue:
            self._send_continue()
        return requests

    def _read(self, piece: bytes | memoryview) -> int:
        try:
            return self._reader.read(piece)
        except Refused as refusal:
            self._refusal = refusal
            if self._opening is not None and self._opening.startswith(_TLS_START):
                text = "this port speaks plain HTTP, the client began with TLS"
                self._refusal = Refused(400, text)
        except MemoryError:
            self._refusal = _out_of_memory()
        return len(piece)

    def body_buffer(self) -> memoryview | None:
        """Where to read the next bytes of a long body into, or None: use `receive`."""
        assembly = self._reader.assembly
        if assembly is None or assembly.length is None or self._backlog or not self._is_open:
            return None
        try:
            return assembly.tail()
        except MemoryError:
            self.refuse(503, _out_of_memory().message)
            return None

    def body_received(self, count: int) -> Sequence[HttpRequest]:
        """Say that `count` bytes were read into `body_buffer`; return the request they complete."""
        self._reader.body_received(count)
        return self._take_ready()

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
        if self.is_draining and self._is_last(request):
            request.keep_alive = self._is_open = False
        close = not request.keep_alive
        head = format_response_head(
            status, content_type, len(body), headers, self._common.lines, close
        )
        request.reply = (head, b"" if request.method == "HEAD" else body)
        request.body = b""  # it may have to wait for the answers before
        self._release()

    def refuse(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        """End the connection with an error response after the pending ones."""
        if self._redirect is not None and not self._redirect.is_done:
            self._out.append(self._redirect.end())
            self.should_close = True
        if not self._is_open:
            return
        self._stop_reading()
        self.is_refused = True
        refusal = HttpRequest("", b"", {}, b"", keep_alive=False)
        self._pending.append(refusal)
        self.respond(refusal, status, format_error_body(message), "application/json", headers)

    def abandon(self) -> list[HttpRequest]:
        """Say that the peer has gone; returns the requests that are still unanswered."""
        unanswered = [request for request in self._pending if request.reply is None]
        for request in self._reader.ready:  # nobody took them
            if request.context is not None:
                request.context.end()
        self._pending.clear()
        self._reader.ready.clear()
        self._out.clear()
        self._stop_reading()
        return unanswered

    def take_output(self) -> list[bytes]:
        """The bytes to send now, in order; each call hands them out once."""
        out, self._out = self._out, []
        return out

    def _take_ready(self) -> list[HttpRequest]:
        """Hand out the requests that there is room for."""
        reader = self._reader
        ready, reader.ready = reader.ready, []
        if ready:
            is_alone = len(ready) == 1 and not self._pending
            if not is_alone and len(ready) > (room := self._room_for(ready)):
                reader.ready = ready[room:]
                del ready[room:]
            self._pending += ready
            self._opening = None
            if reader.has_ended:
                self._is_open = False
        return ready

    def _room_for(self, ready: Sequence[HttpRequest]) -> int:
        """How many of some requests may be handed out."""
        if self._pending and self.is_full:
            return 0
        room = self._limits.max_pipelined - len(self._pending)
        for number, request in enumerate(ready[:room], 1):
            if b"content-encoding" in request.headers:
                return number
        return room

    def _has_preface(self, data: bytes | memoryview) -> bool:
        """Look at the first bytes of the connection for a client that means the gRPC port."""
        before = self._opening or b""
        start = before + bytes(data[: len(_PREFACE_START) - len(before)])
        self._opening = start
        redirect = self._redirect
        if redirect is None:
            if start != _PREFACE_START:
                return False
            redirect = Http2Redirect(self._limits.grpc_hint, len(PREFACE) - len(before))
            self._redirect = redirect
            self._stop_reading()
            self._reader.phase = Phase.HEAD  # the time for a head is the time for a call
            self.is_refused = True
        if not redirect.is_done:
            self._out.append(redirect.receive(data))
            self.should_close = redirect.is_done
        return True

    def _stop_reading(self) -> None:
        self._is_open = False
        self._reader.close()
        self._backlog = b""
        self._refusal = None

    def _is_last(self, request: HttpRequest) -> bool:
        pending = self._pending
        return bool(pending) and pending[-1] is request and not self._reader.ready

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
        if self._reader.wants_continue:
            self._send_continue()

    def _send_continue(self) -> None:
        """Ask for the body, once the earlier requests are answered."""
        if not self._pending:
            self._out.append(_CONTINUE)
            self._reader.wants_continue = False


def _out_of_memory() -> Refused:
    return Refused(503, "not enough memory for the request body; try again later")
