"""Which files make a bundle, and which directories are bundles.

What lives here: names of files, discovery, and the choice of program files. What does not: what the
files hold. Called by the loader, the watcher and the command line, at load time; any thread.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hloserve.bundle.axes import MAX_EXTENT
from hloserve.bundle.findings import listing, raise_findings
from hloserve.bundle.fingerprint import TEMPORARY_MARK
from hloserve.bundle.manifest import FOREIGN_HOOK_FILE, HOOK_FILE, MANIFEST_FILE, Manifest
from hloserve.core.errors import BundleProblem, ProgramProblem

__all__ = [
    "FOREIGN_HOOK_FILE",
    "HOOK_FILE",
    "MANIFEST_FILE",
    "ProgramFile",
    "check_single_program",
    "discover_bundles",
    "find_programs",
    "is_bundle_name",
    "program_name",
    "weights_path",
]
_PROGRAM = re.compile(r"(?P<prefix>model(?:\.v[0-9]+)?)\.b(?P<size>[0-9]+)\.mlir")


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """One program of a bundle.

    Attributes:
        path: the file.
        variant: index in `input_shapes`; None without variants.
        size: its batch size; 0 for ``model.mlir``, whose types say what it takes.
    """

    path: Path
    variant: int | None
    size: int


def program_name(variant: int | None, size: int) -> str:
    """The file name of a program: ``model.mlir``, ``model.b8.mlir``, ``model.v0.b8.mlir``."""
    prefix = _prefix(variant)
    return f"{prefix}.b{size}.mlir" if size else f"{prefix}.mlir"


def _prefix(variant: int | None) -> str:
    return "model" if variant is None else f"model.v{variant}"


def weights_path(bundle: Path, manifest: Manifest) -> Path:
    """Where the weights of a bundle are."""
    return bundle / manifest.weights_file


def is_bundle_name(name: str) -> bool:
    """False for names that discovery skips: hidden ones, and what a writer has not finished."""
    return bool(name) and not name.startswith(".") and TEMPORARY_MARK not in name


def discover_bundles(repository: Path) -> tuple[Path, ...]:
    """List the bundles of a model repository by name: immediate subdirectories with a manifest.

    What a server sees of several repositories, and when, is `hloserve.models.repository_look`.

    Raises:
        BundleProblem: the repository cannot be read.
    """
    try:
        names = sorted(os.listdir(repository))
    except OSError as error:
        raise BundleProblem(repository, [f"cannot be read: {error.strerror}"]) from error
    paths = [repository / name for name in names if is_bundle_name(name)]
    return tuple(path for path in paths if path.is_dir() and os.path.lexists(path / MANIFEST_FILE))


def find_programs(bundle: Path, manifest: Manifest) -> tuple[ProgramFile, ...]:
    """Choose the program files of a bundle, per variant and by ascending size.

    ``model.bN.mlir`` files win over ``model.mlir``. All files of that form are taken, also sizes
    that the manifest does not list. Other files are ignored.

    Returns:
        The programs; empty for a meta model.

    Raises:
        ProgramProblem: files are missing or contradict each other or the manifest; all findings.
    """
    if manifest.is_meta:
        return ()
    try:
        names = sorted(os.listdir(bundle))
    except OSError as error:
        raise ProgramProblem(bundle, f"cannot be read: {error.strerror}") from error
    variants = range(len(manifest.input_shapes)) if manifest.input_shapes else (None,)
    findings: list[str] = []
    programs = [
        program
        for variant in variants
        for program in _programs_of_variant(bundle, names, variant, manifest, findings)
    ]
    if not findings:
        findings = _check_sizes(programs, manifest)
    raise_findings(ProgramProblem, bundle, findings)
    return tuple(programs)


def _programs_of_variant(
    bundle: Path, names: Sequence[str], variant: int | None, manifest: Manifest, findings: list[str]
) -> list[ProgramFile]:
    by_size = _sized_files(names, _prefix(variant), findings)
    if by_size is None:
        return []
    single = program_name(variant, 0)
    if not by_size:
        if single not in names:
            findings.append(
                f"no program: neither {single} nor {_prefix(variant)}.bN.mlir is there"
                + (f" for input_shapes[{variant}]" if variant is not None else "")
            )
            return []
        by_size = {0: single}
    elif manifest.is_dynamic:
        findings.append(
            f"batching.dynamic is true, so {single} is the only program, but there are"
            f" {listing(by_size.values())} too; remove them, or dynamic"
        )
        return []
    else:
        findings += [
            f"{program_name(variant, size)} is missing, though batching.compiled_batch_sizes lists"
            f" {size}; add the file or remove the size (there are {listing(by_size)})"
            for size in manifest.compiled_batch_sizes
            if size not in by_size
        ]
    findings += [
        f"{name} is not a regular file"
        for name in by_size.values()
        if not (bundle / name).is_file()
    ]
    return [ProgramFile(bundle / by_size[size], variant, size) for size in sorted(by_size)]


def _sized_files(names: Sequence[str], prefix: str, findings: list[str]) -> dict[int, str] | None:
    """Batch size to file name; None when a file of that form cannot be used."""
    by_size: dict[int, str] = {}
    before = len(findings)
    for name in names:
        match = _PROGRAM.fullmatch(name)
        if match is None or match["prefix"] != prefix:
            continue
        size = int(match["size"])
        if size == 0:
            findings.append(f"{name}: a batch size is at least 1; call it {prefix}.mlir")
        elif size > MAX_EXTENT:
            findings.append(f"{name}: the batch size is larger than {MAX_EXTENT}")
        elif size in by_size:
            findings.append(
                f"{by_size[size]} and {name} are both the program for batch size {size};"
                f" keep {prefix}.b{size}.mlir"
            )
        else:
            by_size[size] = name
    return by_size if len(findings) == before else None


def _check_sizes(programs: Sequence[ProgramFile], manifest: Manifest) -> list[str]:
    sizes: dict[int | None, list[int]] = {}
    for program in programs:
        sizes.setdefault(program.variant, []).append(program.size)
    findings = []
    if not manifest.has_batch_axis and any(len(of_variant) > 1 for of_variant in sizes.values()):
        findings.append(
            f"there are programs for the batch sizes {listing(next(iter(sizes.values())))}, but no"
            " executable input has a batch axis; add the letter 'n' to the shapes, or keep one file"
        )
    first = next(iter(sizes.values()))
    findings += [
        f"{_prefix(variant)} has programs for the sizes {listing(of_variant)}, but"
        f" {_prefix(0)} has {listing(first)} (0 stands for a file without .bN);"
        " all variants need the same"
        for variant, of_variant in sizes.items()
        if of_variant != first
    ]
    return findings


def check_single_program(
    manifest: Manifest,
    size_from_program: int | None,
    is_symbolic: bool,
    file_name: str = "model.mlir",
) -> list[str]:
    """Compare ``model.mlir`` with the compiled batch sizes of its manifest.

    ``model.mlir`` alone is the form for one batch size, for a program without a batch axis, and for
    one whose batch axis is symbolic (``?``), which serves every size. Call it for each program file
    of size 0 once the program's types are known.

    Args:
        manifest: the bundle's manifest.
        size_from_program: extent of the batch axis in the program's types; None when it has none.
        is_symbolic: whether the batch axis is symbolic in the program's types.
        file_name: the program's file, for messages.

    Returns:
        Findings; empty when they agree.
    """
    sizes = manifest.compiled_batch_sizes
    if is_symbolic or not sizes or not manifest.has_batch_axis:
        return []
    if len(sizes) > 1:
        prefix = file_name.removesuffix(".mlir")
        return [
            f"batching.compiled_batch_sizes lists {listing(sizes)}, but there is only {file_name},"
            f" for batches of {size_from_program}; add"
            f" {', '.join(f'{prefix}.b{size}.mlir' for size in sizes)}, or list that size only"
        ]
    if size_from_program is not None and size_from_program != sizes[0]:
        return [
            f"batching.compiled_batch_sizes lists {sizes[0]}, but {file_name} takes batches of"
            f" {size_from_program}; correct the list"
        ]
    return []
