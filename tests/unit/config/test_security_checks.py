"""What the security settings must be together."""

from pathlib import Path

import pytest

from hloserve.config import load, require_safe_address
from hloserve.config.security_checks import is_loopback
from hloserve.core.errors import ConfigProblem


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "::ffff:127.0.0.1", "127.1"]
)
def test_loopback_is_known_in_every_spelling(host: str) -> None:
    """Nobody else can reach these."""
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "0", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "2001:db8::1"]
)
def test_addresses_that_others_can_reach_are_known(host: str) -> None:
    """The unspecified address is every interface, however it is written."""
    assert not is_loopback(host)


def test_a_name_that_does_not_exist_is_left_to_binding() -> None:
    """The message about the name comes from binding it."""
    assert is_loopback("no such name")


def test_an_address_that_others_can_reach_is_refused_with_what_to_set() -> None:
    """Strangers are not let in by accident, and the text says all three ways out."""
    loaded = load(None, {"HLOSERVE_ENDPOINTS_HOST": "0.0.0.0"}, {})

    with pytest.raises(ConfigProblem) as caught:
        require_safe_address(loaded.config, loaded.sources)

    text = str(caught.value)
    assert text.startswith("HLOSERVE_ENDPOINTS_HOST: $.endpoints.host: 0.0.0.0 can be reached")
    for word in ("--tokens-file", "--tls-certificate", "--insecure", "endpoints.insecure"):
        assert word in text


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoints.insecure": True},
        {"access.tokens_file": "/dev/null"},
        {"tls.certificate": "/dev/null"},
        {"endpoints.host": "127.0.0.1"},
    ],
)
def test_what_makes_an_address_safe(settings: dict[str, object]) -> None:
    """TLS, tokens, loopback, or being told."""
    loaded = load(None, {}, {"endpoints.host": "0.0.0.0", **settings})

    require_safe_address(loaded.config, loaded.sources)


def test_files_that_do_not_exist_are_all_told(tmp_path: Path) -> None:
    """One run tells of every missing file, with its setting."""
    node = tmp_path / "node.yaml"
    node.write_text("tls: {certificate: c, key: k, client_ca: a}\naccess: {tokens_file: t}\n")

    with pytest.raises(ConfigProblem) as caught:
        load(node)

    lines = str(caught.value).splitlines()
    assert 4 == len(lines)
    assert f"$.tls.certificate: '{tmp_path / 'c'}' does not exist" in lines[0]
    assert "$.access.tokens_file" in lines[3]


@pytest.mark.parametrize("name", ["key", "client_ca"])
def test_a_file_of_no_use_is_told(name: str) -> None:
    """Who gives a key or an authority wants TLS, and must give a certificate."""
    with pytest.raises(ConfigProblem, match=r"of no use without tls\.certificate"):
        load(None, {}, {f"tls.{name}": "/dev/null"})
