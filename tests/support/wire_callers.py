"""Callers of the services without a connection: what they are answered is kept."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hloserve.core.requests import NEVER_NS
from hloserve.server.grpc_transport import Rpc
from hloserve.server.rest_exchange import Exchange
from hloserve.wire.bytes_in_hand import BytesInHand
from hloserve.wire.http1_messages import HttpRequest


class GrpcCaller(Rpc):
    """One call, and what it is answered."""

    __slots__ = ("answer", "error")

    def __init__(self, message: bytes, deadline_ns: int = NEVER_NS) -> None:
        self.stream_id, self.message, self.deadline_ns = 1, message, deadline_ns
        self.on_cancel = None
        self.answer: bytes | None = None
        self.error: tuple[int, str] | None = None
        self.connection = SimpleNamespace(  # what a call uses of one
            http2=SimpleNamespace(respond=self._respond, fail=self._fail), wrote=lambda: None
        )

    def _respond(self, stream: int, message: bytes) -> None:
        self.answer = message

    def _fail(self, stream: int, code: int, text: str) -> None:
        self.error = code, text


class RestCaller:
    """One request, and what it is answered."""

    def __init__(
        self, method: str, target: str, body: bytes, headers: "dict[bytes, bytes] | None" = None
    ) -> None:
        request = HttpRequest(method, target.encode(), headers or {}, body, keep_alive=True)
        self.account = BytesInHand(1 << 30).account()
        self.exchange = Exchange(request, self, 1 << 20)
        self.status = 0
        self.body = b""
        self.headers: dict[str, str] = {}

    def answer(
        self,
        request: HttpRequest,
        status: int,
        body: bytes,
        content_type: str,
        headers: Sequence[tuple[str, str]],
    ) -> None:
        """Keep the answer."""
        self.status, self.body = status, body
        self.headers = {**dict(headers), "Content-Type": content_type}

    @property
    def json(self) -> Any:
        """The body of the answer."""
        return json.loads(self.body)
