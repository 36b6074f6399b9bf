"""How the findings of a bundle are worded and raised: all at once, and bounded.

What lives here: quoting a value of an untrusted file in a message, raising what was collected, and
a finding as a value for those that print it. What does not: the rules. Pure functions; any thread.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from hloserve.core.errors import BundleProblem

__all__ = [
    "Finding",
    "describe",
    "errors_at",
    "listing",
    "raise_findings",
    "repeated",
    "warnings_at",
]

T = TypeVar("T", bound=Hashable)

_MAX_FINDINGS = 50  # a hostile file must not turn into a message of megabytes
_MAX_QUOTED = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a bundle.

    Attributes:
        severity: an error keeps the bundle from being served as declared; a warning does not.
        place: name of the file of the bundle; ``.`` for the directory as a whole.
        text: one sentence: what was expected, what is there, and the next step.
    """

    severity: Literal["error", "warning"]
    place: str
    text: str


def errors_at(place: str, texts: Iterable[str]) -> list[Finding]:
    """Errors at one place; a text that begins with the place does not repeat it."""
    return [Finding("error", place, text.removeprefix(f"{place}: ")) for text in texts]


def warnings_at(place: str, texts: Iterable[str]) -> list[Finding]:
    """Warnings at one place, likewise."""
    return [Finding("warning", place, text.removeprefix(f"{place}: ")) for text in texts]


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
