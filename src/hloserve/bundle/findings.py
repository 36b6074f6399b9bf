"""How the findings of a bundle are worded and raised: all at once, and bounded.

What lives here: quoting a value of an untrusted file in a message, and raising what was collected.
What does not: the rules. Pure functions; any thread.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from hloserve.core.errors import BundleProblem

__all__ = ["describe", "listing", "raise_findings", "repeated"]

T = TypeVar("T", bound=Hashable)

_MAX_FINDINGS = 50  # a hostile file must not turn into a message of megabytes
_MAX_QUOTED = 80


def describe(value: object) -> str:
    """Quote a value with its type, shortened: ``8.0 (float)``."""
    return f"{_shortened(value)} ({type(value).__name__})"


def listing(values: Iterable[object]) -> str:
    """Join values for a message: ``'a', 'c'``; ``none`` when there are none."""
    shown = [_shortened(value) for value in values]
    if len(shown) > _MAX_FINDINGS:
        shown = [*shown[:_MAX_FINDINGS], f"and {len(shown) - _MAX_FINDINGS} more"]
    return ", ".join(shown) or "none"


def repeated(values: Iterable[T]) -> list[T]:
    """The values that occur more than once, each once, by first occurrence."""
    return [value for value, count in Counter(values).items() if count > 1]


def raise_findings(error: type[BundleProblem], bundle: object, findings: Sequence[str]) -> None:
    """Raise one error that holds all findings; return when there are none."""
    if len(findings) > _MAX_FINDINGS:
        left_out = len(findings) - _MAX_FINDINGS
        findings = [*findings[:_MAX_FINDINGS], f"and {left_out} more findings"]
    if findings:
        raise error(bundle, findings)


def _shortened(value: object) -> str:
    # Slicing first: the repr of a container that is megabytes long costs as much as the attack.
    if isinstance(value, str | bytes | list | tuple):
        value = value[: _MAX_QUOTED + 1]
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "..."
