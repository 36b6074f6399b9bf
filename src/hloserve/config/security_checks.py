"""What the security settings must be together: TLS files that belong together, safe addresses.

What lives here: checks that need more than one value, or a name to be resolved. What does not: the
content of the files (`hloserve.server`). Called once per process.
"""

import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping

from hloserve.config.schema import WorkerConfig
from hloserve.core.errors import ConfigProblem

__all__ = ["check_security_files", "is_loopback", "require_safe_address"]

_FILES = ("tls.certificate", "tls.key", "tls.client_ca", "access.tokens_file")


def check_security_files(
    config: WorkerConfig, sources: Mapping[str, str]
) -> Iterator[ConfigProblem]:
    """Find files that do not exist, and files that are of no use without another."""
    tls = config.tls
    paths = dict(
        zip(
            _FILES, (tls.certificate, tls.key, tls.client_ca, config.access.tokens_file),
            strict=True,
        )
    )  # fmt: skip
    for name, path in paths.items():
        if path and not os.path.exists(path):
            yield ConfigProblem(sources[name], f"$.{name}", f"{path!r} does not exist")
    for name in ("tls.key", "tls.client_ca"):
        if paths[name] and not tls.certificate:
            yield ConfigProblem(
                sources[name], f"$.{name}", "is of no use without tls.certificate; set that too"
            )


def require_safe_address(config: WorkerConfig, sources: Mapping[str, str]) -> None:
    """Refuse to serve strangers by accident.

    Raises:
        ConfigProblem: others can reach the address, and there is neither TLS nor are there tokens.
    """
    endpoints = config.endpoints
    if (
        endpoints.insecure
        or config.tls.certificate
        or config.access.tokens_file
        or is_loopback(endpoints.host)
    ):
        return
    raise ConfigProblem(
        sources["endpoints.host"],
        "$.endpoints.host",
        f"{endpoints.host} can be reached from other machines, and there is neither TLS nor are"
        " there tokens: set access.tokens_file (--tokens-file FILE), or tls.certificate and tls.key"
        " (--tls-certificate FILE --tls-key FILE), or say that it is meant with"
        " endpoints.insecure (--insecure, HLOSERVE_ENDPOINTS_INSECURE=true)",
    )


def is_loopback(host: str) -> bool:
    """True when nobody but this machine can reach an address, or when it does not exist."""
    try:
        found = socket.getaddrinfo(host, None, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return True  # binding it will tell
    return all(_is_loopback(str(address[4][0])) for address in found)


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
