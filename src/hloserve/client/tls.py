"""TLS under the blocking client: handshakes, and what is wrong when they fail.

What lives here: the only use of `ssl` in the client; its errors are translated here. What does not:
when to connect (`hloserve.client.connection`). Imported by those who use TLS. A socket belongs to
one thread at a time.
"""

import socket
import ssl

from hloserve.client.address import Address
from hloserve.core.errors import BadRequest, HloserveError, NotPossibleNow, Unavailable

__all__ = ["TlsSocket", "build_context", "start_tls"]

# Source: X509_V_ERR_* of OpenSSL's x509_vfy.h.
_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN_ISSUERS = frozenset({2, 18, 19, 20, 21})
_OTHER_NAMES = frozenset({62, 64})


def build_context(
    ca_file: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """A client's context.

    Args:
        ca_file: authorities to trust instead of the system's, in PEM.
        certificate: the client's own, in PEM, for servers that want one.
        key: its private key; None when the certificate's file holds it too.

    Raises:
        BadRequest: a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # also ssl.SSLError
        raise BadRequest(f"authorities in {ca_file}: {_file_fault(error)}") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:
            files = certificate if key is None else f"{certificate} with the key in {key}"
            raise BadRequest(f"client certificate {files}: {_file_fault(error)}") from error
    elif key is not None:
        raise BadRequest("a client's key is of no use without its certificate")
    return context


class TlsSocket:
    """A TLS connection that looks like a plain non-blocking socket."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        self._socket = connected

    def fileno(self) -> int:
        """For polling. A read takes a whole record at a time, so nothing waits unseen."""
        return self._socket.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        """As a socket's."""
        self._socket.setblocking(is_blocking)

    def send(self, data: memoryview) -> int:
        """As a socket's."""
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def recv_into(self, buffer: memoryview) -> int:
        """As a socket's; the text of an error is for people."""
        try:
            return self._socket.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error
        except ssl.SSLEOFError:
            return 0
        except ssl.SSLError as error:
            raise OSError(error.errno, _alert(error)) from error

    def close(self) -> None:
        """As a socket's."""
        self._socket.close()


def start_tls(
    connected: socket.socket, context: ssl.SSLContext, address: Address, timeout_s: float | None
) -> TlsSocket:
    """Make a TLS connection of a TCP connection; it is closed when that fails.

    Args:
        connected: the TCP connection.
        context: whom to trust; its ALPN is set to h2.
        address: whom it leads to; the certificate must be for its host.
        timeout_s: for the handshake.

    Raises:
        NotPossibleNow: the two do not trust each other; the message says why.
        BadRequest: the peer does not speak TLS.
        Unavailable: the connection was lost, or took too long. Retryable.
    """
    context.set_alpn_protocols(["h2"])
    connected.settimeout(timeout_s)
    host = address.host.partition("%")[0]
    try:
        return TlsSocket(context.wrap_socket(connected, server_hostname=host))
    except TimeoutError as error:
        connected.close()
        raise Unavailable(f"{address} did not answer the TLS handshake in time") from error
    except ssl.SSLCertVerificationError as error:
        connected.close()
        raise NotPossibleNow(f"{address} is not trusted: {_distrust(error, host)}") from error
    except ssl.SSLError as error:
        connected.close()
        raise _handshake_fault(error, address) from error
    except OSError as error:
        connected.close()
        raise Unavailable(
            f"{address} closed the connection during the TLS handshake:"
            f" {error.strerror or error}; does it speak TLS?"
        ) from error


def _distrust(error: ssl.SSLCertVerificationError, host: str) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate, or one above it, has expired"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet; is the clock of this machine right?"
    if code in _OTHER_NAMES:
        return f"its certificate is not for {host!r}; use a name that it is for"
    if code in _UNKNOWN_ISSUERS:
        return (
            "its certificate is of an authority that is not trusted here; give the file of that"
            " authority (--ca-file, or tls=ssl.create_default_context(cafile=...))"
        )
    return error.verify_message


def _handshake_fault(error: ssl.SSLError, address: Address) -> HloserveError:
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return BadRequest(
            f"{address} does not speak TLS; write the address without grpcs://, and no tls="
        )
    if isinstance(error, ssl.SSLEOFError):
        return Unavailable(
            f"{address} closed the connection during the TLS handshake; does it speak TLS?"
        )
    return NotPossibleNow(f"no TLS with {address}: {_alert(error)}")


def _alert(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "certificate required" in reason or "handshake failure" in reason:
        return f"the server wants a client's certificate, or other settings ({reason})"
    if "unknown ca" in reason or "bad certificate" in reason or "certificate expired" in reason:
        return f"the server does not accept this client's certificate ({reason})"
    return reason


def _file_fault(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to it"
        return f"is not what it should be, in PEM ({error.reason or error})"
    return error.strerror or str(error)
