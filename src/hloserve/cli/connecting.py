"""The options by which commands reach a server: address, deadline, token, TLS.

What lives here: options, and what is made of them. What does not: the client (`hloserve.client`).
Main thread.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from hloserve.client import Client

__all__ = ["DEFAULT_URL", "connection_options", "open_client", "parse_timeout"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

DEFAULT_URL = "127.0.0.1:8001"
_FILE = click.Path(dir_okay=False, path_type=Path)


def connection_options(command: Decorated) -> Decorated:
    """Add the options that `open_client` takes to a command."""
    options = (
        click.option(
            "--url", default=DEFAULT_URL, show_default=True, metavar="ADDRESS",
            help="The server's gRPC address; with grpcs:// over TLS.",
        ),
        click.option(
            "--token-file", type=_FILE, metavar="FILE", help="Send the token that FILE holds."
        ),
        click.option(
            "--ca-file", type=_FILE, metavar="FILE",
            help="Speak TLS, and trust these authorities instead of the system's.",
        ),
        click.option("--client-cert", type=_FILE, metavar="FILE", help="Certificate to show."),
        click.option("--client-key", type=_FILE, metavar="FILE", help="Its private key."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def open_client(
    url: str,
    *,
    timeout_s: float,
    token_file: Path | None = None,
    ca_file: Path | None = None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
) -> "Client":
    """Make a client of the options.

    Raises:
        UsageError: the token's file holds none.
        BadRequest: the address or a file cannot be used.
    """
    from hloserve.client import Client

    files = [None if file is None else str(file) for file in (ca_file, client_cert, client_key)]
    context = None
    if any(files) or url.lower().startswith("grpcs://"):
        from hloserve.client.tls import build_context

        context = build_context(*files)
    token = None if token_file is None else _read_token(token_file)
    return Client(url, timeout_s=timeout_s, token=token, tls=context)


def parse_timeout(text: str) -> float:
    """Read the value of ``--timeout``, in seconds.

    Raises:
        UsageError: it is no time.
    """
    from hloserve.core.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"--timeout: {text!r} {error}") from error


def _read_token(file: Path) -> str:
    try:
        words = file.read_text("ascii").split()
    except OSError as error:
        raise click.UsageError(f"--token-file: {file}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        words = []
    if len(words) != 1:  # what it holds is not shown: it may be a token
        raise click.UsageError(f"--token-file: {file} must hold one token, and nothing else")
    return words[0]
