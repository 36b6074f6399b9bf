"""What was done to a program before it was compiled, for logs. Immutable; any thread."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["NO_NOTES", "ProgramNotes", "merge_notes"]


@dataclass(frozen=True, slots=True)
class ProgramNotes:
    """What was done to a program.

    Attributes:
        numerics: the precision of its float32 products, in words; empty where a backend has none.
        ungoverned: operations whose precision no setting decides, where that was looked for.
        rewrites: how often each rewrite was used, by name.
    """

    numerics: str = ""
    ungoverned: tuple[str, ...] = ()
    rewrites: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


NO_NOTES = ProgramNotes()


def merge_notes(notes: Iterable[ProgramNotes]) -> ProgramNotes:
    """Say of all programs of a model what is true of any.

    Programs of one model differ by the batch size, so they mostly agree: of each rewrite the
    largest count is kept, of numerics every text that there is.
    """
    numerics: dict[str, None] = {}
    ungoverned: set[str] = set()
    rewrites: dict[str, int] = {}
    for note in notes:
        if note.numerics:
            numerics[note.numerics] = None
        ungoverned.update(note.ungoverned)
        for name, count in note.rewrites.items():
            rewrites[name] = max(count, rewrites.get(name, 0))
    return ProgramNotes("; ".join(numerics), tuple(sorted(ungoverned)), rewrites)
