"""The admin port: health, readiness and metrics for operators and their tools.

What lives here: three paths. What does not: the V2 health endpoints (`server.rest_service`) and
what is counted (`server.metrics`). Loop thread.
"""

from hloserve.server.catalog import Catalog
from hloserve.server.metrics import Exposition
from hloserve.server.rest_transport import Exchange

__all__ = ["AdminService"]

_TEXT = "text/plain; charset=utf-8"


class AdminService:
    """Answers `/healthz`, `/readyz` and `/metrics`."""

    def __init__(self, catalog: Catalog, exposition: Exposition) -> None:
        self._catalog = catalog
        self._exposition = exposition

    def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        if exchange.method not in ("GET", "HEAD"):
            exchange.reply(405, b"method not allowed\n", _TEXT, (("Allow", "GET, HEAD"),))
        elif exchange.segments == ("healthz",):
            if self._catalog.is_live:
                exchange.reply(200, b"ok\n", _TEXT)
            else:
                exchange.reply(503, b"not live\n", _TEXT)
        elif exchange.segments == ("readyz",):
            if self._catalog.is_ready:
                exchange.reply(200, b"ok\n", _TEXT)
            else:
                exchange.reply(503, b"not ready\n", _TEXT)
        elif exchange.segments == ("metrics",):
            exchange.reply(200, self._exposition.render(), self._exposition.content_type)
        else:
            exchange.reply(404, b"not found; try /healthz, /readyz or /metrics\n", _TEXT)
