"""Settings that depend on the machine."""

from typing import Literal

import pytest

from hloserve.config import resolve_hook_threads, resolve_log_format
from hloserve.config.resolving import resolve_dispatches_in_flight, resolve_request_bytes
from hloserve.config.schema import EndpointsConfig, HooksConfig, LoggingConfig, RuntimeConfig


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


@pytest.mark.parametrize(
    ("wish", "runs_ahead", "expected"),
    [("auto", True, 2), ("auto", False, 1), (4, True, 4), (4, False, 1), (1, True, 1)],
)
def test_dispatches_are_in_flight_where_the_device_runs_ahead(
    wish: int | Literal["auto"],
    runs_ahead: bool,
    expected: int,
) -> None:
    """A device that executes when it is called has one, whatever the wish, and says why."""
    resolved = resolve_dispatches_in_flight(
        RuntimeConfig(dispatches_in_flight=wish), runs_ahead=runs_ahead
    )

    assert expected == resolved.value
    assert resolved.reason


def test_bytes_of_requests_follow_the_memory() -> None:
    """Unset means a quarter of it."""
    resolved = resolve_request_bytes(EndpointsConfig(), memory_bytes=4000)
    configured = EndpointsConfig(max_request_bytes_in_hand=7)

    assert (1000, True) == (resolved.value, "4000" in resolved.reason)
    assert 7 == resolve_request_bytes(configured, memory_bytes=4000).value
