"""What the authors of `model.py` import.

The names below are loaded on first use: who imports a room below pays for that room alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hloserve.hooks.rows import trim_rows

__all__ = ["trim_rows"]


def __getattr__(name: str) -> Any:
    if name != "trim_rows":
        raise AttributeError(f"module 'hloserve.hooks' has no attribute {name!r}")
    from hloserve.hooks.rows import trim_rows

    return trim_rows
