"""A program that XLA has compiled, with what running it and writing it down need.

What lives here: the value. What does not: compiling, restoring and running it
(`hloserve.engine.xla_backend`). Immutable; any thread.

Rule: what was restored is written down as it was read. XLA writes an executable that it has read
without the functions that it calls, and only its execution tells: "NOT_FOUND: Function ...".
"""

from dataclasses import dataclass
from typing import Any

from hloserve.engine.programs.notes import ProgramNotes
from hloserve.engine.programs.signature import Signature

__all__ = ["XlaExecutable"]


@dataclass(frozen=True, slots=True, eq=False)
class XlaExecutable:
    """A compiled program and the handlers that make arrays of its results.

    Attributes:
        signature: of the program.
        loaded: the executable, as PJRT has it.
        handlers: one for each result.
        model: whose it is, for messages.
        notes: what was done to the program.
        restored_from: the bytes that it was made of; None for what was compiled here.
    """

    signature: Signature
    loaded: Any
    handlers: list[Any]
    model: str
    notes: ProgramNotes
    restored_from: bytes | None = None
