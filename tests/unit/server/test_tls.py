"""The server's TLS contexts."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from support.certificates import Authority, Pair, encrypt_key

from hloserve.config.schema import TlsConfig
from hloserve.core.errors import ConfigProblem
from hloserve.server.tls import build_context, check_files


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs what the tests need."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def pair(authority: Authority) -> Pair:
    """A server's certificate and key, fresh for each test."""
    return authority.issue("server")


def _config(pair: Pair, **more: str) -> TlsConfig:
    return TlsConfig(certificate=str(pair.certificate), key=str(pair.key), **more)  # type: ignore[arg-type]  # texts of literals


def _build(config: TlsConfig, *, asks_clients: bool = True) -> ssl.SSLContext:
    check_files(config)
    return build_context(config, asks_clients=asks_clients)


def test_versions_and_ciphers_are_those_of_today(pair: Pair) -> None:
    """Nothing before TLS 1.2, and there only forward secrecy with authenticated encryption."""
    context = _build(_config(pair))

    assert ssl.TLSVersion.TLSv1_2 == context.minimum_version
    assert all("GCM" in c["name"] or "CHACHA" in c["name"] for c in context.get_ciphers())
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert ssl.CERT_NONE == context.verify_mode
    assert ssl.TLSVersion.TLSv1_3 == _build(_config(pair, minimum_version="1.3")).minimum_version


def test_clients_are_asked_where_it_is_wanted(authority: Authority, pair: Pair) -> None:
    """The admin port may be left open to probes."""
    config = _config(pair, client_ca=str(authority.certificate))

    assert ssl.CERT_REQUIRED == _build(config).verify_mode
    assert ssl.CERT_NONE == _build(config, asks_clients=False).verify_mode


def test_certificate_and_key_may_be_in_one_file(pair: Pair) -> None:
    """As many tools write them."""
    pair.certificate.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    pair.certificate.chmod(0o600)

    _build(TlsConfig(certificate=str(pair.certificate)))


def _swap(pair: Pair, authority: Authority) -> TlsConfig:
    return replace_files(_config(pair), certificate=pair.key, key=pair.certificate)


def replace_files(config: TlsConfig, **files: Path) -> TlsConfig:
    """The settings with other files."""
    values = {name: getattr(config, name) for name in ("certificate", "key", "client_ca")}
    return TlsConfig(**values | {name: str(path) for name, path in files.items()})


def _other_key(pair: Pair, authority: Authority) -> TlsConfig:
    return replace_files(_config(pair), key=authority.issue("other").key)


def _encrypted(pair: Pair, authority: Authority) -> TlsConfig:
    encrypt_key(pair)
    return _config(pair)


def _no_key(pair: Pair, authority: Authority) -> TlsConfig:
    return TlsConfig(certificate=str(pair.certificate))


def _garbage(pair: Pair, authority: Authority) -> TlsConfig:
    text = pair.certificate.read_text().replace("M", "A")
    pair.certificate.write_text(text)
    return _config(pair)


def _empty(pair: Pair, authority: Authority) -> TlsConfig:
    pair.certificate.write_text("")
    return _config(pair)


def _bad_authority(pair: Pair, authority: Authority) -> TlsConfig:
    return replace_files(_config(pair), client_ca=pair.key)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_swap, "holds no certificate in PEM"),
        (_other_key, "does not belong to the key in"),
        (_encrypted, "is an encrypted key, and nobody could be asked for its password"),
        (_no_key, "tls.key: holds no private key in PEM"),
        (_garbage, "cannot be used, or the key in"),
        (_empty, "holds no certificate in PEM"),
        (_bad_authority, "tls.client_ca: holds no certificate in PEM"),
    ],
)
def test_files_that_cannot_be_used_are_told_in_words(
    authority: Authority, pair: Pair, spoil: Callable[[Pair, Authority], TlsConfig], told: str
) -> None:
    """The message says which file, and what it should be."""
    with pytest.raises(ConfigProblem) as caught:
        _build(spoil(pair, authority))

    assert told in str(caught.value)
    assert "PRIVATE KEY-----" not in str(caught.value)
