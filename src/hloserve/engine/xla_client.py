"""Opening a device of PJRT, and saying in our own words what XLA reports.

What lives here: the clients and their memory, and the table of errors. What does not: what is done
with a device (`hloserve.engine.xla_backend`, which alone calls this).
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hloserve.core.errors import (
    BackendFailed,
    ConfigProblem,
    DeviceMemoryFull,
    HloserveError,
    MissingExtra,
)

try:
    import jax
    from jaxlib import xla_client
except ImportError as missing:
    raise MissingExtra("server", "running StableHLO programs", missing) from missing

__all__ = ["client_options", "open_devices", "request_memory", "translated"]

_THREADS_VARIABLE = "NPROC"
"""XLA asks it for the size of the pool of a CPU client, and has no option for that."""

_NEEDED = re.compile(r"allocat\w*\s+(\d+)")


def request_memory(mem_fraction: float | None, preallocate: bool | None) -> None:
    """Set how much memory the client takes that jax makes for an accelerator, later and once.

    jax merges this setting of its own into the options of the plugin, over what XLA_* variables of
    the environment say.
    """
    given = jax.config.jax_pjrt_client_create_options
    options = client_options(given, mem_fraction, preallocate)
    if options:
        jax.config.update("jax_pjrt_client_create_options", options)


def client_options(
    given: str | Mapping[str, Any] | None, mem_fraction: float | None, preallocate: bool | None
) -> dict[str, Any]:
    """Add ours to the client options that an operator gave jax, which are kept.

    Args:
        given: as jax takes them, ``key:value;key:value`` or a mapping.
        mem_fraction: None adds nothing.
        preallocate: None adds nothing.
    """
    if isinstance(given, str):
        pairs = (pair.partition(":") for pair in given.split(";") if pair)
        given = {key: value for key, _, value in pairs}
    options = dict(given or {})
    if mem_fraction is not None:
        options["memory_fraction"] = mem_fraction
    if preallocate is not None:
        options["preallocate"] = preallocate
    return options


def open_devices(platform: str, *, runs_ahead: bool, cpu_threads: int | None = None) -> list[Any]:
    """The devices of a platform; on the CPU of a client of its own.

    Args:
        platform: ``cpu``, or one whose plugin is installed.
        runs_ahead: of the CPU's client.
        cpu_threads: that a program computes with on the CPU; None leaves it to XLA. It is passed in
            the environment, which no other thread may change meanwhile.

    Raises:
        ConfigProblem: there is no such platform.
    """
    if platform == "cpu":
        with _variable(_THREADS_VARIABLE, cpu_threads):
            return list(xla_client.make_cpu_client(asynchronous=runs_ahead).local_devices())
    try:
        return list(jax.local_devices(backend=platform))
    except RuntimeError as error:
        reason = str(error).rstrip(".")
        if platform == "cuda":
            reason += "; is there an NVIDIA GPU with its driver, and 'hloserve[cuda13]' installed?"
        raise ConfigProblem("device", "runtime.backend", f"{platform}: {reason}") from error


@contextmanager
def _variable(name: str, value: int | None) -> Iterator[None]:
    """Set a variable of the environment for a while; None leaves it as it is."""
    if value is None:
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = str(value)
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def translated(operation: str, model: str, error: Exception) -> HloserveError:
    """Our own error for one of XLA's."""
    text = str(error)
    if text.startswith("RESOURCE_EXHAUSTED"):
        needed = _NEEDED.search(text)
        return DeviceMemoryFull(int(needed.group(1)) if needed else 0, None)
    return BackendFailed(operation, model, text[:2000])
