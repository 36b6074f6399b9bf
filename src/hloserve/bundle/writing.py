"""Writing bundles: everything is checked, then written beside, then renamed in place.

What lives here: `write_bundle`. What does not: letters of axes (`hloserve.bundle.io_spec`), names
of program files (`hloserve.bundle.modules`), the disk (`hloserve.bundle.placing`). Called by
exporters and authors; any thread, but one writer per bundle.

Rules.
1. A bundle appears whole or not at all; what a crash leaves has a name that discovery skips.
2. The manifest that is written is one that `load_manifest` accepts.
3. The same arguments give the same bytes.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hloserve.bundle.disk import Chunks
from hloserve.bundle.findings import describe, listing, raise_findings
from hloserve.bundle.fingerprint import CACHE_DIRECTORY
from hloserve.bundle.io_spec import IOSpec, build_specs
from hloserve.bundle.layout import is_bundle_name
from hloserve.bundle.manifest import MANIFEST_FILE, bundle_name, parse_manifest
from hloserve.bundle.manifest_text import PATCH_FILE, format_manifest, split_provenance
from hloserve.bundle.modules import Modules, plan_modules
from hloserve.bundle.placing import place_bundle
from hloserve.bundle.sections import DEFAULT_WEIGHTS_FILE
from hloserve.bundle.versions import BYTES_TENSORS, DYNAMIC_BATCH, needed_version
from hloserve.bundle.weights_writing import Layout, WeightArrays, plan_weights
from hloserve.core.dtypes import BYTES
from hloserve.core.errors import BundleProblem
from hloserve.core.tensors import TensorSpec

__all__ = ["check_name", "extra_files", "write_bundle"]

_VERSIONS: Mapping[str, str] = {"xla": "2.1", "legacy": "2.0"}


def write_bundle(  # noqa: PLR0913  # one argument per part of a bundle; all but six have defaults
    directory: str | Path,
    name: str,
    executable_inputs: Sequence[IOSpec],
    executable_outputs: Sequence[IOSpec],
    modules: Modules,
    weights: WeightArrays,
    client_inputs: Sequence[IOSpec] | None = None,
    client_outputs: Sequence[IOSpec] | None = None,
    input_shapes: Sequence[Sequence[int]] | None = None,
    provenance: Mapping[str, object] | None = None,
    layout: Layout = "xla",
    *,
    dynamic_sizes: Sequence[int] | None = None,
    labels: Mapping[str, str] | None = None,
    hook_processes: int = 0,
    description: str = "",
    files: Mapping[str, bytes | str] | None = None,
    overwrite: bool = False,
    check: Callable[[Path], object] | None = None,
) -> Path:
    """Write a bundle: manifest, programs and weights, all at once or not at all.

    All shapes are in numpy order; see `IOSpec`.

    Args:
        directory: where the bundle will be; its last part must be `name`. Parents are created.
        name: the model's served name.
        executable_inputs: what the program takes, before the weights.
        executable_outputs: what it returns.
        modules: batch size to program. ``{0: program}`` writes ``model.mlir``, any other keys
            ``model.bN.mlir``. With `input_shapes`: variant to such a mapping.
        weights: (name, array) pairs or a mapping; their order is that of the program's arguments.
        client_inputs: what clients send, when a hook makes something else of it.
        client_outputs: what clients get, likewise.
        input_shapes: the compiled sizes of the variable axes of the executable inputs, one tuple
            per variant: inputs as declared, axes in numpy order.
        provenance: free-form. ``git_diff`` is written to ``working_tree.patch`` instead.
        layout: of the weights; ``legacy`` is for servers that know nothing but format 2.0.
        dynamic_sizes: the programs have an open batch axis, and servers specialise them to these
            sizes or others. `modules` is then ``{0: program}``, per variant with `input_shapes`.
            Such a bundle is of format 2.2; older servers refuse it. So is one whose clients send
            or get strings (``"bytes"``).
        labels: file with the names of the classes, one per line, by output; it is one of `files`.
        hook_processes: how many processes run the hooks; 0 leaves them on threads of the server.
        description: free text for people.
        files: more files by bare name, such as ``model.py``; client specs need one in the end.
        overwrite: replace an existing bundle in one step; otherwise one is refused.
        check: gets the finished directory before it takes its place, under a temporary name; what
            it raises is let through, and nothing is written.

    Returns:
        The bundle's directory.

    Raises:
        BundleProblem: an argument does not fit, with all findings; the directory exists and
            `overwrite` is false; or the disk failed. The directory is as it was before.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> root = tempfile.TemporaryDirectory()
        >>> bundle = write_bundle(
        ...     f"{root.name}/scale4", "scale4",
        ...     [IOSpec("x", "f32", (1, 4), batch_axis=0)],
        ...     [IOSpec("y", "f32", (1, 4), batch_axis=0)],
        ...     {1: "module { ... }", 8: "module { ... }"},
        ...     {"w": np.full(4, 2, np.float32)},
        ... )
        >>> sorted(path.name for path in bundle.iterdir())
        ['manifest.yaml', 'model.b1.mlir', 'model.b8.mlir', 'weights.safetensors']
        >>> root.cleanup()
    """
    target = Path(os.path.abspath(directory))
    findings = check_name(target, name)
    tensors = {
        "executable_inputs": build_specs(
            "executable_inputs", executable_inputs, findings, distinct=True
        ),
        "executable_outputs": build_specs("executable_outputs", executable_outputs, findings),
        "client_inputs": _build_optional("client_inputs", client_inputs, findings),
        "client_outputs": _build_optional("client_outputs", client_outputs, findings),
    }
    programs = plan_modules(
        modules, input_shapes, tensors["executable_inputs"] or (), findings, dynamic_sizes
    )
    features = _features(tensors, is_dynamic=programs.is_dynamic)
    findings += _check_layout(layout, features)
    stored = plan_weights(weights, layout, findings)
    plain, patch = split_provenance(provenance or {}, findings)
    written: dict[str, Chunks] = {name: (content,) for name, content in programs.files.items()}
    written[DEFAULT_WEIGHTS_FILE] = stored.chunks()
    if patch is not None:
        written[PATCH_FILE] = (patch,)
    written |= extra_files(files or {}, {MANIFEST_FILE, *written}, findings)
    raise_findings(BundleProblem, target, findings)
    text = format_manifest(
        name=name,
        description=description,
        format_version=needed_version(features, _VERSIONS[layout]),
        tensors=tensors,
        programs=programs,
        labels=labels or {},
        hook_processes=hook_processes,
        provenance=plain,
    )
    # A hook file may also be added later, by hand: client specs alone are no reason to refuse.
    parse_manifest(text, name=name, has_hook_file=True, source=str(target))
    written[MANIFEST_FILE] = (text.encode(),)
    place_bundle(target, written, overwrite=overwrite, check=check)
    return target


def _build_optional(
    section: str, declared: Sequence[IOSpec] | None, findings: list[str]
) -> tuple[TensorSpec, ...] | None:
    return None if declared is None else build_specs(section, declared, findings)


def check_name(target: Path, name: str) -> list[str]:
    """A bundle is called what its directory is called, and servers must not skip that."""
    findings = []
    if bundle_name(target) != name:
        findings.append(
            f"the directory is called {target.name!r} and the bundle {name!r}; they must be equal,"
            " because the directory's name is the model's"
        )
    if not is_bundle_name(target.name):
        findings.append(
            f"name {target.name!r} begins with '.' or holds '.tmp-'; servers skip such directories"
        )
    return findings


def _features(tensors: Mapping[str, Sequence[TensorSpec] | None], *, is_dynamic: bool) -> list[str]:
    has_strings = any(spec.dtype is BYTES for specs in tensors.values() for spec in specs or ())
    present = {DYNAMIC_BATCH: is_dynamic, BYTES_TENSORS: has_strings}
    return [feature for feature, is_there in present.items() if is_there]


def _check_layout(layout: str, features: Sequence[str]) -> list[str]:
    if layout not in _VERSIONS:
        return [f"layout must be one of {listing(_VERSIONS)}, got {describe(layout)}"]
    if layout == "legacy" and features:
        return [
            f"layout 'legacy' is for servers that know format 2.0 only, which has no"
            f" {listing(features)}; write fixed sizes, or layout 'xla'"
        ]
    return []


def extra_files(
    files: Mapping[str, bytes | str], taken: set[str], findings: list[str]
) -> dict[str, Chunks]:
    """The files that an author adds to those of the bundle; `taken` are their names."""
    extra: dict[str, Chunks] = {}
    for name, content in files.items():
        if name in {"", ".", "..", CACHE_DIRECTORY} or any(mark in name for mark in "/\\\0"):
            findings.append(f"files: {name!r} is not a bare file name")
        elif name in taken or name.endswith(".mlir"):
            findings.append(f"files: {name!r} is a name that the bundle uses itself")
        else:
            extra[name] = (content.encode() if isinstance(content, str) else bytes(content),)
    return extra
