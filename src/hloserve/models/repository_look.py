"""One look at the model repositories: which bundles are there, and in which state.

What lives here: `Found`, `Look` and taking one. What does not: what follows from a difference
between two looks (`hloserve.models.changes`). Any thread.

Rules.
1. A repository that cannot be read says nothing about its models. Those that were seen in it before
   are taken as they were then, so that an unmounted disk does not look like a removal: neither a
   missing directory nor an empty one on another file system does.
2. Only what is not there is gone. A bundle that cannot be looked at is there.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hloserve.bundle.fingerprint import Fingerprint, take_fingerprint
from hloserve.bundle.layout import is_bundle_name
from hloserve.bundle.manifest import MANIFEST_FILE

__all__ = ["Found", "Look", "look_at"]


@dataclass(frozen=True, slots=True)
class Found:
    """A bundle as it was seen.

    Attributes:
        path: its directory; the last part is the model's name.
        fingerprint: its state.
        problem: why it cannot even be tried, in a sentence; empty when it can.
    """

    path: Path
    fingerprint: Fingerprint
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of all repositories.

    Attributes:
        bundles: by served name.
        unreadable: why a repository could not be read, by its path.
        devices: the file system that each repository was on when it was last read.
    """

    bundles: Mapping[str, Found] = field(default_factory=dict)
    unreadable: Mapping[Path, str] = field(default_factory=dict)
    devices: Mapping[Path, int] = field(default_factory=dict)


def look_at(roots: Sequence[Path], include: Sequence[str] = (), before: Look | None = None) -> Look:
    """Look at every bundle: at names, sizes and times, not into files.

    Args:
        roots: the repositories; absolute.
        include: when not empty, the only names that count.
        before: the look before this one.
    """
    places: dict[str, list[Path]] = {}
    held: dict[str, Found] = {}
    unreadable: dict[Path, str] = {}
    devices = dict(before.devices) if before is not None else {}
    for root in roots:
        try:
            names, device = os.listdir(root), os.stat(root).st_dev
        except OSError as error:
            unreadable[root] = error.strerror or str(error)
            held |= _seen_in(root, before)
            continue
        if not names and devices.get(root, device) != device:
            unreadable[root] = "it is empty, and on another file system than before: unmounted?"
            held |= _seen_in(root, before)
            continue
        devices[root] = device
        for name in names:
            if is_bundle_name(name) and (not include or name in include):
                places.setdefault(name, []).append(root / name)
    bundles = {
        _sendable(name): found
        for name in places
        if (found := _find(name, places[name], before)) is not None
    }
    return Look({**held, **bundles}, unreadable, devices)


def _has_manifest(path: Path) -> bool:
    try:
        os.lstat(path / MANIFEST_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return path.is_dir()  # it must not be looked into, so nobody can say that it is no bundle
    return True


def _sendable(name: str) -> str:
    """The name as a protocol can carry it: bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def _seen_in(root: Path, before: Look | None) -> dict[str, Found]:
    bundles = {} if before is None else before.bundles
    return {name: found for name, found in bundles.items() if found.path.parent == root}


def _find(name: str, places: Sequence[Path], before: Look | None) -> Found | None:
    paths = [path for path in places if _has_manifest(path)]
    if not paths:
        return None
    path = paths[0]
    if len(paths) > 1:
        # The one that was there first keeps the name, whatever the order of the repositories.
        known = None if before is None else before.bundles.get(name)
        path = known.path if known is not None and known.path in paths else path
    fingerprint = take_fingerprint(path)
    if fingerprint is None:
        return None
    if _sendable(name) != name:
        problem = "the directory's name is not UTF-8, so no client could ask for it; rename it"
        return Found(path, fingerprint, problem)
    others = ", ".join(str(other) for other in paths if other != path)
    problem = f"another bundle has the same name: {others}; rename one of them" if others else ""
    return Found(path, fingerprint, problem)
