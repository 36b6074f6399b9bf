"""The REST endpoints of the V2 protocol: route, decode, call, encode.

What lives here: one route table. What does not: JSON and binary bodies (`wire.v2_json`), behaviour
(`server.inference`, `server.catalog`) and HTTP (`server.rest_transport`). Loop thread.

Source: V2 protocol, REST; where published servers disagree, docs/protocol.md says what is done.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from hloserve.core.clock import Clock
from hloserve.core.errors import HloserveError
from hloserve.core.requests import NEVER_NS, InferRequest, InferResponse, Parameter
from hloserve.core.tickets import Call
from hloserve.server.catalog import Catalog
from hloserve.server.inference import InferenceService
from hloserve.server.openapi import openapi_json
from hloserve.server.operations import Operations
from hloserve.server.operations_rest import OperationsEndpoints
from hloserve.server.repository_control import RepositoryControl
from hloserve.server.rest_exchange import Exchange
from hloserve.server.shared_memory_rest import SharedMemoryEndpoints
from hloserve.wire import v2_json as codec
from hloserve.wire.v2_json_values import RawValues, decode_json, decode_values

__all__ = ["RestInferenceService"]

_Endpoint: TypeAlias = Callable[[Exchange, str, str], None]
"""Answers one exchange about a model and a version; both empty where the path names none."""

_DOCS_PAGE = Path(__file__).with_name("pages") / "docs.html"

_STATISTICS = ("v2", "models", "stats")
"""The statistics of all models, unless there is a model of that name."""

_Decoded: TypeAlias = tuple[InferRequest, codec.OutputForms]
_Encoded: TypeAlias = tuple[bytes, str, int | None]

_TARGETS_KEPT = 1024

_QUICK_VALUES = 16_384
"""Values written as JSON on the loop; more take longer than handing them to another thread."""

_Methods: TypeAlias = Mapping[str, _Endpoint]


class RestInferenceService:
    """Routes V2 requests to the inference service, the catalog and the repository.

    Args:
        pages: static HTML pages by path, e.g. ``/demo``, besides ``/docs``; read when they are
            asked for.
    """

    def __init__(
        self,
        inference: InferenceService,
        catalog: Catalog,
        control: RepositoryControl,
        operations: Operations,
        clock: Clock,
        pages: Mapping[str, Path],
    ) -> None:
        self._inference = inference
        self._catalog = catalog
        self._control = control
        self._shared_memory = SharedMemoryEndpoints(inference.shared_memory)
        self._clock = clock
        self._pages = {"/docs": _DOCS_PAGE, **pages}
        endpoints = OperationsEndpoints(operations)
        trace = _get(endpoints.trace_settings) | {"POST": endpoints.set_trace_settings}
        self._statistics_of_all = _get(endpoints.statistics)
        self._fixed: Mapping[tuple[str, ...], _Methods] = {
            ("v2",): _get(self._server_metadata),
            ("v2", "health", "live"): _get(self._live),
            ("v2", "health", "ready"): _get(self._ready),
            ("v2", "openapi.json"): _get(self._openapi),
            ("v2", "repository", "index"): {"POST": self._index},
            ("v2", "trace", "setting"): trace,
            ("v2", "logging"): _get(endpoints.log_settings) | {"POST": endpoints.set_log_settings},
        }
        self._of_model: Mapping[tuple[str, ...], _Methods] = {
            (): _get(self._model_metadata),
            ("ready",): _get(self._model_ready),
            ("infer",): {"POST": self._first_infer},
            ("config",): _get(endpoints.config),
            ("stats",): _get(endpoints.statistics),
            ("trace", "setting"): trace,
        }
        self._infer_targets: dict[bytes, tuple[str, str]] = {}
        self._of_repository: Mapping[str, _Methods] = {
            "load": {"POST": self._load},
            "unload": {"POST": self._unload},
        }

    def __call__(self, exchange: Exchange) -> None:
        """Answer one request, now or later."""
        try:
            named = self._infer_targets.get(exchange.target)
            if named is not None and exchange.method == "POST":
                self._infer(exchange, *named)
            else:
                self._route(exchange)
        except HloserveError as error:
            exchange.fail(error)

    def _route(self, exchange: Exchange) -> None:
        segments = exchange.segments
        model = version = ""
        if segments[:2] == ("v2", "models") and len(segments) > 2:
            model, version, rest = _split_model_path(segments[2:])
            methods = self._of_model.get(rest)
            if segments == _STATISTICS and not self._catalog.knows(model):
                model, methods = "", self._statistics_of_all
        elif segments[:2] == ("v2", "repository"):
            model, methods = self._route_repository(segments[2:])
        elif segments[:1] == ("v2",) and segments not in self._fixed:
            model, methods = self._shared_memory.find(segments[1:])
        else:
            methods = self._fixed.get(segments)
        if methods is None:
            methods = self._page(exchange.path)
        endpoint = methods.get(exchange.method)
        if endpoint is not None:
            endpoint(exchange, model, version)
        elif methods:
            allowed = ", ".join(sorted(methods))
            body = codec.encode_error(f"{exchange.method} is not for this path; use {allowed}")
            exchange.reply(405, body, headers=(("Allow", allowed),))
        else:
            body = codec.encode_error(f"no such endpoint: {exchange.path}")
            exchange.reply(404, body)

    def _route_repository(self, rest: tuple[str, ...]) -> tuple[str, _Methods | None]:
        """Find the endpoint of ``[REPOSITORY/]index`` or ``[REPOSITORY/]models/MODEL/load``."""
        if rest[-1:] == ("index",) and len(rest) <= 2:
            return "", self._fixed["v2", "repository", "index"]
        if rest[:1] != ("models",) or len(rest) != 3:
            rest = rest[1:]  # the name of a repository; there is one
        if rest[:1] == ("models",) and len(rest) == 3:
            return rest[1], self._of_repository.get(rest[2])
        return "", None

    def _first_infer(self, exchange: Exchange, model: str, version: str) -> None:
        """Answer an inference request whose target was never seen, and keep what it names.

        Routing takes 3 us, which is a tenth of what a small request takes as a whole.
        """
        if len(self._infer_targets) >= _TARGETS_KEPT:
            self._infer_targets.clear()
        self._infer_targets[exchange.target] = (model, version)
        self._infer(exchange, model, version)

    def _infer(self, exchange: Exchange, model: str, version: str) -> None:
        now_ns = self._clock.now_ns()
        length = exchange.header(b"inference-header-content-length")
        if exchange.takes_long(None if length is None else codec.stated_length(length)):
            self._infer_apart(exchange, model, version, length, now_ns)
        else:
            request, forms = codec.decode_infer_request(
                model, version, exchange.body, length, now_ns, NEVER_NS
            )
            self._begin(exchange, model, request, forms)

    def _infer_apart(
        self, exchange: Exchange, model: str, version: str, length: str | None, now_ns: int
    ) -> None:
        """Read a long body on another thread, then go on as with a short one."""

        def decode() -> _Decoded:
            return codec.decode_infer_request(
                model, version, exchange.body, length, now_ns, NEVER_NS
            )

        def begin(decoded: _Decoded | None, error: Exception | None) -> None:
            if decoded is None:
                assert error is not None, "a body is read or it is not"
                exchange.fail(error)
            else:
                inputs = decoded[0].inputs.values()
                exchange.hold(sum(array.nbytes for array in inputs))  # the text is kept beside
                self._begin(exchange, model, *decoded)

        exchange.run_apart(decode, begin)

    def _begin(
        self, exchange: Exchange, model: str, request: InferRequest, forms: codec.OutputForms
    ) -> None:
        if forms.raw is not None:
            inputs = self._catalog.inputs(model, request.version)
            request.inputs = codec.decode_raw_input(forms.raw, inputs)

        def reply(response: InferResponse | None, error: Exception | None) -> None:
            if response is None:
                assert error is not None, "a request ends with a response or an error"
                exchange.fail(error)
                return
            values = 0
            for array in response.outputs.values():
                values += array.size
            if values <= _QUICK_VALUES or codec.json_values(response, forms) <= _QUICK_VALUES:
                try:
                    _reply(exchange, codec.encode_infer_response(response, forms))
                except HloserveError as problem:  # a value that JSON cannot carry
                    exchange.fail(problem)
                return
            # The arrays may be views of device memory, which is used again after this call.
            response.outputs = {name: array.copy() for name, array in response.outputs.items()}
            exchange.run_apart(
                lambda: codec.encode_infer_response(response, forms), partial(_encoded, exchange)
            )

        in_flight = self._inference.start(request, reply)
        if not exchange.is_answered:
            exchange.on_disconnect = in_flight.cancel

    def _live(self, exchange: Exchange, model: str, version: str) -> None:
        is_live = self._catalog.is_live
        exchange.reply(200 if is_live else 503, codec.encode_live(is_live))

    def _ready(self, exchange: Exchange, model: str, version: str) -> None:
        is_ready = self._catalog.is_ready
        exchange.reply(200 if is_ready else 503, codec.encode_ready(is_ready))

    def _server_metadata(self, exchange: Exchange, model: str, version: str) -> None:
        exchange.reply(200, codec.encode_server_metadata(self._catalog.server_metadata()))

    def _openapi(self, exchange: Exchange, model: str, version: str) -> None:
        exchange.reply(200, openapi_json())

    def _model_metadata(self, exchange: Exchange, model: str, version: str) -> None:
        metadata = self._catalog.model_metadata(model, version)
        exchange.reply(200, codec.encode_model_metadata(metadata))

    def _model_ready(self, exchange: Exchange, model: str, version: str) -> None:
        is_ready = self._catalog.is_model_ready(model, version)
        exchange.reply(200 if is_ready else 503, codec.encode_model_ready(model, is_ready))

    def _index(self, exchange: Exchange, model: str, version: str) -> None:
        wanted = _parse_request(exchange.control_body, _IndexRequest, "repository index")
        entries = self._catalog.index(ready_only=wanted.ready or False)
        exchange.reply(200, codec.encode_index(entries))

    def _load(self, exchange: Exchange, model: str, version: str) -> None:
        parameters = _parse_parameters(exchange.control_body)
        Call(self._control.load(model, parameters), _ended(exchange)).step()

    def _unload(self, exchange: Exchange, model: str, version: str) -> None:
        parameters = _parse_parameters(exchange.control_body)
        Call(self._control.unload(model, parameters), _ended(exchange)).step()

    def _page(self, path: str) -> _Methods:
        page = self._pages.get(path.rstrip("/"))
        if page is None:
            return {}

        def show(exchange: Exchange, model: str, version: str) -> None:
            exchange.reply(200, page.read_bytes(), "text/html; charset=utf-8")

        return _get(show)


def _encoded(exchange: Exchange, encoded: _Encoded | None, error: Exception | None) -> None:
    if encoded is None:
        assert error is not None, "a response is written or it is not"
        exchange.fail(error)
    else:
        _reply(exchange, encoded)


def _reply(exchange: Exchange, encoded: _Encoded) -> None:
    body, content_type, length = encoded
    headers = () if length is None else ((codec.LENGTH_HEADER, str(length)),)
    exchange.reply(200, body, content_type, headers)


class _IndexRequest(msgspec.Struct):
    ready: bool | None = None


class _ChangeRequest(msgspec.Struct):
    parameters: RawValues = {}


_parameters = msgspec.json.Decoder[Parameter](Parameter)


_R = TypeVar("_R", _IndexRequest, _ChangeRequest)


def _parse_request(body: bytes, kind: type[_R], what: str) -> _R:
    if not body.strip():
        return kind()
    return decode_json(body, msgspec.json.Decoder(kind), f"{what} request")


def _parse_parameters(body: bytes) -> dict[str, Parameter]:
    wanted = _parse_request(body, _ChangeRequest, "load or unload")
    return decode_values(wanted.parameters, _parameters, "load or unload request: parameters")


def _ended(exchange: Exchange) -> Callable[[None, Exception | None], None]:
    """Answers an exchange when a change of the repository has ended; success has no body."""

    def done(_: None, error: Exception | None) -> None:
        if error is None:
            exchange.reply(200, b"")
        else:
            exchange.fail(error)

    return done


def _get(endpoint: _Endpoint) -> dict[str, _Endpoint]:
    return {"GET": endpoint, "HEAD": endpoint}


def _split_model_path(segments: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """Split ``NAME[/versions/VERSION]/REST`` into its parts."""
    if len(segments) > 2 and segments[1] == "versions":
        return segments[0], segments[2], tuple(segments[3:])
    return segments[0], "", tuple(segments[1:])
