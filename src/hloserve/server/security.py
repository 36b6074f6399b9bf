"""What guards the ports, from the settings: tokens and TLS, read again when their files change.

What lives here: `Security`, which the listeners ask. What does not: the parts (`server.tokens`,
`server.access`, `server.tls`, `server.secret_files`).

Rules.
1. A file that cannot be used ends the start; later it is told in the log, and what was read before
   stays in force.
2. Nothing that is read here is logged, but for names of tokens and of files.

Threading: `open` and `look` on one thread at a time; what `look` returns is applied by `apply` on
the loop thread.
"""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from hloserve.config.schema import WorkerConfig
from hloserve.config.security_checks import is_loopback
from hloserve.core.errors import ConfigProblem
from hloserve.core.logging import log_event
from hloserve.server.access import Access, GrpcGuard, HttpGuard, ScopeOf
from hloserve.server.secret_files import WatchedFiles, read_secret
from hloserve.server.tls import build_context, check_files
from hloserve.server.tokens import Keyring, parse_tokens

__all__ = ["Contexts", "Renewal", "Security"]

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Contexts:
    """A TLS context for each port: a context belongs to one, because of its protocols."""

    rest: ssl.SSLContext
    grpc: ssl.SSLContext
    admin: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class Renewal:
    """What has changed; None for what has not."""

    keyring: Keyring | None
    contexts: Contexts | None


class Security:
    """Tokens and certificates of one worker.

    Args:
        config: the settings; files are read by `open`.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._tokens_file = config.access.tokens_file
        self._has_tls = bool(config.tls.certificate)
        self._access = Access(Keyring({}))
        self._told = (0, 0)
        self._watched_tokens = WatchedFiles(())
        self._watched_tls = WatchedFiles(())

    @property
    def is_on(self) -> bool:
        """True when there are tokens or TLS, so that there are files to look at."""
        return bool(self._tokens_file) or self._has_tls

    @property
    def grpc_guard(self) -> GrpcGuard | None:
        """The guard of the gRPC port; None when no call needs a token."""
        return GrpcGuard(self._access) if self._tokens_file else None

    def http_guard(self, scope_of: ScopeOf) -> Callable[[], HttpGuard] | None:
        """Makes the guards of an HTTP port's connections; None when no request needs a token."""
        return partial(HttpGuard, self._access, scope_of) if self._tokens_file else None

    def open(self) -> Contexts | None:
        """Read all files; the contexts, None without TLS.

        Raises:
            ConfigProblem: one of them cannot be used.
        """
        tls = self._config.tls
        self._watched_tokens = WatchedFiles((self._tokens_file,))
        self._watched_tls = WatchedFiles((tls.certificate, tls.key, tls.client_ca))
        if self._tokens_file:
            self._access.keyring = self._read_tokens()
        contexts = self._build_contexts() if self._has_tls else None
        self._tell_what_is_open()
        return contexts

    def look(self) -> Renewal:
        """Look whether files have changed, and read those that have. May wait for the disk."""
        keyring, contexts = None, None
        if self._watched_tokens.has_changed():
            keyring = _try(self._read_tokens, "tokens_not_reloaded", self._tokens_file)
        if self._watched_tls.has_changed():
            file = self._config.tls.certificate
            contexts = _try(self._build_contexts, "tls_not_reloaded", file)
        return Renewal(keyring, contexts)

    def apply(self, renewal: Renewal) -> None:
        """Let new tokens count, and tell of calls that were refused. Loop thread."""
        access = self._access
        if renewal.keyring is not None:
            access.keyring = renewal.keyring
            log_event(log, "tokens_reloaded", file=self._tokens_file, tokens=len(renewal.keyring))
        if renewal.contexts is not None:
            log_event(log, "tls_reloaded", certificate=self._config.tls.certificate)
        counts = access.unauthenticated, access.denied
        if counts != self._told:
            log_event(
                log, "calls_refused", level=logging.WARNING,
                without_valid_token=counts[0] - self._told[0],
                without_scope=counts[1] - self._told[1],
            )  # fmt: skip
            self._told = counts

    def _read_tokens(self) -> Keyring:
        data = read_secret(self._tokens_file, "access.tokens_file")
        return parse_tokens(data, self._tokens_file)

    def _build_contexts(self) -> Contexts:
        tls = self._config.tls
        check_files(tls)
        return Contexts(
            rest=build_context(tls, asks_clients=True),
            grpc=build_context(tls, asks_clients=True),
            admin=build_context(tls, asks_clients=tls.client_ca_on_admin_port),
        )

    def _tell_what_is_open(self) -> None:
        """Warn of what is allowed, and yet may not be meant."""
        host = self._config.endpoints.host
        if is_loopback(host):
            return
        if not self.is_on:
            hint = "anyone who can reach the ports may call, and nothing is encrypted"
        elif not self._has_tls:
            hint = "tokens and data are sent in the clear; use TLS, here or in front"
        elif not self._tokens_file and not self._config.tls.client_ca:
            hint = "anyone who can reach the ports may call; use tokens or client certificates"
        else:
            return
        log_event(log, "ports_are_open", level=logging.WARNING, host=host, hint=hint)


def _try(read: Callable[[], T], event: str, file: str) -> T | None:
    try:
        return read()
    except ConfigProblem as problem:
        log_event(
            log, event, level=logging.WARNING, file=file, reason=str(problem),
            hint="what was read before stays in force",
        )  # fmt: skip
        return None
