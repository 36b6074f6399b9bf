"""What people may write as a server's address."""

import pytest

from hloserve.client.address import asks_for_tls, parse_address
from hloserve.core.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("localhost:8001", "localhost", 8001, "localhost:8001"),
        ("127.0.0.1:1", "127.0.0.1", 1, "127.0.0.1:1"),
        ("gpu-1.example.org:65535", "gpu-1.example.org", 65535, "gpu-1.example.org:65535"),
        ("my_host:8001", "my_host", 8001, "my_host:8001"),
        ("[::1]:8001", "::1", 8001, "[::1]:8001"),
        ("[fe80::1%eth0]:8001", "fe80::1%eth0", 8001, "[fe80::1%eth0]:8001"),
        ("grpc://localhost:8001", "localhost", 8001, "localhost:8001"),
        ("GRPC://[::1]:8001/", "::1", 8001, "[::1]:8001"),
    ],
)
def test_addresses_are_host_and_port(text: str, host: str, port: int, shown: str) -> None:
    """Names, IPv4, and IPv6 in brackets, with or without grpc://."""
    address = parse_address(text)

    assert address == (host, port)
    assert str(address) == shown


@pytest.mark.parametrize("text", ["http://localhost:8000", "https://localhost:8001", "HTTP://a:1"])
def test_urls_of_rest_are_refused_with_the_port_to_use(text: str) -> None:
    """Whoever pastes the REST address is told about the gRPC port."""
    with pytest.raises(BadRequest, match=r"speaks gRPC: .*8001"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("grpcs://a:1", True), ("GRPCS://a:1", True), ("grpc://a:1", False), ("a:1", None)],
)
def test_the_scheme_says_whether_there_is_tls(text: str, wanted: bool | None) -> None:
    """A caller who wants TLS does not get cleartext."""
    assert wanted is asks_for_tls(text)
    assert "a:1" == str(parse_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:",
        ":8001",
        "localhost:0",
        "localhost:65536",
        "localhost:80x",
        "localhost:-1",
        "::1:8001",
        "[::1]",
        "[localhost]:8001x",
        "a b:8001",
        "user@host:8001",
        "localhost:8001/v2",
        "ftp://localhost:8001",
        "grpc://",
        "localhost:8001\n",
        "localhost:٨٠٠١",
    ],
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    """The message shows the text and how an address looks."""
    with pytest.raises(BadRequest, match=r"examples: localhost:8001"):
        parse_address(text)
