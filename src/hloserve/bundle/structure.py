"""Everything about a bundle that can be checked without reading a program or running code.

What lives here: what a loader's own checks leave aside, because such a bundle loads all the same:
files that nothing reads, a version without need, a patch that is gone. What does not: the rules
that loaders enforce, which are theirs (`hloserve.bundle.manifest`, `hloserve.bundle.layout`,
`hloserve.bundle.weights`). Called by whoever checks bundles (`hloserve.models.bundle_check`); any
thread.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hloserve.bundle.findings import Finding, describe, errors_at, listing, warnings_at
from hloserve.bundle.layout import (
    FOREIGN_HOOK_FILE,
    HOOK_FILE,
    MANIFEST_FILE,
    ProgramFile,
    is_bundle_name,
)
from hloserve.bundle.manifest import Manifest, load_manifest
from hloserve.bundle.rules import refused_call
from hloserve.bundle.sections import DEFAULT_WEIGHTS_FILE
from hloserve.bundle.versions import needed_version
from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import ManifestProblem

__all__ = [
    "check_calls",
    "check_files",
    "check_name",
    "check_provenance",
    "check_version",
    "misnamed_manifests",
]

_PATCH_KEY = "git_diff_file"
_MISNAMED = ("manifest.yml", "manifest.json", "Manifest.yaml", "MANIFEST.yaml", "manifest.yaml.txt")


def misnamed_manifests(bundle: Path) -> list[Finding]:
    """The next step where the manifest is missing: a file that was meant to be it."""
    found = [name for name in _MISNAMED if os.path.lexists(bundle / name)]
    return errors_at(MANIFEST_FILE, [f"{name} is there; call it {MANIFEST_FILE}" for name in found])


def check_name(bundle: Path) -> list[Finding]:
    """Servers skip directories whose name says that somebody still writes there."""
    name = Path(os.path.abspath(bundle)).name
    if is_bundle_name(name):
        return []
    text = (
        f"the directory's name {describe(name)} begins with '.' or holds '.tmp-'; servers skip it"
    )
    return warnings_at(".", [text])


def check_calls(bundle: Path, manifest: Manifest) -> list[Finding]:
    """The models that a meta model calls, as far as they are seen beside it.

    A bundle that lies alone, or among directories that are none, is not in its repository yet.
    """
    root = Path(os.path.abspath(bundle)).parent
    siblings = {path.parent.name for path in root.glob(f"*/{MANIFEST_FILE}")} - {manifest.name}
    findings = []
    for name in manifest.calls:
        if name in siblings:
            if _is_meta(root / name):
                findings += errors_at(MANIFEST_FILE, [refused_call(name)])
        elif siblings:
            text = (
                f"meta.calls names {name!r}, but there is no such bundle beside this one;"
                " calls fail unless the same worker serves it from another repository"
            )
            findings += warnings_at(MANIFEST_FILE, [text])
    return findings


def _is_meta(sibling: Path) -> bool:
    try:
        return load_manifest(sibling).is_meta
    except ManifestProblem:  # that is told of when the other bundle is checked
        return False


def check_files(bundle: Path, manifest: Manifest, programs: Sequence[ProgramFile]) -> list[Finding]:
    """Name the files that look as if they meant something, and that nothing reads.

    Args:
        bundle: its directory.
        manifest: of the bundle.
        programs: those that are loaded.
    """
    try:
        names = sorted(os.listdir(bundle))
    except OSError:  # then the manifest could not be read either
        return []
    findings = []
    for name in names:
        findings += warnings_at(name, _why_unread(name, names, manifest, programs))
    listed = manifest.compiled_batch_sizes
    findings += [
        Finding(
            "warning",
            program.path.name,
            f"it is loaded too, although batching.compiled_batch_sizes lists {listing(listed)}"
            f" only; add {program.size} there, or remove the file",
        )
        for program in programs
        if program.size and program.size not in listed
    ]
    return findings


def _why_unread(
    name: str, names: Sequence[str], manifest: Manifest, programs: Sequence[ProgramFile]
) -> Iterator[str]:
    lowered = name.lower()
    if ".mlir" in lowered and name not in {program.path.name for program in programs}:
        if manifest.is_meta:
            yield "nothing reads it: a meta model has no program of its own; remove it"
        elif programs:
            used = listing(program.path.name for program in programs[:4])
            yield (
                "nothing reads it: programs are called model.mlir or model.b<size>.mlir, with"
                f" input_shapes model.v<i>.mlir or model.v<i>.b<size>.mlir (here {used}); rename or"
                " remove it"
            )
    is_weights = lowered.endswith(".safetensors") and name != manifest.weights_file
    if is_weights and name != DEFAULT_WEIGHTS_FILE and HOOK_FILE not in names:
        yield f"nothing reads it: the weights are in {manifest.weights_file}; remove it"
    if name == FOREIGN_HOOK_FILE and HOOK_FILE in names:
        yield f"it is another server's hook file; this server reads {HOOK_FILE} only"


def check_provenance(bundle: Path, manifest: Manifest) -> list[Finding]:
    """The patch that the provenance names lies in the bundle."""
    name = manifest.provenance.get(_PATCH_KEY)
    if name is None:
        return []
    is_bare = isinstance(name, str) and name == os.path.basename(name) and "\0" not in name
    if is_bare and (bundle / str(name)).is_file():
        return []
    text = (
        f"provenance.{_PATCH_KEY} names {describe(name)}, but there is no such file in the bundle;"
        " copy it there, or remove the key"
    )
    return warnings_at(MANIFEST_FILE, [text])


def check_version(manifest: Manifest, weights: WeightsFile | None) -> list[Finding]:
    """The version is one that older readers would take as well, and not misread."""
    version = manifest.format_version
    findings = []
    needed = needed_version(manifest.features, "2.1")
    if version == "2.2" and needed != version:
        findings.append(
            f'format_version "{version}" is not needed: nothing here is newer than {needed}; write'
            f' "{needed}", so that older servers read it'
        )
    is_new_layout = weights is not None and bool(weights.arguments) and not weights.is_legacy
    if version in ("2.0", "2") and is_new_layout and manifest.weights_file == DEFAULT_WEIGHTS_FILE:
        findings.append(
            f'format_version is "{version}", but {manifest.weights_file} is in program order'
            ' (axis_order: xla): a server that knows 2.0 only would read it transposed; write "2.1"'
        )
    return warnings_at(MANIFEST_FILE, findings)
