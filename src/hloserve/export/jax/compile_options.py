"""The options of JAX that change what is traced, for `compile_options`.

What lives here: their names, values and defaults, and the check. What does not: setting them while
a model is traced (`hloserve.export.jax.tracing`). Every frontend traces by JAX, so these hold for
all.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from hloserve.bundle.findings import describe, listing

__all__ = ["COMPILE_OPTIONS", "check_compile_options"]

# Options that only change how or where this process compiles are not here: servers compile.
COMPILE_OPTIONS: Mapping[str, tuple[object, ...]] = {
    "default_prng_impl": ("threefry2x32", "rbg", "unsafe_rbg"),
    "enable_x64": (None, False, True),
    "numpy_dtype_promotion": ("standard", "strict"),
    "numpy_rank_promotion": ("allow", "raise"),
    "softmax_custom_jvp": (True, False),
    "threefry_partitionable": (True, False),
}
"""Values by name, the default first. ``enable_x64`` None: on when an array has a 64-bit dtype."""

_OWN_OPTIONS = {"default_matmul_precision": "matmul_precision"}


def check_compile_options(given: object, findings: list[str]) -> dict[str, object]:
    """Check `compile_options`.

    Args:
        given: what the author gave; None for nothing.
        findings: gets one sentence per fault.

    Returns:
        The options that are not the default, without their ``jax_`` prefix.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        findings.append(f"compile_options: must map names to values, got {describe(given)}")
        return {}
    chosen: dict[str, object] = {}
    for key, value in given.items():
        name = str(key).removeprefix("jax_")
        allowed = COMPILE_OPTIONS.get(name)
        if allowed is None:
            findings.append(_unknown(name))
        elif not _is_among(value, allowed):
            findings.append(
                f"compile_options: {name} must be one of {listing(allowed)}, got {describe(value)}"
            )
        elif value != allowed[0]:
            chosen[name] = value
    return chosen


def _is_among(value: Any, allowed: tuple[object, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in allowed)


def _unknown(name: str) -> str:
    if name in _OWN_OPTIONS:
        return f"compile_options: {name} is an option of its own; pass {_OWN_OPTIONS[name]}"
    close = difflib.get_close_matches(name[:80], COMPILE_OPTIONS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return (
        f"compile_options: {name!r} is not an option that changes a program{hint} (known:"
        f" {', '.join(COMPILE_OPTIONS)})"
    )
