"""The line of the author's code that an error came through.

What lives here: finding it in tracebacks. What does not: the wording around it, which is each
frontend's. Pure; any thread.
"""

import os
import traceback
import types

import hloserve
from hloserve.core.causes import causes

__all__ = ["author_line", "error_text", "is_raised_by_author"]

_OURS = os.path.dirname(hloserve.__file__) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_FRAMEWORKS = tuple(
    f"{os.sep}site-packages{os.sep}{name}{os.sep}"
    for name in ("torch", "torchax", "jax", "jaxlib", "flax", "equinox", "jaxtyping", "numpy")
)
"""Their lines are no news to an author; those of model libraries such as transformers are."""
_MOST_CHARACTERS = 300


def author_line(error: BaseException) -> str:
    """The innermost line of the author's code that an error passed through.

    Returns:
        Text such as `` at net.py line 7``; empty when there is none.
    """
    for link in reversed(list(causes(error))):
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            if not _is_foreign(frame.filename):
                return f" at {os.path.basename(frame.filename)} line {frame.lineno}"
    return ""


def error_text(error: BaseException) -> str:
    """The type of an error and the first line of its message, of bounded length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0].rstrip(".") if lines else "no message"
    shown = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
    return f"{type(error).__name__}: {shown}"


def is_raised_by_author(error: BaseException) -> bool:
    """Whether the innermost frame is the author's own, so that no library takes part."""
    frames: list[types.FrameType] = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and not _is_foreign(frames[-1].f_code.co_filename)


def _is_foreign(file: str) -> bool:
    if file.startswith((_OURS, "<")) or any(part in file for part in _FRAMEWORKS):
        return True
    return f"{os.sep}site-packages{os.sep}" not in file and file.startswith(_STANDARD_LIBRARY)
