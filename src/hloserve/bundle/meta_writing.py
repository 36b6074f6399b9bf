"""Writing bundles of meta models: a manifest and a hook file, all at once or not at all.

What lives here: `write_meta_bundle`. What does not: bundles with programs
(`hloserve.bundle.writing`), whose rules apply here too. Called by authors; any thread, but one
writer per bundle.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hloserve.bundle.disk import Chunks
from hloserve.bundle.findings import raise_findings
from hloserve.bundle.io_spec import IOSpec, build_specs
from hloserve.bundle.manifest import HOOK_FILE, MANIFEST_FILE, parse_manifest
from hloserve.bundle.manifest_text import PATCH_FILE, format_meta_manifest, split_provenance
from hloserve.bundle.placing import place_bundle
from hloserve.bundle.versions import BYTES_TENSORS, needed_version
from hloserve.bundle.writing import check_name, extra_files
from hloserve.core.dtypes import BYTES
from hloserve.core.errors import BundleProblem

__all__ = ["write_meta_bundle"]


def write_meta_bundle(  # noqa: PLR0913  # one argument per part of a bundle; half have defaults
    directory: str | Path,
    name: str,
    calls: Sequence[str],
    client_inputs: Sequence[IOSpec],
    client_outputs: Sequence[IOSpec],
    model_py: str | bytes,
    *,
    labels: Mapping[str, str] | None = None,
    provenance: Mapping[str, object] | None = None,
    description: str = "",
    files: Mapping[str, bytes | str] | None = None,
    overwrite: bool = False,
    check: Callable[[Path], object] | None = None,
) -> Path:
    r"""Write a meta model's bundle.

    Args:
        directory: where the bundle will be; its last part must be `name`. Parents are created.
        name: the model's served name.
        calls: the models that it may call; none for one that only computes.
        client_inputs: what clients send; shapes in numpy order, see `IOSpec`.
        client_outputs: what clients get.
        model_py: text of the hook file, which calls `register_meta_model`.
        labels: file with the names of the classes, one per line, by output; it is one of `files`.
        provenance: free-form. ``git_diff`` is written to ``working_tree.patch`` instead.
        description: free text for people.
        files: more files by bare name.
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
        >>> root = tempfile.TemporaryDirectory()
        >>> bundle = write_meta_bundle(
        ...     f"{root.name}/twice", "twice", ["scale4"],
        ...     [IOSpec("x", "f32", (1, 4), batch_axis=0)],
        ...     [IOSpec("y", "f32", (1, 4), batch_axis=0)],
        ...     "from hloserve import register_meta_model\n"
        ...     "def run(inputs, call):\n"
        ...     "    once = call('scale4', inputs)\n"
        ...     "    return call('scale4', {'x': once['y']})\n"
        ...     "register_meta_model(run=run)\n",
        ... )
        >>> sorted(path.name for path in bundle.iterdir())
        ['manifest.yaml', 'model.py']
        >>> root.cleanup()
    """
    target = Path(os.path.abspath(directory))
    findings = check_name(target, name)
    tensors = {
        "client_inputs": build_specs("client_inputs", client_inputs, findings),
        "client_outputs": build_specs("client_outputs", client_outputs, findings),
    }
    plain, patch = split_provenance(provenance or {}, findings)
    text = model_py.encode() if isinstance(model_py, str) else bytes(model_py)
    written: dict[str, Chunks] = {HOOK_FILE: (text,)}
    if patch is not None:
        written[PATCH_FILE] = (patch,)
    written |= extra_files(files or {}, {MANIFEST_FILE, *written}, findings)
    raise_findings(BundleProblem, target, findings)
    has_strings = any(spec.dtype is BYTES for specs in tensors.values() for spec in specs)
    manifest = format_meta_manifest(
        name=name,
        description=description,
        format_version=needed_version([BYTES_TENSORS] if has_strings else [], "2.0"),
        calls=calls,
        tensors=tensors,
        labels=labels or {},
        provenance=plain,
    )
    parse_manifest(manifest, name=name, has_hook_file=True, source=str(target))
    written[MANIFEST_FILE] = (manifest.encode(),)
    place_bundle(target, written, overwrite=overwrite, check=check)
    return target
