"""Where a server is: what people write, and host and port.

Pure functions; any thread.
"""

import re
from typing import NamedTuple

from typing_extensions import override

from hloserve.core.errors import BadRequest

__all__ = ["Address", "asks_for_tls", "parse_address"]

_DEFAULT_PORT = 8001
_FORM = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^\[\]:/@?#\s]+))"
    r":(?P<port>[0-9]{1,5})/?"
)


class Address(NamedTuple):
    """Host and port of a gRPC listener; the host without brackets."""

    host: str
    port: int

    @override
    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def asks_for_tls(text: str) -> bool | None:
    """True for ``grpcs://``, False for ``grpc://``, None for an address that does not say."""
    return {"grpcs": True, "grpc": False}.get(_scheme(text))


def parse_address(text: str) -> Address:
    """Read ``host:port``, ``[v6]:port`` or either behind ``grpc://`` or ``grpcs://``.

    Raises:
        BadRequest: it is none of these; the message says what to write.
    """
    scheme = _scheme(text)
    if scheme in ("http", "https"):
        raise BadRequest(
            f"address {text!r} is a URL of the REST port; this client speaks gRPC: write host:port"
            f" of the gRPC port ({_DEFAULT_PORT} by default)"
        )
    match = _FORM.fullmatch(text)
    if match is None or scheme not in ("", "grpc", "grpcs") or not 0 < int(match["port"]) < 65536:
        raise BadRequest(
            f"address {text!r} is not host:port; examples: localhost:{_DEFAULT_PORT},"
            f" [::1]:{_DEFAULT_PORT}, grpc://gpu1.example:{_DEFAULT_PORT}"
        )
    return Address(match["v6"] or match["host"], int(match["port"]))


def _scheme(text: str) -> str:
    return text.partition("://")[0].lower() if "://" in text else ""
