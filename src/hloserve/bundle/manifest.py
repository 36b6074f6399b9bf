"""`manifest.yaml` as a value: what a bundle declares about itself.

What lives here: `Manifest`, what follows from it, and reading one. What does not: the single keys
(`hloserve.bundle.sections`), rules across keys (`hloserve.bundle.rules`), the files beside the
manifest (`hloserve.bundle.layout`). Called by loaders, the exporter and the command line; a
`Manifest` is immutable, any thread.

Rule: a manifest is refused with all of its findings at once, never with the first one only.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hloserve.bundle import rules, sections
from hloserve.bundle.axes import VariableAxis, variable_axes
from hloserve.bundle.files import read_bounded
from hloserve.bundle.findings import describe, raise_findings
from hloserve.bundle.versions import BYTES_TENSORS, DYNAMIC_BATCH, check_features
from hloserve.core.dtypes import BYTES
from hloserve.core.errors import ManifestProblem
from hloserve.core.tensors import TensorSpec
from hloserve.core.yaml_text import YamlFault, load_yaml

__all__ = [
    "FOREIGN_HOOK_FILE",
    "HOOK_FILE",
    "MANIFEST_FILE",
    "MAX_MANIFEST_BYTES",
    "Manifest",
    "bundle_name",
    "load_manifest",
    "parse_manifest",
]

MANIFEST_FILE = "manifest.yaml"
HOOK_FILE = "model.py"
FOREIGN_HOOK_FILE = "model.jl"  # the sibling server's hook file; loading it is refused elsewhere
MAX_MANIFEST_BYTES = 1 << 20  # a manifest is a page; the reader is slow on purpose-built megabytes


@dataclass(frozen=True)
class Manifest:
    """What a bundle declares. All specs are in numpy order.

    Attributes:
        name: the model's served name: that of the bundle's directory.
        description: free text for people.
        kind: ``model`` or ``meta``.
        format_version: ``2.2``, ``2.1``, ``2.0`` or ``2``.
        calls: models that a meta model may call; empty for ``model``.
        executable_inputs: what the program takes, before the weights.
        executable_outputs: what the program returns.
        client_inputs: what clients send, when hooks make it differ; None when not declared.
        client_outputs: what clients get, likewise; each side defaults by itself.
        compiled_batch_sizes: sorted; may be empty.
        input_shapes: letter to size per shape variant; empty without variants.
        provenance: free-form, never validated.
        weights_file: bare name of the weights file.
        is_dynamic: one program per variant has an open batch axis and serves every size; the
            compiled sizes are those to specialise it to.
        hook_processes: how many processes run the hooks; 0 for threads of the server.
        labels: name of the file that names the classes, by output that clients get.
        warnings: what was ignored, one sentence each.
    """

    name: str
    description: str
    kind: str
    format_version: str
    calls: tuple[str, ...]
    executable_inputs: tuple[TensorSpec, ...]
    executable_outputs: tuple[TensorSpec, ...]
    client_inputs: tuple[TensorSpec, ...] | None
    client_outputs: tuple[TensorSpec, ...] | None
    compiled_batch_sizes: tuple[int, ...]
    input_shapes: tuple[Mapping[str, int], ...]
    provenance: Mapping[str, object]
    weights_file: str
    is_dynamic: bool = False
    hook_processes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_meta(self) -> bool:
        """True when the bundle is a function over other models, without a program of its own."""
        return self.kind == "meta"

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What clients send."""
        return self.executable_inputs if self.client_inputs is None else self.client_inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What clients get."""
        return self.executable_outputs if self.client_outputs is None else self.client_outputs

    @property
    def features(self) -> tuple[str, ...]:
        """What of it the oldest format does not have; see `hloserve.bundle.versions`."""
        has_strings = any(spec.dtype is BYTES for spec in (*self.inputs, *self.outputs))
        present = {DYNAMIC_BATCH: self.is_dynamic, BYTES_TENSORS: has_strings}
        return tuple(feature for feature, is_there in present.items() if is_there)

    @property
    def has_batch_axis(self) -> bool:
        """True when the executable inputs have a batch axis; then all of them have."""
        return any(spec.batch_axis is not None for spec in self.executable_inputs)

    @property
    def can_coalesce(self) -> bool:
        """True when requests can share a batch: every executable input and output has the axis."""
        specs = self.executable_inputs + self.executable_outputs
        return self.has_batch_axis and all(spec.batch_axis is not None for spec in specs)

    @property
    def representative_batch_axis(self) -> int | None:
        """Batch axis, in numpy order, of the first executable input that has one."""
        axes = [spec.batch_axis for spec in self.executable_inputs]
        return next((axis for axis in axes if axis is not None), None)

    @property
    def wire_batch_spec(self) -> tuple[str, int]:
        """Where a gateway reads a request's rows: input name and 1-based axis of its wire shape.

        The first client-facing input that has a batch axis; ``("", 0)`` when none has.
        """
        for spec in self.inputs:
            if spec.batch_axis is not None:
                return spec.name, spec.batch_axis + 1
        return "", 0

    @property
    def variable_axes(self) -> tuple[VariableAxis, ...]:
        """Variable axes of the executable inputs, in the order of a variant key."""
        return variable_axes(self.executable_inputs)

    @property
    def variant_keys(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of `variable_axes` per entry of `input_shapes`; empty without variants."""
        return rules.variant_keys(self.variable_axes, self.input_shapes)


def load_manifest(bundle: str | Path) -> Manifest:
    """Read the manifest of a bundle directory.

    The name in the file is ignored: a model is called what its directory is called.

    Raises:
        ManifestProblem: it is missing, unreadable, or breaks rules; holds all findings.
    """
    directory = Path(bundle)
    name = bundle_name(directory)
    try:
        content = read_bounded(directory / MANIFEST_FILE, MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        reason = "manifest.yaml is missing" if directory.is_dir() else "there is no such directory"
        raise ManifestProblem(bundle, reason) from error
    except OSError as error:
        raise ManifestProblem(
            bundle, f"manifest.yaml cannot be read: {error.strerror or error}"
        ) from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ManifestProblem(
            bundle, f"manifest.yaml is not UTF-8 text (at byte {error.start}); save it as UTF-8"
        ) from error
    has_hook_file = any((directory / file).is_file() for file in (HOOK_FILE, FOREIGN_HOOK_FILE))
    return parse_manifest(text, name=name, has_hook_file=has_hook_file, source=str(bundle))


def bundle_name(bundle: Path) -> str:
    """The name that a bundle directory gives its model.

    Raises:
        ManifestProblem: the directory's name is not UTF-8, so no client could ask for it.
    """
    name = Path(os.path.abspath(bundle)).name
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ManifestProblem(
            ascii(str(bundle)), "the directory's name is not UTF-8; rename it"
        ) from error
    return name


def parse_manifest(text: str, *, name: str, has_hook_file: bool, source: str) -> Manifest:
    """Parse and check the text of a manifest.

    Args:
        text: the YAML.
        name: the model's name; empty takes the one in the text, outside of a bundle.
        has_hook_file: whether a hook file lies beside the manifest.
        source: what errors call the bundle.

    Raises:
        ManifestProblem: holds everything that is wrong with it.
    """
    if len(text.encode(errors="surrogatepass")) > MAX_MANIFEST_BYTES:
        raise ManifestProblem(
            source, f"manifest.yaml: it is larger than {MAX_MANIFEST_BYTES} bytes"
        )
    try:
        root = load_yaml(text)
    except YamlFault as fault:
        raise ManifestProblem(source, f"manifest.yaml: {fault}") from fault
    if not isinstance(root, Mapping):
        raise ManifestProblem(
            source, f"manifest.yaml: the root must be a mapping of keys, got {describe(root)}"
        )
    findings: list[str] = []
    manifest = _parse_root(root, name, findings)
    findings += _check_client_side(root, manifest, has_hook_file)
    findings += _check_executable_side(root, manifest)
    findings += check_features(manifest.format_version, manifest.features)
    raise_findings(ManifestProblem, source, findings)
    return manifest


def _parse_root(root: sections.Root, name: str, findings: list[str]) -> Manifest:
    warnings = sections.unknown_key_warnings(root)
    kind = sections.parse_kind(root, findings)
    name = name or _declared_name(root, findings)
    calls: tuple[str, ...] = ()
    if kind == "meta":
        calls = sections.parse_calls(root, name, findings)
    elif root.get("meta") is not None:
        warnings.append("meta is ignored, because kind is model")
    description = root.get("description")
    return Manifest(
        name=name,
        description="" if description is None else str(description),
        kind=kind,
        format_version=sections.parse_format_version(root, findings),
        calls=calls,
        executable_inputs=_executable_section(root, "executable_inputs", kind, findings),
        executable_outputs=_executable_section(root, "executable_outputs", kind, findings),
        client_inputs=sections.parse_tensors(root, "client_inputs", findings),
        client_outputs=sections.parse_tensors(root, "client_outputs", findings),
        compiled_batch_sizes=sections.parse_compiled_batch_sizes(root, findings, warnings),
        input_shapes=sections.parse_input_shapes(root, findings),
        provenance=sections.parse_provenance(root, warnings),
        weights_file=sections.parse_weights_file(root, findings),
        is_dynamic=sections.parse_dynamic(root, findings),
        hook_processes=sections.parse_hook_processes(root, findings),
        labels=sections.parse_labels(root, findings),
        warnings=tuple(warnings),
    )


def _declared_name(root: sections.Root, findings: list[str]) -> str:
    value = root.get("name")
    if value is None or isinstance(value, str):
        return value or ""
    findings.append(f"name must be a string, got {describe(value)}; put it in quotes")
    return ""


def _executable_section(
    root: sections.Root, section: str, kind: str, findings: list[str]
) -> tuple[TensorSpec, ...]:
    specs = sections.parse_tensors(root, section, findings)
    if specs is None and kind == "model":
        findings.append(f"{section} is missing; list the program's tensors there (it may be [])")
    return specs or ()


def _check_client_side(root: sections.Root, manifest: Manifest, has_hook_file: bool) -> list[str]:
    client = {"client_inputs": manifest.client_inputs, "client_outputs": manifest.client_outputs}
    declared = [section for section, specs in client.items() if specs is not None]
    if manifest.is_meta:
        findings = rules.check_meta(
            manifest.client_inputs, manifest.client_outputs, manifest.input_shapes, has_hook_file
        )
        findings += [
            f"{section} is empty; kind meta needs at least one tensor"
            for section in declared
            if root.get(section) == []
        ]
    else:
        findings = rules.check_client_sections(declared, has_hook_file)
    for side in ("inputs", "outputs"):
        section = f"client_{side}"
        if section in declared:
            findings += rules.check_wire_dtypes(section, client[section] or ())
        elif not manifest.is_meta:
            specs = manifest.executable_inputs if side == "inputs" else manifest.executable_outputs
            findings += rules.check_wire_dtypes(f"executable_{side}", specs)
    return findings + rules.check_labels(manifest.labels, manifest.outputs)


def _check_executable_side(root: sections.Root, manifest: Manifest) -> list[str]:
    # Only sections that parsed whole are judged together: a tensor that was left out for its own
    # fault would come back as a missing axis.
    declared = root.get("executable_inputs") or []
    if not isinstance(declared, list) or len(declared) != len(manifest.executable_inputs):
        return []
    findings = rules.check_batch_axes(manifest.executable_inputs, manifest.compiled_batch_sizes)
    findings += rules.check_executable_dtypes("executable_inputs", manifest.executable_inputs)
    findings += rules.check_executable_dtypes("executable_outputs", manifest.executable_outputs)
    if manifest.is_dynamic:
        findings += rules.check_dynamic(
            manifest.kind, manifest.executable_inputs, sections.declared_batch_sizes(root)
        )
    variants = [dict(sizes) for sizes in manifest.input_shapes]
    if not manifest.is_meta and variants == (root.get("input_shapes") or []):
        findings += rules.check_variants(manifest.executable_inputs, manifest.input_shapes)
    return findings
