"""Directories on a command line that stand for bundles.

What lives here: a model repository as its bundles. What does not: what is done with them. Main
thread.
"""

from collections.abc import Sequence
from pathlib import Path

__all__ = ["all_bundles"]


def all_bundles(paths: Sequence[Path]) -> list[Path]:
    """The bundles, and those in the model repositories; each once.

    A directory that is neither is taken for a bundle, so that whoever reads it says what it lacks.
    """
    from hloserve.bundle.layout import MANIFEST_FILE, discover_bundles
    from hloserve.core.errors import BundleProblem

    found: dict[Path, None] = {}
    for path in paths:
        inside: Sequence[Path] = ()
        if not (path / MANIFEST_FILE).exists():
            try:
                inside = discover_bundles(path)
            except BundleProblem:  # it cannot be read: likewise
                inside = ()
        found |= dict.fromkeys(inside or [path])
    return list(found)
