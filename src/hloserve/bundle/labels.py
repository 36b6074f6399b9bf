"""The names of a classifier's classes: text files in a bundle, one label per line.

What lives here: reading them. What does not: the manifest's key (`hloserve.bundle.sections`) and
answering with labels (`hloserve.server.classification`). Called by the loader and the checker; any
thread.
"""

from collections.abc import Mapping
from pathlib import Path

from hloserve.bundle.files import read_bounded
from hloserve.bundle.findings import raise_findings
from hloserve.bundle.manifest import Manifest
from hloserve.core.errors import BundleProblem

__all__ = ["Labels", "load_labels"]

Labels = Mapping[str, tuple[bytes, ...]]
"""Label by class, by output."""

_MAX_BYTES = 16 << 20


def load_labels(bundle: Path, manifest: Manifest) -> Labels:
    """Read the files that the manifest names.

    The first line names class 0. Empty lines are classes without a label; a final newline ends the
    last label. Classes beyond the last line have none.

    Raises:
        BundleProblem: a file cannot be read, or is not UTF-8; holds all findings.
    """
    findings: list[str] = []
    labels = {}
    for output, file in manifest.labels.items():
        try:
            content = read_bounded(bundle / file, _MAX_BYTES)
            content.decode()
        except OSError as error:
            findings.append(
                f"{file}: labels of output {output!r} cannot be read: {error.strerror or error}"
            )
        except UnicodeDecodeError as error:
            findings.append(
                f"{file}: labels of output {output!r} are not UTF-8 text (at byte {error.start})"
            )
        else:
            lines = content.split(b"\n")
            labels[output] = tuple(line.removesuffix(b"\r") for line in lines[: _count(lines)])
    raise_findings(BundleProblem, bundle, findings)
    return labels


def _count(lines: list[bytes]) -> int:
    """How many lines there are, without the nothing behind the last newline."""
    return len(lines) - (not lines[-1])
