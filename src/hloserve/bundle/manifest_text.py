"""The text of a manifest, and the provenance in it.

What lives here: which keys are written, in which order and style. What does not: YAML itself
(`hloserve.bundle.yaml_writing`) and the notation of axes (`hloserve.bundle.axes`). Pure; any
thread.
"""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from hloserve.bundle.axes import format_tensor, is_whole
from hloserve.bundle.findings import describe
from hloserve.bundle.modules import ModulePlan
from hloserve.bundle.yaml_writing import Quoted, dump_yaml
from hloserve.core.tensors import TensorSpec

__all__ = [
    "PATCH_FILE",
    "format_manifest",
    "format_meta_manifest",
    "plain_provenance",
    "split_provenance",
]

PATCH_FILE = "working_tree.patch"
_FLOW = frozenset(
    (
        *("executable_inputs", "executable_outputs", "client_inputs", "client_outputs"),
        *("batching", "hooks", "input_shapes", "labels", "meta"),
    )
)
_MAX_DEPTH = 20


def format_manifest(  # noqa: PLR0913  # one argument per part of a manifest
    *,
    name: str,
    description: str,
    format_version: str,
    tensors: Mapping[str, Sequence[TensorSpec] | None],
    programs: ModulePlan,
    provenance: Mapping[str, object],
    labels: Mapping[str, str] | None = None,
    hook_processes: int = 0,
) -> str:
    """Write the manifest of a bundle of kind ``model``.

    Args:
        name: the bundle's name, for people; the directory decides.
        description: left out when empty.
        format_version: ``2.2``, ``2.1`` or ``2.0``.
        tensors: specs per section, in the order to write; a section of None is left out.
        programs: what it says of them; keys with nothing to say are left out, for readers that do
            not know them.
        provenance: plain values (see `plain_provenance`).
        labels: left out when there are none.
        hook_processes: left out when there are none.
    """
    document: dict[str, object] = {"format_version": Quoted(format_version), "name": name}
    if description:
        document["description"] = description
    for section, specs in tensors.items():
        if specs is not None:
            document[section] = [_tensor_entry(spec) for spec in specs]
    dynamic = {"dynamic": True} if programs.is_dynamic else {}
    document["batching"] = {**dynamic, "compiled_batch_sizes": list(programs.compiled_batch_sizes)}
    if programs.input_shapes:
        document["input_shapes"] = [dict(sizes) for sizes in programs.input_shapes]
    if labels:
        document["labels"] = dict(labels)
    if hook_processes:
        document["hooks"] = {"processes": hook_processes}
    document["provenance"] = dict(provenance)
    return dump_yaml(document, _FLOW)


def format_meta_manifest(
    *,
    name: str,
    description: str,
    format_version: str,
    calls: Sequence[str],
    tensors: Mapping[str, Sequence[TensorSpec]],
    labels: Mapping[str, str],
    provenance: Mapping[str, object],
) -> str:
    """Write the manifest of a bundle of kind ``meta``; arguments as for `format_manifest`."""
    document: dict[str, object] = {"format_version": Quoted(format_version), "name": name}
    if description:
        document["description"] = description
    document["kind"] = "meta"
    document["meta"] = {"calls": list(calls)}
    for section, specs in tensors.items():
        document[section] = [_tensor_entry(spec) for spec in specs]
    if labels:
        document["labels"] = dict(labels)
    document["provenance"] = dict(provenance)
    return dump_yaml(document, _FLOW)


def _tensor_entry(spec: TensorSpec) -> dict[str, object]:
    entry = format_tensor(spec)
    entry["shape"] = Quoted(entry["shape"])  # `no` and `on` are shapes, and booleans to YAML
    return entry


def split_provenance(
    provenance: Mapping[str, object], findings: list[str]
) -> tuple[dict[str, object], bytes | None]:
    """Take the uncommitted diff out of the provenance.

    Returns:
        The provenance to write, which names the patch file instead, and the patch; None when
        there is no diff.
    """
    plain = {key: item for key, item in provenance.items() if key != "git_diff"}
    diff = provenance.get("git_diff")
    if diff is not None and not isinstance(diff, str | bytes):
        findings.append(f"provenance.git_diff must be text, got {describe(diff)}")
        return plain_provenance(plain, findings), None
    if not diff:
        return plain_provenance(plain, findings), None
    patch = diff.encode(errors="surrogateescape") if isinstance(diff, str) else diff
    plain["git_diff_file"] = PATCH_FILE
    # git apply calls a patch without a final newline corrupt.
    return plain_provenance(plain, findings), patch if patch.endswith(b"\n") else patch + b"\n"


def plain_provenance(provenance: Mapping[str, object], findings: list[str]) -> dict[str, object]:
    """Turn provenance into values that YAML has; anything else is a finding."""
    return {
        str(key): _plain(item, f"provenance.{key}", findings, depth=0)
        for key, item in provenance.items()
    }


def _plain(value: object, where: str, findings: list[str], depth: int) -> object:
    if depth > _MAX_DEPTH:
        findings.append(f"{where} is nested deeper than {_MAX_DEPTH} levels")
        return None
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{where}.{k}", findings, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, f"{where}[{i}]", findings, depth + 1) for i, v in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float) or is_whole(value):
        return value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    findings.append(f"{where} must be text, a number, a list or a mapping, got {describe(value)}")
    return None
