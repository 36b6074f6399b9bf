"""Settings that depend on the machine: from "auto" to a value, with the reason.

What lives here: pure decisions; the caller looks at the machine and hands in what it saw. What
does not: choosing the device, which only its backend can (`hloserve.server`). Any thread.
"""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from hloserve.config.schema import EndpointsConfig, HooksConfig, LoggingConfig, RuntimeConfig

__all__ = [
    "LogFormat",
    "Resolved",
    "resolve_dispatches_in_flight",
    "resolve_hook_threads",
    "resolve_load_threads",
    "resolve_log_format",
    "resolve_request_bytes",
]

T = TypeVar("T")
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class Resolved(Generic[T]):
    """A value and, in words, why it is that one."""

    value: T
    reason: str


def resolve_log_format(config: LoggingConfig, *, is_terminal: bool) -> Resolved[LogFormat]:
    """Choose how log lines look.

    Args:
        config: the wish.
        is_terminal: standard error is a terminal.
    """
    if config.format != "auto":
        return Resolved(config.format, "configured")
    if is_terminal:
        return Resolved("text", "standard error is a terminal")
    return Resolved("json", "standard error is not a terminal")


def resolve_hook_threads(config: HooksConfig, *, cpus: int) -> Resolved[int]:
    """Choose the number of hook threads.

    Args:
        config: the wish.
        cpus: how many CPUs this process may use.
    """
    if config.threads != "auto":
        return Resolved(config.threads, "configured")
    return Resolved(min(8, max(2, cpus)), f"{cpus} CPUs, at least 2 and at most 8 threads")


def resolve_load_threads(config: RuntimeConfig, *, cpus: int) -> Resolved[int]:
    """Choose the number of bundles that load at once.

    Args:
        config: the wish.
        cpus: how many CPUs this process may use.
    """
    if config.load_threads != "auto":
        return Resolved(config.load_threads, "configured")
    return Resolved(min(4, cpus), f"{cpus} CPUs, at most 4 threads")


def resolve_dispatches_in_flight(config: RuntimeConfig, *, runs_ahead: bool) -> Resolved[int]:
    """Choose how many dispatches the device is given at once.

    Args:
        config: the wish.
        runs_ahead: the device takes a dispatch while another one executes.
    """
    if not runs_ahead:
        return Resolved(1, "the device executes when it is called")
    if config.dispatches_in_flight != "auto":
        return Resolved(config.dispatches_in_flight, "configured")
    return Resolved(2, "one executes while the next one is prepared")


def resolve_request_bytes(config: EndpointsConfig, *, memory_bytes: int) -> Resolved[int]:
    """Choose how many bytes of requests the process holds.

    Args:
        config: the wish.
        memory_bytes: how much memory this process may use.
    """
    if config.max_request_bytes_in_hand is not None:
        return Resolved(config.max_request_bytes_in_hand, "configured")
    return Resolved(memory_bytes // 4, f"a quarter of {memory_bytes} bytes of memory")
