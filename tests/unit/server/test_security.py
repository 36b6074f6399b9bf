"""Tokens and certificates of a worker: read at its start, and again when they change."""

from pathlib import Path

import pytest
from support.certificates import Authority

from hloserve.config import load
from hloserve.core.errors import ConfigProblem
from hloserve.server.access import scope_of_rest
from hloserve.server.security import Security

TOKEN = "t" * 16


def _security(**settings: str) -> Security:
    flags = {name.replace("__", "."): value for name, value in settings.items()}
    return Security(load(None, {}, flags).config)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A file with one token."""
    file = tmp_path / "tokens"
    file.write_text(f"alice infer {TOKEN}\n")
    file.chmod(0o600)
    return file


def _settle(security: Security) -> None:
    for _ in range(2):
        security.apply(security.look())


def _is_known(security: Security, token: str) -> bool:
    guard = security.grpc_guard
    assert guard is not None, "there are tokens"
    try:
        return guard.check(
            b"/inference.GRPCInferenceService/ModelInfer", f"Bearer {token}".encode()
        )
    except Exception:  # noqa: BLE001  # of whatever kind
        return False


def test_without_settings_there_is_nothing_to_ask() -> None:
    """No guard, no context and no file to look at."""
    security = _security()

    assert security.open() is None
    assert security.grpc_guard is None
    assert security.http_guard(scope_of_rest) is None
    assert not security.is_on


def test_tokens_are_read_again_when_their_file_changes(tokens: Path) -> None:
    """The old one is gone, the new one counts."""
    security = _security(access__tokens_file=str(tokens))
    security.open()
    assert _is_known(security, TOKEN)

    tokens.write_text(f"alice infer {'u' * 16}\n")
    _settle(security)

    assert not _is_known(security, TOKEN)
    assert _is_known(security, "u" * 16)


@pytest.mark.parametrize("content", ["", "alice infer", "\0" * 100, "alice infer " + "x" * 9])
def test_a_broken_file_keeps_what_was_read_before(
    tokens: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, not every second, and a repaired one is taken up."""
    security = _security(access__tokens_file=str(tokens))
    security.open()

    tokens.write_text(content)
    _settle(security)
    _settle(security)

    assert _is_known(security, TOKEN)
    assert ["tokens_not_reloaded"] == [record.getMessage() for record in caplog.records]

    tokens.write_text(f"alice infer {'u' * 16}\n")
    _settle(security)
    assert _is_known(security, "u" * 16)


def test_a_removed_file_keeps_what_was_read_before(tokens: Path) -> None:
    """Between removal and the new file nobody is locked out."""
    security = _security(access__tokens_file=str(tokens))
    security.open()

    tokens.unlink()
    _settle(security)

    assert _is_known(security, TOKEN)


def test_a_broken_file_ends_the_start(tokens: Path) -> None:
    """Who starts a server is there to read the message."""
    tokens.write_text("# nobody\n")

    with pytest.raises(ConfigProblem, match="holds no token"):
        _security(access__tokens_file=str(tokens)).open()


def test_before_it_is_opened_nobody_is_known(tokens: Path) -> None:
    """The guards exist before the files are read."""
    assert not _is_known(_security(access__tokens_file=str(tokens)), TOKEN)


def test_a_certificate_is_taken_up_when_its_key_is_there_too(tmp_path: Path) -> None:
    """Between the two files nothing changes."""
    authority = Authority(tmp_path)
    pair, renewed = authority.issue("server"), authority.issue("renewed")
    security = _security(tls__certificate=str(pair.certificate), tls__key=str(pair.key))
    assert security.open() is not None

    pair.certificate.write_bytes(renewed.certificate.read_bytes())
    assert [None, None] == [security.look().contexts for _ in range(2)]

    pair.key.write_bytes(renewed.key.read_bytes())
    first, second = security.look().contexts, security.look().contexts
    assert first is None
    assert second is not None
    assert 3 == len({second.rest, second.grpc, second.admin})


def test_refused_calls_are_told_as_a_count(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A flood of them is one line a second, and a token is in none."""
    security = _security(access__tokens_file=str(tokens))
    security.open()
    for _ in range(1000):
        assert not _is_known(security, "x" * 16)

    _settle(security)

    assert ["calls_refused"] == [record.getMessage() for record in caplog.records]
    assert "x" * 16 not in caplog.text


@pytest.mark.parametrize(
    ("host", "has_tokens", "told"), [("0.0.0.0", True, 1), ("127.0.0.1", True, 0), ("::", False, 1)]
)
def test_what_may_not_be_meant_is_warned_of(
    tokens: Path, caplog: pytest.LogCaptureFixture, host: str, has_tokens: bool, told: int
) -> None:
    """Tokens in the clear, and ports that are open to all."""
    flags: dict[str, object] = {"endpoints.host": host, "endpoints.insecure": True}
    if has_tokens:
        flags["access.tokens_file"] = str(tokens)

    Security(load(None, {}, flags).config).open()

    assert ["ports_are_open"] * told == [record.getMessage() for record in caplog.records]
