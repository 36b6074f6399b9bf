"""How much memory this process may use, and how much of it requests may hold.

What lives here: reading what the machine and its control groups say. What does not: what is made of
it (`hloserve.config.resolving`). Any thread.
"""

import os
from pathlib import Path

from hloserve.config.resolving import resolve_request_bytes
from hloserve.config.schema import EndpointsConfig
from hloserve.wire.bytes_in_hand import BytesInHand

__all__ = ["build_budget", "usable_memory_bytes"]

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def build_budget(config: EndpointsConfig) -> BytesInHand:
    """The budget of the bytes of requests in hand."""
    limit = resolve_request_bytes(config, memory_bytes=usable_memory_bytes())
    return BytesInHand(limit.value)


def usable_memory_bytes(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """The machine's memory, or the least limit of a control group on the way to this process.

    Args:
        groups: where control groups are mounted.
        own_groups: names this process's, a line for each hierarchy: ``ID:CONTROLLERS:PATH``.

    Source: cgroups(7); Documentation/admin-guide/cgroup-v2.rst, memory.max.
    """
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return least
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = top / path.lstrip("/")  # in a container often a path outside: then only `top` is
        for group in (place, *place.parents):
            least = min(least, _limit_bytes(group / name) or least)
            if group == top:
                break
    return least


def _limit_bytes(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
