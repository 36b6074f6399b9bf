"""Which format version a bundle needs: one table of the features beyond the oldest format.

What lives here: versions, features, and the rule that joins them. What does not: reading the key of
a feature (`hloserve.bundle.sections`). Pure; any thread.

Rules.
1. A bundle is written with the oldest version that has all of its features, so that the oldest
   reader which can serve it reads it.
2. A feature in a manifest of an older version is refused: a reader of that version would not know
   the key, skip it, and serve something else, or call the bundle wrong.
"""

from collections.abc import Collection

from hloserve.bundle.findings import describe

__all__ = ["BYTES_TENSORS", "DYNAMIC_BATCH", "FORMAT_VERSIONS", "check_features", "needed_version"]

FORMAT_VERSIONS = ("2.2", "2.1", "2.0", "2")
"""All that this server reads, the newest first."""

DYNAMIC_BATCH = "batching.dynamic"
BYTES_TENSORS = "dtype bytes"
_SINCE = {DYNAMIC_BATCH: "2.2", BYTES_TENSORS: "2.2"}  # what a feature looks like; since when


def needed_version(features: Collection[str], oldest: str) -> str:
    """The version to write: the oldest that has every feature, but at least `oldest`."""
    return max([oldest, *(_SINCE[feature] for feature in features)], key=_ordered)


def check_features(version: str, features: Collection[str]) -> list[str]:
    """Compare the features of a manifest with its version; empty text for an unreadable version."""
    return [
        f"{feature} needs format_version {_SINCE[feature]!r}, got {describe(version)}: a reader of"
        f" that version does not know it; write {_SINCE[feature]!r}"
        for feature in features
        if version and _ordered(version) < _ordered(_SINCE[feature])
    ]


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
