"""Raw HTTP/1.1 requests, and a connection to feed them to, for the tests of the REST side."""

from hloserve.wire.http1_client import HttpClientConnection
from hloserve.wire.http1_messages import HttpLimits, HttpRequest, HttpResponse
from hloserve.wire.http1_server import HttpServerConnection


def request(
    method: str = "GET", target: str = "/", *headers: str, body: bytes = b"", version: str = "1.1"
) -> bytes:
    """A request with a Host header; headers are whole lines without CRLF."""
    lines = [f"{method} {target} HTTP/{version}", "Host: test", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def post(body: bytes, *headers: str) -> bytes:
    """A POST with a Content-Length."""
    return request("POST", "/p", f"Content-Length: {len(body)}", *headers, body=body)


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    """A POST with a chunked body."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return request(
        "POST", "/c", "Transfer-Encoding: chunked", body=body + b"0\r\n" + trailer + b"\r\n"
    )


def connection(**limits: int) -> HttpServerConnection:
    """A server connection with some limits of its own."""
    return HttpServerConnection(HttpLimits(**limits))  # type: ignore[arg-type]


def feed(http: HttpServerConnection, data: bytes, step: int = 0) -> list[HttpRequest]:
    """Feed bytes, in pieces of `step` when given; returns the requests."""
    pieces = [data] if not step else [data[i : i + step] for i in range(0, len(data), step)]
    return [found for piece in pieces for found in http.receive(piece)]


def output(http: HttpServerConnection) -> bytes:
    """All bytes that the connection wants to send."""
    return b"".join(http.take_output())


def responses(data: bytes) -> list[HttpResponse]:
    """Parse the bytes of one or more responses with our client."""
    client = HttpClientConnection("test")
    for _ in range(data.count(b"HTTP/1.1 ")):
        client.request("GET", "/")
    return client.receive(data)


def refusal(http: HttpServerConnection, data: bytes, step: int = 0) -> tuple[int, str]:
    """Feed bytes that must be refused; returns the status and the error text."""
    assert not feed(http, data, step), "the request was accepted"
    [response] = responses(output(http))
    assert http.should_close
    assert not response.keep_alive
    text = bytes(response.body).decode()
    assert text.startswith('{"error":"')
    return response.status, text[10:-2]
