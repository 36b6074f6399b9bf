"""One HTTP request and its one answer, as the handlers see it.

What lives here: lazy access to the request, the reply, and what an error looks like over HTTP.
What does not: connections (`hloserve.server.rest_transport`) and routes
(`hloserve.server.rest_service`). Loop thread only.
"""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from hloserve.core.errors import BodyTooLarge, Cancelled, Code, HloserveError
from hloserve.core.logging import log_event
from hloserve.core.tickets import Call, Ticket
from hloserve.models.task_threads import TaskThreads
from hloserve.server.rest_bodies import RETRY_LATER
from hloserve.wire.bytes_in_hand import COUNTED_FROM_BYTES, Account, Claim, Growth
from hloserve.wire.http1_content import Coding, accepted_coding, decode_content, encode_content
from hloserve.wire.http1_messages import (
    Body,
    Headers,
    HttpRequest,
    format_error_body,
    parse_target,
)
from hloserve.wire.status import STATUS, forget_frames, http_status, public_text

__all__ = ["AnswerPath", "Exchange"]

_log = logging.getLogger(__name__)

_CONTROL_BYTES = 2**20
"""Most bytes, decompressed, of a body that is no inference request."""
_FIXED = "fixed for this path"
_QUICK_TEXT_BYTES = 64 * 2**10
"""JSON up to here is read on the loop, in at most a few milliseconds; handing it over takes 0.1."""
_QUICK_PACKED_BYTES = 1024
"""The same for compressed bodies, which may grow a thousandfold."""
_COMPRESSED_FROM_BYTES = 8 * 2**10
"""Smaller answers fit into a few packets, and would wait longer for the compression."""
_COMPRESSED_APART_FROM_BYTES = 32 * 2**10

T = TypeVar("T")


class AnswerPath(Protocol):
    """Where an exchange's answer goes: its connection."""

    account: Account
    """What it takes of the bytes that the process has in hand."""

    def answer(
        self,
        request: HttpRequest,
        status: int,
        body: bytes,
        content_type: str,
        headers: Sequence[tuple[str, str]],
    ) -> None:
        """Send the answer in its turn."""
        ...


class Exchange:
    """One request to answer, by `reply` or `fail`, now or later, once.

    Attributes:
        on_disconnect: set it to learn, once, that the caller left before the answer. Answers
            after that are dropped.
    """

    __slots__ = (
        "_claim",
        "_is_answered",
        "_max_body_bytes",
        "_path",
        "_request",
        "_threads",
        "on_disconnect",
    )

    def __init__(
        self,
        request: HttpRequest,
        path: AnswerPath,
        max_body_bytes: int,
        threads: TaskThreads | None = None,
        claim: Claim | None = None,
    ) -> None:
        self._claim = claim
        self._request = request
        self._path: AnswerPath | None = path
        self._max_body_bytes = max_body_bytes
        self._threads = threads
        self._is_answered = False
        self.on_disconnect: Callable[[], None] | None = None

    @property
    def method(self) -> str:
        """GET, POST, ...; a HEAD is answered like a GET, its body is left out on the way."""
        return self._request.method

    @property
    def target(self) -> bytes:
        """The request target as it was sent."""
        return self._request.target

    @property
    def path(self) -> str:
        """The path as it was sent, undecoded."""
        return parse_target(self._request.target).path

    @property
    def segments(self) -> tuple[str, ...]:
        """The path's segments, each percent-decoded once: a decoded slash separates nothing.

        Raises:
            MalformedBody: a segment cannot be decoded.
        """
        return parse_target(self._request.target).segments

    @property
    def query(self) -> Mapping[str, str]:
        """The decoded query; of a repeated key the last value."""
        return parse_target(self._request.target).query

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by name, in any case."""
        return Headers(self._request.headers)

    def header(self, name: bytes) -> str | None:
        """One header by its lower-case name: the quick way."""
        value = self._request.headers.get(name)
        return None if value is None else value.decode("latin-1").strip()

    @property
    def body(self) -> Body:
        """The body, decompressed if the client compressed it. Read-only.

        Raises:
            UnsupportedMedia: a content coding other than gzip and deflate.
            BodyTooLarge: it grows over the cap.
            MalformedBody: the compressed data is damaged or cut short.
        """
        request = self._request
        packed, coding = request.body, request.headers.get(b"content-encoding")
        if coding is None:
            return packed
        path = self._path
        if path is None:
            raise Cancelled()
        with Growth(path.account) as growth:
            name, limit = coding.decode("latin-1"), self._max_body_bytes
            return decode_content(packed, name, limit, growth=growth)

    @property
    def control_body(self) -> bytes:
        """The body of a request that is small by its nature; the same errors.

        Raises:
            BodyTooLarge: it is not small.
        """
        request, limit = self._request, min(self._max_body_bytes, _CONTROL_BYTES)
        if len(request.body) > limit:
            raise BodyTooLarge(limit, len(request.body), _FIXED)
        coding = request.headers.get(b"content-encoding", b"").decode("latin-1")
        return bytes(decode_content(request.body, coding, limit, _FIXED))

    def takes_long(self, text_bytes: int | None) -> bool:
        """True when the body is better read apart from the loop.

        Args:
            text_bytes: how much of the body is text, as far as the client says so.
        """
        request = self._request
        if b"content-encoding" in request.headers:
            return len(request.body) > _QUICK_PACKED_BYTES
        size = len(request.body)
        return (size if text_bytes is None else min(text_bytes, size)) > _QUICK_TEXT_BYTES

    def run_apart(
        self, function: Callable[[], T], then: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Run what takes long on another thread, then go on; not when the caller has gone.

        Args:
            function: pure; whatever it uses must not change meanwhile.
            then: called with its result or what it raised, on the loop. What it raises in turn
                fails the exchange.
        """
        call: Call[T] = Call(self._wait_for(function), self._guarded(then))
        self.on_disconnect = call.cancel
        call.step()

    async def _wait_for(self, function: Callable[[], T]) -> T:
        if self._threads is None:
            return function()
        ticket: Ticket[T] = self._threads.run(function)
        return await ticket

    def _guarded(
        self, then: Callable[[T | None, Exception | None], None]
    ) -> Callable[[T | None, Exception | None], None]:
        def done(value: T | None, error: Exception | None) -> None:
            self.on_disconnect = None
            try:
                then(value, error)
            except Exception as problem:  # noqa: BLE001  # the edge of a request: fail logs it
                self.fail(problem)

        return done

    def hold(self, nbytes: int) -> None:
        """Count what was made of the body, until the answer.

        Raises:
            Overloaded: the process has too many bytes in hand. Retryable.
        """
        if self._claim is not None:
            self._claim.add(nbytes)
        elif self._path is not None and nbytes >= COUNTED_FROM_BYTES:
            self._claim = self._path.account.whole(nbytes)

    def _let_go(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.end()

    @property
    def is_answered(self) -> bool:
        """True once answered, or once the caller has gone."""
        return self._is_answered

    def reply(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Answer. Ignored when the caller has gone.

        Args:
            status: 200 to 599.
            body: sent as it is; not copied when it is large, so it must not change.
            content_type: empty for none.
            headers: further headers.
        """
        path = self._path
        if path is None:
            assert not self._is_answered, "an exchange was answered twice"
            return
        self._is_answered = True
        if self._claim is not None:
            self._let_go()
        if len(body) < _COMPRESSED_FROM_BYTES:
            self._path = self.on_disconnect = None
            path.answer(self._request, status, body, content_type, headers)
        else:
            self._reply_large(status, body, content_type, headers)

    def _reply_large(
        self, status: int, body: bytes, content_type: str, headers: Sequence[tuple[str, str]]
    ) -> None:
        if self._request.method != "HEAD":
            coding = accepted_coding(self._request.headers.get(b"accept-encoding", b""))
            if coding is not None:
                self._reply_packed(status, body, content_type, headers, coding)
                return
        self._send(status, body, content_type, headers)

    def _send(
        self, status: int, body: bytes, content_type: str, headers: Sequence[tuple[str, str]]
    ) -> None:
        path = self._path
        self._path = self.on_disconnect = None
        if path is not None:
            path.answer(self._request, status, body, content_type, headers)

    def _reply_packed(
        self,
        status: int,
        body: bytes,
        content_type: str,
        headers: Sequence[tuple[str, str]],
        coding: Coding,
    ) -> None:
        """Answer with a content coding, unless the body hardly shrinks."""

        def send(packed: bytes | None, error: Exception | None) -> None:
            varied = (*headers, ("Vary", "Accept-Encoding"))
            if packed is None:  # also when nobody had time for it
                self._send(status, body, content_type, varied)
            else:
                self._send(status, packed, content_type, (*varied, ("Content-Encoding", coding)))

        if len(body) >= _COMPRESSED_APART_FROM_BYTES:
            self.run_apart(lambda: encode_content(body, coding), send)
        else:
            send(encode_content(body, coding), None)

    def fail(self, error: BaseException) -> None:
        """Answer with an error: ``{"error": "..."}`` and the status of its type.

        What is not the caller's to know is logged with its traceback under a request id, and the
        caller gets the id. Ignored when already answered: only the first outcome counts.
        """
        if self._path is None or self._is_answered:
            return
        status, request_id = 500, ""
        if isinstance(error, HloserveError):
            status = http_status(error)
        if status == STATUS[Code.INTERNAL].http:
            request_id = secrets.token_hex(8)
            log_event(
                _log,
                "request_failed",
                level=logging.ERROR,
                error=error,
                request_id=request_id,
                method=self.method,
                target=self._request.target[:200].decode("latin-1"),
            )
        body = format_error_body(public_text(error, request_id))
        forget_frames(error)
        self.reply(status, body, headers=RETRY_LATER if status in (429, 503) else ())

    def disconnected(self) -> None:
        """Called by the connection when it is lost; tells the handler, once."""
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        self._path = None
        self._let_go()
        if on_disconnect is not None:
            on_disconnect()
