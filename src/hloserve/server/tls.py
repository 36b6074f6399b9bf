"""The server's TLS contexts: files and settings to `ssl.SSLContext`.

What lives here: one function per question. What does not: listening (`hloserve.server.listening`)
and when the files are read again (`hloserve.server.security`). Any thread.

Source: RFC 9113 section 9.2 (what HTTP/2 asks of TLS 1.2).
"""

import ssl

from hloserve.config.schema import TlsConfig
from hloserve.core.errors import ConfigProblem
from hloserve.server.secret_files import read_secret

__all__ = ["build_context", "check_files"]

# Forward secrecy and authenticated encryption; TLS 1.3 has nothing else.
_CIPHERS_OF_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def check_files(config: TlsConfig) -> None:
    """Look at the files as text, for messages that TLS libraries do not give.

    Raises:
        ConfigProblem: one of them cannot be used; the message says which and why.
    """
    certificate = config.certificate
    _check_pem(certificate, "tls.certificate", b"CERTIFICATE-----", is_secret=not config.key)
    if config.key:
        _check_pem(config.key, "tls.key", b"PRIVATE KEY-----")
    else:
        _check_pem(certificate, "tls.key", b"PRIVATE KEY-----")
    if config.client_ca:
        _check_pem(config.client_ca, "tls.client_ca", b"CERTIFICATE-----", is_secret=False)


def build_context(config: TlsConfig, *, asks_clients: bool) -> ssl.SSLContext:
    """Make a context of the files as they are now.

    Args:
        config: the settings; `certificate` is set.
        asks_clients: clients must show a certificate, if there is a `client_ca`.

    Raises:
        ConfigProblem: a file cannot be used; the message says which and why.
    """
    certificate, key = config.certificate, config.key or config.certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.minimum_version]
    context.set_ciphers(_CIPHERS_OF_1_2)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigProblem(certificate, "tls.certificate", _reason(error, key)) from error
    if asks_clients and config.client_ca:
        try:
            context.load_verify_locations(config.client_ca)
        except (OSError, ValueError) as error:
            raise ConfigProblem(
                config.client_ca, "tls.client_ca", _reason(error, config.client_ca)
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_pem(path: str, setting: str, mark: bytes, *, is_secret: bool = True) -> None:
    data = read_secret(path, setting, is_secret=is_secret)
    if mark not in data:
        kind = mark.rstrip(b"-").decode().lower()
        raise ConfigProblem(
            path, setting, f"holds no {kind} in PEM (a text with a line BEGIN {kind.upper()})"
        )
    if is_secret and (b"ENCRYPTED PRIVATE KEY" in data or b"Proc-Type: 4,ENCRYPTED" in data):
        raise ConfigProblem(path, setting, _NOT_ENCRYPTED)


_NOT_ENCRYPTED = (
    "is an encrypted key, and nobody could be asked for its password when it is read again; give it"
    " unencrypted, readable by the server alone"
)


def _no_password() -> str:
    raise ValueError(_NOT_ENCRYPTED)


def _reason(error: Exception, key: str) -> str:
    if not isinstance(error, ssl.SSLError):
        return getattr(error, "strerror", None) or str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"does not belong to the key in {key}"
    return f"cannot be used, or the key in {key} cannot: {error.reason or error}"
