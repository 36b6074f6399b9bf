"""The flags that start a server, which `serve` and `demo` share, and their way into the settings.

What lives here: options and one function. What does not: the settings (`hloserve.config`).
Main thread.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from hloserve.config import LoadedConfig

__all__ = ["FLAG_PATHS", "endpoint_options", "load_settings"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FLAG_PATHS: Mapping[str, str] = {
    "host": "endpoints.host",
    "http_port": "endpoints.http_port",
    "grpc_port": "endpoints.grpc_port",
    "admin_port": "endpoints.admin_port",
    "insecure": "endpoints.insecure",
    "tls_certificate": "tls.certificate",
    "tls_key": "tls.key",
    "tls_client_ca": "tls.client_ca",
    "tokens_file": "access.tokens_file",
    "backend": "runtime.backend",
    "device_ordinal": "runtime.device_ordinal",
    "include": "models_include",
    "model_control_mode": "model_control_mode",
    "strict_startup": "strict_startup",
    "drain_timeout": "drain_timeout_s",
    "log_level": "logging.level",
    "log_format": "logging.format",
}
"""The setting of each flag, by the flag's parameter."""


def endpoint_options(command: Decorated) -> Decorated:
    """Add the options for addresses, security, device and log to a command."""
    options = (
        click.option("--host", metavar="ADDRESS", help="Address to bind. [default: 127.0.0.1]"),
        click.option("--http-port", type=int, metavar="PORT", help="REST. [default: 8000]"),
        click.option("--grpc-port", type=int, metavar="PORT", help="gRPC. [default: 8001]"),
        click.option(
            "--admin-port",
            type=int,
            metavar="PORT",
            help="Health and metrics. [default: 8002] Port 0 lets the system pick.",
        ),
        click.option(
            "--ports-file",
            type=click.Path(dir_okay=False, writable=True, path_type=Path),
            metavar="FILE",
            help='Write {"http":..., "grpc":..., "admin":...} to FILE once all listen.',
        ),
        click.option("--tokens-file", metavar="FILE", help="Bearer tokens that calls must have."),
        click.option("--tls-certificate", metavar="FILE", help="Serve TLS with this certificate."),
        click.option("--tls-key", metavar="FILE", help="The certificate's private key."),
        click.option(
            "--tls-client-ca", metavar="FILE", help="Clients must have certificates of these."
        ),
        click.option(
            "--insecure",
            is_flag=True,
            default=None,
            help="Let other machines in without TLS and without tokens.",
        ),
        click.option("--backend", metavar="KIND", help="cpu or cuda. [default: cpu]"),
        click.option("--device-ordinal", type=int, metavar="N", help="Which device of that kind."),
        click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
        click.option("--log-format", metavar="FORMAT", help="text, json or auto."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def load_settings(file: Path | None, flags: Mapping[str, object]) -> "LoadedConfig":
    """Read the settings of this process.

    Args:
        file: the node file, if one was given.
        flags: values by dotted path, or by the parameter names of `FLAG_PATHS`.

    Raises:
        ConfigProblem: something is wrong; exit status 2.
    """
    from hloserve.config import load

    return load(file, os.environ, {FLAG_PATHS.get(name, name): v for name, v in flags.items()})
