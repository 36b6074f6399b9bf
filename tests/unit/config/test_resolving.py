"""Settings that depend on the machine."""

import pytest

from hloserve.config import resolve_hook_threads, resolve_log_format
from hloserve.config.schema import HooksConfig, LoggingConfig


@pytest.mark.parametrize(("cpus", "expected"), [(1, 2), (4, 4), (64, 8)])
def test_automatic_hook_threads_follow_the_cpus(cpus: int, expected: int) -> None:
    """Without a wish there is a hook thread per CPU, at least 2 and at most 8, and a reason."""
    resolved = resolve_hook_threads(HooksConfig(), cpus=cpus)

    assert expected == resolved.value
    assert str(cpus) in resolved.reason


def test_configured_hook_threads_are_taken_as_they_are() -> None:
    """A number of hook threads is a wish that holds, whatever the machine."""
    assert 32 == resolve_hook_threads(HooksConfig(threads=32), cpus=1).value


def test_log_is_text_on_a_terminal_and_json_elsewhere() -> None:
    """Without a wish the log is for people on a terminal and for machines elsewhere."""
    automatic = LoggingConfig()

    assert "text" == resolve_log_format(automatic, is_terminal=True).value
    assert "json" == resolve_log_format(automatic, is_terminal=False).value
    assert "json" == resolve_log_format(LoggingConfig(format="json"), is_terminal=True).value
    assert "text" == resolve_log_format(LoggingConfig(format="text"), is_terminal=False).value
