"""The sections of a manifest, one parser each: plain YAML values to typed values and findings.

What lives here: what each key may hold by itself. What does not: rules that join several keys
(`hloserve.bundle.rules`) and the notation of axes (`hloserve.bundle.axes`). Pure functions; each
appends a sentence per fault to `findings` and returns what it could read. Any thread.
"""

from collections.abc import Mapping
from typing import Any

from hloserve.bundle.axes import is_axis_letter, is_whole, parse_tensor
from hloserve.bundle.findings import describe, listing, repeated
from hloserve.bundle.versions import FORMAT_VERSIONS
from hloserve.core.tensors import TensorSpec

__all__ = [
    "DEFAULT_WEIGHTS_FILE",
    "declared_batch_sizes",
    "parse_calls",
    "parse_compiled_batch_sizes",
    "parse_dynamic",
    "parse_format_version",
    "parse_hook_processes",
    "parse_input_shapes",
    "parse_kind",
    "parse_labels",
    "parse_provenance",
    "parse_tensors",
    "parse_weights_file",
    "unknown_key_warnings",
]

DEFAULT_WEIGHTS_FILE = "weights.safetensors"
MOST_HOOK_PROCESSES = 64
_KINDS = ("model", "meta")
_TENSOR_SECTIONS = ("executable_inputs", "executable_outputs", "client_inputs", "client_outputs")
_KEYS: Mapping[str, frozenset[str]] = {
    "manifest": frozenset(
        (
            *_TENSOR_SECTIONS,
            *("format_version", "name", "description", "kind", "meta", "batching"),
            *("hooks", "input_shapes", "labels", "provenance", "weights_file"),
        )
    ),
    "tensor": frozenset(("name", "dtype", "shape", "dims")),
    "batching": frozenset(("compiled_batch_sizes", "dynamic")),
    "hooks": frozenset(("processes",)),
    "meta": frozenset(("calls",)),
}

Root = Mapping[Any, object]
"""The root mapping of a manifest, as YAML gave it."""


def parse_format_version(root: Root, findings: list[str]) -> str:
    """Read `format_version`, which YAML may have taken for a number."""
    value = root.get("format_version")
    supported = ", ".join(f'"{version}"' for version in FORMAT_VERSIONS)
    if value is None:
        findings.append(f"format_version is missing; write one of {supported}")
        return ""
    is_scalar = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not is_scalar or str(value) not in FORMAT_VERSIONS:
        findings.append(
            f"format_version must be one of {supported}, got {describe(value)};"
            " a newer bundle needs a newer server"
        )
        return ""
    return str(value)


def parse_kind(root: Root, findings: list[str]) -> str:
    """Read `kind`; `model` when it is absent or unreadable."""
    value = root.get("kind")
    if value is None:
        return "model"
    if not isinstance(value, str) or value not in _KINDS:
        findings.append(f"kind must be one of {', '.join(_KINDS)}, got {describe(value)}")
        return "model"
    return value


def parse_calls(root: Root, name: str, findings: list[str]) -> tuple[str, ...]:
    """Read `meta.calls`, the models that a meta model may call."""
    meta = root.get("meta")
    if not isinstance(meta, Mapping):
        got = "nothing" if meta is None else describe(meta)
        findings.append(f"meta must be a mapping with the list 'calls' (kind is meta), got {got}")
        return ()
    calls = meta.get("calls")
    if not isinstance(calls, list):
        got = "nothing" if calls is None else describe(calls)
        findings.append(f"meta.calls must be a list of model names (it may be empty), got {got}")
        return ()
    strange = [call for call in calls if not isinstance(call, str) or not call]
    findings += [
        f"meta.calls holds {describe(call)}, expected the name of a model" for call in strange
    ]
    names = [call for call in calls if isinstance(call, str) and call]
    if len(set(names)) < len(names):
        findings.append(f"meta.calls repeats {listing(repeated(names))}; list each model once")
    if name and name in names:
        findings.append(
            f"meta.calls holds the bundle itself ({name!r}); a model cannot call itself"
        )
    return tuple(names)


def parse_tensors(root: Root, section: str, findings: list[str]) -> tuple[TensorSpec, ...] | None:
    """Read a section of tensors.

    Returns:
        The specs, without those that have findings; None when the section is absent.
    """
    value = root.get(section)
    if value is None:
        return None
    if not isinstance(value, list):
        findings.append(f"{section} must be a list of tensors, got {describe(value)}")
        return ()
    specs = [
        parse_tensor(entry, f"{section}[{index}]", findings) for index, entry in enumerate(value)
    ]
    names = [
        entry["name"]
        for entry in value
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
    ]
    if len(set(names)) < len(names):
        findings.append(f"{section} holds {listing(repeated(names))} twice; names are unique")
    return tuple(spec for spec in specs if spec is not None)


def parse_compiled_batch_sizes(
    root: Root, findings: list[str], warnings: list[str]
) -> tuple[int, ...]:
    """Read `batching.compiled_batch_sizes`, sorted."""
    batching = root.get("batching")
    if batching is None:
        return ()
    if not isinstance(batching, Mapping):
        findings.append(
            f"batching must be a mapping with the list 'compiled_batch_sizes',"
            f" got {describe(batching)}"
        )
        return ()
    value = declared_batch_sizes(root)
    if value is None:
        return ()
    where = "batching.compiled_batch_sizes"
    if not isinstance(value, list):
        findings.append(f"{where} must be a list of integers, got {describe(value)}")
        return ()
    findings += [
        f"{where}[{index}] must be an integer above 0, got {describe(size)}"
        for index, size in enumerate(value)
        if not is_whole(size) or size <= 0
    ]
    sizes = [size for size in value if is_whole(size) and size > 0]
    if len(set(sizes)) < len(sizes):
        warnings.append(f"{where} repeats {listing(repeated(sizes))}")
    return tuple(sorted(set(sizes)))


def declared_batch_sizes(root: Root) -> object:
    """What stands under `batching.compiled_batch_sizes`, right or wrong; None when nothing does."""
    batching = root.get("batching")
    return batching.get("compiled_batch_sizes") if isinstance(batching, Mapping) else None


def parse_dynamic(root: Root, findings: list[str]) -> bool:
    """Read `batching.dynamic`: one program per variant serves every batch size."""
    batching = root.get("batching")
    value = batching.get("dynamic") if isinstance(batching, Mapping) else None
    if value is not None and not isinstance(value, bool):
        findings.append(f"batching.dynamic must be true or false, got {describe(value)}")
        return False
    return bool(value)


def parse_input_shapes(root: Root, findings: list[str]) -> tuple[Mapping[str, int], ...]:
    """Read `input_shapes`: one mapping of letter to size per variant."""
    value = root.get("input_shapes")
    if value is None:
        return ()
    if not isinstance(value, list):
        findings.append(
            f"input_shapes must be a list of mappings of letters to sizes, got {describe(value)}"
        )
        return ()
    return tuple(_parse_variant(entry, i, findings) for i, entry in enumerate(value))


def _parse_variant(entry: object, index: int, findings: list[str]) -> dict[str, int]:
    where = f"input_shapes[{index}]"
    if not isinstance(entry, Mapping):
        findings.append(
            f"{where} must be a mapping of letters to sizes, e.g. {{w: 640, h: 480}},"
            f" got {describe(entry)}"
        )
        return {}
    sizes = {}
    for letter, size in entry.items():
        if not is_axis_letter(letter):
            findings.append(
                f"{where}: key {describe(letter)} is not the letter of a variable axis;"
                " use one ASCII letter, not the batch letters 'n' and 'b'"
            )
        elif not is_whole(size) or size <= 0:
            findings.append(f"{where}[{letter!r}] must be an integer above 0, got {describe(size)}")
        else:
            sizes[letter] = size
    return sizes


def parse_hook_processes(root: Root, findings: list[str]) -> int:
    """Read `hooks.processes`: how many processes run the hooks; 0 for threads of the server."""
    hooks = root.get("hooks")
    if hooks is None:
        return 0
    if not isinstance(hooks, Mapping):
        findings.append(f"hooks must be a mapping like {{processes: 2}}, got {describe(hooks)}")
        return 0
    value = hooks.get("processes", 0)
    if not is_whole(value) or not 0 <= value <= MOST_HOOK_PROCESSES:
        findings.append(
            f"hooks.processes must be an integer from 0 to {MOST_HOOK_PROCESSES}, got"
            f" {describe(value)}"
        )
        return 0
    return int(value)


def parse_weights_file(root: Root, findings: list[str]) -> str:
    """Read `weights_file`, a bare file name inside the bundle."""
    value = root.get("weights_file")
    if value is None:
        return DEFAULT_WEIGHTS_FILE
    if not _is_bare_file(value):
        findings.append(
            "weights_file must be the name of a file inside the bundle, without directories,"
            f" got {describe(value)}"
        )
        return DEFAULT_WEIGHTS_FILE
    return str(value)


def parse_labels(root: Root, findings: list[str]) -> Mapping[str, str]:
    """Read `labels`, which names a file of the bundle for each output whose classes have names."""
    value = root.get("labels")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        findings.append(
            f"labels must be a mapping of outputs to files, got {describe(value)}; write"
            " {logits: labels.txt}"
        )
        return {}
    labels = {}
    for output, file in value.items():
        if not isinstance(output, str):
            findings.append(f"labels: output {describe(output)} is no name; put it in quotes")
        elif not _is_bare_file(file):
            findings.append(
                f"labels[{describe(output)}] must be the name of a file inside the bundle, without"
                f" directories, got {describe(file)}"
            )
        else:
            labels[output] = str(file)
    return labels


def _is_bare_file(value: object) -> bool:
    return (
        isinstance(value, str)
        and value not in {"", ".", ".."}
        and not any(mark in value for mark in "/\\\0")
    )


def parse_provenance(root: Root, warnings: list[str]) -> Mapping[str, object]:
    """Read `provenance`, which is free-form and never an error."""
    value = root.get("provenance")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        warnings.append(f"provenance is ignored: it is not a mapping but {describe(value)}")
        return {}
    return {str(key): item for key, item in value.items()}


def unknown_key_warnings(root: Root) -> list[str]:
    """Name the keys that nothing reads, per section."""
    warnings = [
        _unknown(root, "manifest", "the manifest"),
        _unknown(root.get("batching"), "batching", "batching"),
        _unknown(root.get("meta"), "meta", "meta"),
        _unknown(root.get("hooks"), "hooks", "hooks"),
    ]
    for section in _TENSOR_SECTIONS:
        entries = root.get(section)
        if isinstance(entries, list):
            warnings += [_unknown(e, "tensor", f"{section}[{i}]") for i, e in enumerate(entries)]
    return [warning for warning in warnings if warning]


def _unknown(value: object, kind: str, where: str) -> str:
    if not isinstance(value, Mapping):
        return ""
    unknown = [key for key in value if key not in _KEYS[kind]]
    if not unknown:
        return ""
    known = ", ".join(sorted(_KEYS[kind]))
    return f"{where} has unknown keys, which are ignored: {listing(unknown)}; known are {known}"
