"""One HTTP request and its one answer, as the handlers see it.

What lives here: lazy access to the request, the reply, and what an error looks like over HTTP.
What does not: connections (`hloserve.server.rest_transport`) and routes
(`hloserve.server.rest_service`). Loop thread only.
"""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hloserve.core.errors import Code, HloserveError
from hloserve.core.logging import log_event
from hloserve.wire.http1_content import decode_content
from hloserve.wire.http1_messages import (
    Body,
    Headers,
    HttpRequest,
    format_error_body,
    parse_target,
)
from hloserve.wire.status import STATUS, http_status, public_text

__all__ = ["AnswerPath", "Exchange"]

_log = logging.getLogger(__name__)
_RETRY_LATER = (("Retry-After", "1"),)


class AnswerPath(Protocol):
    """Where an exchange's answer goes: its connection."""

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

    __slots__ = ("_is_answered", "_max_body_bytes", "_path", "_request", "on_disconnect")

    def __init__(self, request: HttpRequest, path: AnswerPath, max_body_bytes: int) -> None:
        self._request = request
        self._path: AnswerPath | None = path
        self._max_body_bytes = max_body_bytes
        self._is_answered = False
        self.on_disconnect: Callable[[], None] | None = None

    @property
    def method(self) -> str:
        """GET, POST, ...; a HEAD is answered like a GET, its body is left out on the way."""
        return self._request.method

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
        coding = request.headers.get(b"content-encoding")
        if coding is None:
            return request.body
        return decode_content(request.body, coding.decode("latin-1"), self._max_body_bytes)

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
        self._path = self.on_disconnect = None
        self._is_answered = True
        path.answer(self._request, status, body, content_type, headers)

    def fail(self, error: BaseException) -> None:
        """Answer with an error: ``{"error": "..."}`` and the status of its type.

        What is not the caller's to know is logged with its traceback under a request id, and the
        caller gets the id. Ignored when already answered: only the first outcome counts.
        """
        if self._path is None:
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
        self.reply(status, body, headers=_RETRY_LATER if status in (429, 503) else ())

    def disconnected(self) -> None:
        """Called by the connection when it is lost; tells the handler, once."""
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        self._path = None
        if on_disconnect is not None:
            on_disconnect()
