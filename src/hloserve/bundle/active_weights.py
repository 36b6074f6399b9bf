"""Which weights file of a bundle is read, and all of its weights as arrays.

What lives here: the record that a migrated copy keeps of its original, and what follows when the
original is another by now. What does not: making copies (`hloserve.bundle.migration`), and reading
one file (`hloserve.bundle.weights`). Called by all who read weights of a bundle; any thread.

Rules.
1. The manifest names the file.
2. A copy speaks for its original. When the original has changed since, or the copy is broken, the
   original is read, and a warning says so. A file that is named and missing is an error.
3. The original has changed when its size has, or its modification time and its SHA-256 have.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hloserve.bundle.files import open_regular
from hloserve.bundle.layout import weights_path
from hloserve.bundle.manifest import Manifest, load_manifest
from hloserve.bundle.sections import DEFAULT_WEIGHTS_FILE
from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import WeightsProblem
from hloserve.core.tensors import Array

__all__ = [
    "COPY_FILE",
    "RECORD_KEYS",
    "describe_original",
    "open_bundle_weights",
    "read_bundle_weights",
    "record_of",
    "sha256_of",
    "why_stale",
]

COPY_FILE = "weights.T.safetensors"
"""What a migrated copy of `weights.safetensors` is called."""

_SIZE, _MTIME, _SHA256 = "migrated_from_size", "migrated_from_mtime_ns", "migrated_from_sha256"
RECORD_KEYS = frozenset((_SIZE, _MTIME, _SHA256))
"""Metadata of a copy that its original does not have."""

_PIECE_BYTES = 1 << 20


def open_bundle_weights(bundle: Path, manifest: Manifest) -> WeightsFile:
    """Open the weights file that counts; see the module's rules.

    Raises:
        WeightsProblem: it is missing or not valid.
    """
    named, original = weights_path(bundle, manifest), bundle / DEFAULT_WEIGHTS_FILE
    try:
        weights = WeightsFile.open(named)
    except WeightsProblem as problem:
        if named.name != COPY_FILE or not (named.exists() and original.exists()):
            raise
        return _open_original(original, f"{COPY_FILE} is broken: {problem.findings[0]}")
    if named == original:
        return weights
    reason = why_stale(weights, original)
    if not reason:
        return weights
    weights.close()
    return _open_original(original, f"{named.name} is stale: {reason}")


def _open_original(original: Path, reason: str) -> WeightsFile:
    warning = (
        f"{reason}; {original.name} is read instead (hloserve migrate-weights makes the copy again)"
    )
    return WeightsFile.open(original, warnings=(warning,))


def read_bundle_weights(bundle: str | Path) -> dict[str, Array]:
    """Read all weights of a bundle in program order, whichever layout they are stored in.

    Returns:
        Name to array, in the order of the program's arguments; empty for a meta model without
        weights. Each array owns its memory.

    Raises:
        ManifestProblem: the manifest is not valid.
        WeightsProblem: the weights are not.
    """
    manifest = load_manifest(bundle)
    if manifest.is_meta and not weights_path(Path(bundle), manifest).exists():
        return {}
    arrays: dict[str, Array] = {}
    with open_bundle_weights(Path(bundle), manifest) as weights:
        for tensor in weights.arguments:
            array = np.empty(tensor.shape, tensor.dtype.numpy)
            weights.read_into(tensor, array.reshape(-1).view(np.uint8))
            arrays[tensor.name] = array
    return arrays


def describe_original(original: os.stat_result, sha256: str) -> dict[str, str]:
    """The record of an original, as the metadata of its copy holds it."""
    return {
        _SIZE: str(original.st_size),
        _MTIME: str(original.st_mtime_ns),
        _SHA256: sha256,
    }


def why_stale(copy: WeightsFile, original: Path) -> str:
    """Say why a copy no longer speaks for its original; nothing when it does.

    A file without a record is no copy. Where there is no original, or none that can be looked at,
    there is nothing to read in its place.
    """
    record = record_of(copy)
    if not record:
        return ""
    try:
        found = os.stat(original)
        if os.path.samestat(found, os.fstat(copy.fd)):
            return ""  # it has taken the original's place
        if str(found.st_size) != record.get(_SIZE):
            reason = f"the copy was made of {record.get(_SIZE)} bytes, there are {found.st_size}"
        elif str(found.st_mtime_ns) == record.get(_MTIME):
            return ""
        elif sha256_of(original) == record.get(_SHA256):
            return ""  # touched, or copied without its time
        else:
            reason = "its bytes differ from those that the copy was made of"
    except OSError:
        return ""
    return "" if _is_same_copy(original, record) else f"{original.name} has changed since: {reason}"


def record_of(weights: WeightsFile) -> dict[str, str]:
    """What a copy says of its original; empty for a file that is no copy."""
    metadata: Mapping[str, str] = weights.metadata
    return {key: metadata[key] for key in RECORD_KEYS & metadata.keys()}


def _is_same_copy(original: Path, record: Mapping[str, str]) -> bool:
    """True when it is the copy itself, put in its original's place and then copied elsewhere."""
    try:
        with WeightsFile.open(original) as weights:
            return record_of(weights) == record
    except WeightsProblem:
        return False


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open(open_regular(path), "rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
