"""Looking at a bundle before its weights are migrated: where it stands, and what is in the way.

What lives here: reading the state that `hloserve.bundle.migration_plan` decides on, and the checks
that need nothing but looking. What does not: changing anything (`hloserve.bundle.migration`). Any
thread.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from hloserve.bundle.active_weights import COPY_FILE, record_of, why_stale
from hloserve.bundle.files import read_bounded
from hloserve.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, load_manifest
from hloserve.bundle.manifest_edit import EditRefused, remove_key, set_key
from hloserve.bundle.migration_plan import State, Step
from hloserve.bundle.sections import DEFAULT_WEIGHTS_FILE
from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import ManifestProblem, WeightsProblem

__all__ = ["EDITS", "check_possible", "edit_text", "look_at_weights", "read_manifest_text"]

_SPARE_BYTES = 16 << 20
"""Room for headers, the manifest, and what the file system itself takes."""

EDITS: Mapping[Step, Callable[[str], str]] = {
    Step.NAME_COPY: lambda text: set_key(text, "weights_file", COPY_FILE, after="format_version"),
    Step.RAISE_VERSION: lambda text: set_key(text, "format_version", '"2.1"', after=""),
    Step.UNNAME_COPY: lambda text: remove_key(text, "weights_file"),
}
"""The steps that change the manifest, as edits of its text."""


def look_at_weights(bundle: Path) -> State:
    """Read where a bundle stands.

    Raises:
        ManifestProblem, WeightsProblem: it cannot be read; then it cannot be loaded either.
        OSError: a file cannot be looked at.
    """
    manifest = load_manifest(bundle)
    if manifest.is_meta:
        return State(is_meta=True)
    is_ours = manifest.weights_file in (DEFAULT_WEIGHTS_FILE, COPY_FILE)
    original = bundle / (DEFAULT_WEIGHTS_FILE if is_ours else manifest.weights_file)
    layout: Literal["missing", "legacy", "program"] = "missing"
    is_copy = False
    record: Mapping[str, str] = {}
    if original.exists() or manifest.weights_file == original.name:
        with WeightsFile.open(original) as weights:
            layout = "legacy" if weights.is_legacy else "program"
            record = record_of(weights)
            is_copy = _is_same_file(weights, bundle / COPY_FILE)
    return State(
        weights_file=manifest.weights_file,
        format_version=manifest.format_version,
        original=layout,
        copy=_look_at_copy(bundle / COPY_FILE, original),
        is_swapped=layout == "program" and (is_copy or _has_record(bundle / COPY_FILE, record)),
    )


def _is_same_file(weights: WeightsFile, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(weights.fd), os.stat(path))
    except FileNotFoundError:
        return False


def _has_record(copy: Path, record: Mapping[str, str]) -> bool:
    if not record or not copy.exists():
        return False
    try:
        with WeightsFile.open(copy) as weights:
            return record_of(weights) == record
    except WeightsProblem:
        return False


def _look_at_copy(copy: Path, original: Path) -> Literal["missing", "usable", "unusable"]:
    if not os.path.lexists(copy):
        return "missing"
    try:
        with WeightsFile.open(copy) as weights:
            is_copy = not weights.is_legacy and bool(record_of(weights))
            return "usable" if is_copy and not why_stale(weights, original) else "unusable"
    except WeightsProblem:
        return "unusable"


def check_possible(bundle: Path, steps: Sequence[Step]) -> None:
    """Find what would stop a migration halfway, before it begins.

    Raises:
        ManifestProblem: the manifest cannot be edited by lines.
        WeightsProblem: there is no room for a copy.
        OSError: a file cannot be looked at.
    """
    text = read_manifest_text(bundle)
    for step in steps:
        text = edit_text(bundle, step, text) if step in EDITS else text
    if not os.access(bundle, os.W_OK | os.X_OK):
        raise WeightsProblem(bundle, "the directory cannot be written by this user")
    if Step.MAKE_COPY in steps:
        needed = os.stat(bundle / DEFAULT_WEIGHTS_FILE).st_size + _SPARE_BYTES
        system = os.statvfs(bundle)
        free = system.f_bavail * system.f_frsize
        if free < needed:
            reason = f"no room for a copy: it takes {needed} bytes, {free} are free"
            raise WeightsProblem(bundle, reason)


def edit_text(bundle: Path, step: Step, text: str) -> str:
    """Apply the edit of a step to the text of a manifest.

    Raises:
        ManifestProblem: it cannot be done by changing one line.
    """
    try:
        return EDITS[step](text)
    except EditRefused as refusal:
        reason = f"{MANIFEST_FILE} cannot be edited: {refusal}"
        raise ManifestProblem(bundle, reason) from refusal


def read_manifest_text(bundle: Path) -> str:
    """The text of a manifest that was accepted and may be put in another one's place.

    Raises:
        ManifestProblem: it is a symbolic link, which a new file would replace.
        OSError: it cannot be read.
    """
    path = bundle / MANIFEST_FILE
    if path.is_symlink():
        reason = f"{MANIFEST_FILE} is a symbolic link; migrate the bundle that it leads to"
        raise ManifestProblem(bundle, reason)
    return read_bounded(path, MAX_MANIFEST_BYTES).decode()
