"""Errors of frameworks, shortened for a report.

What lives here: choosing the lines that tell something. Pure functions; any thread.
"""

import re
import sysconfig
import traceback
from pathlib import Path

from hloserve.core.errors import BundleProblem, ExportProblem

__all__ = ["short_error"]

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_LIBRARIES = ("<frozen", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), _PACKAGE)
_MAX_LINES = 3
_MAX_CHARACTERS = 500
# Frames, source lines with their markers, rules of a drawing, and what advertises more output.
_DULL = re.compile(
    r"""\s*(
    File\ ".*|Traceback\ .*|[-=~^*_.\s]*|While\ executing.*|Original\ traceback.*|Stack\ trace.*
    |The\ above\ exception.*|During\ handling.*|For\ (more|simplicity).*|Set\ [A-Z_]+=.*
    |at\ /.*|\#\d+\ .*|\d+\ \|.*|frame\ \#.*|.*JAX_TRACEBACK_FILTERING.*|.*TORCH_LOGS.*
    )""",
    re.VERBOSE,
)


def short_error(error: BaseException | str) -> str:
    r"""The interesting lines of an error: at most 3 lines and 500 characters.

    An exception comes with its type and the place in the user's code that led to it; a problem of
    an export or a bundle, which is worded for people, with its findings alone.

    Example:
        >>> short_error("Traceback (most recent call last):\n\nno lowering for x\n  ^^^^")
        'no lowering for x'
    """
    if isinstance(error, str):
        return _shortened(error, "")
    if isinstance(error, ExportProblem | BundleProblem):
        return _shortened("\n".join(error.findings), "")
    said = str(error) or "without a message"
    place = _place(error)
    if isinstance(error, SyntaxError):
        said = error.msg
        place = f" ({error.filename}, line {error.lineno})" if error.filename else ""
    return _shortened(f"{type(error).__name__}: {said}", place)


def _shortened(text: str, tail: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if not _DULL.fullmatch(line)] or lines[:1]
    short = "\n".join(telling[:_MAX_LINES])
    room = _MAX_CHARACTERS - len(tail)
    if len(telling) > _MAX_LINES or len(short) > room:
        short = f"{short[: room - 4]} ..."
    return short + tail


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    return f" ({own[-1].filename}, line {own[-1].lineno})"[-200:] if own else ""
