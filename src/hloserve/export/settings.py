"""The options of one export, checked against the model and with their defaults filled in.

What lives here: `Settings` and `resolve_settings`. What does not: what the options mean
(`hloserve.export.options`), the inputs (`hloserve.export.input_settings`), and what follows from
the traced program: batch axes and types of outputs (`hloserve.export.interface`). Reads the hook
file and the assets, writes nothing.
"""

import difflib
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from hloserve.bundle.axes import is_whole
from hloserve.bundle.findings import describe, listing, repeated
from hloserve.bundle.io_spec import IOSpec, build_specs
from hloserve.bundle.layout import is_bundle_name
from hloserve.bundle.manifest import MANIFEST_FILE, bundle_name
from hloserve.bundle.manifest_text import PATCH_FILE, split_provenance
from hloserve.bundle.sections import DEFAULT_WEIGHTS_FILE
from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.core.units import format_bytes
from hloserve.export.artifact import check_target
from hloserve.export.callbacks import NamedProgress, try_samples
from hloserve.export.destination import check_destination
from hloserve.export.input_settings import InputSetting, read_inputs, read_names
from hloserve.export.jax.compile_options import check_compile_options
from hloserve.export.options import ExportOptions, ExportProgress, MatmulPrecision
from hloserve.export.source import Source

__all__ = ["BATCH", "DEFAULT_DYNAMIC_SIZES", "Settings", "resolve_settings"]

BATCH = "batch"
"""The name of the open extent of batch axes."""
DEFAULT_DYNAMIC_SIZES = (1, 2, 4, 8, 16, 32)

_COPIES = 4
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_HOOK_FILE = "model.py"
_OWN_FILES = (MANIFEST_FILE, DEFAULT_WEIGHTS_FILE, PATCH_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to export, and where to.

    Attributes:
        directory: the bundle's, absolute.
        name: the model's.
        batch_sizes: to compile for, ascending; empty without a batch axis.
        is_dynamic: one program with an open batch axis; `batch_sizes` are then what servers
            specialise it to.
        inputs: in argument order.
        variants: number of sets of shapes, at least 1.
        output_names: None for the frontend's.
        output_batch_axes: None for those that follow from the program.
        files: hook file and assets, by name.
        labels: names of classes: one of the files, by output.
        compile_options: of the framework; those that are not the default.
    """

    directory: Path
    name: str
    batch_sizes: tuple[int, ...]
    is_dynamic: bool
    inputs: tuple[InputSetting, ...]
    variants: int
    output_names: tuple[str, ...] | None
    output_batch_axes: tuple[int | None, ...] | None
    client_inputs: tuple[IOSpec, ...] | None
    client_outputs: tuple[IOSpec, ...] | None
    axis_letters: Mapping[str, str]
    matmul_precision: MatmulPrecision | None
    compile_options: Mapping[str, object]
    target_version: str | None
    files: Mapping[str, bytes]
    labels: Mapping[str, str]
    description: str
    provenance: Mapping[str, object]
    overwrite: bool
    tolerance: float | None
    prove_every_size: bool
    sample_inputs: Callable[[Any, int], Sequence[Array]] | None
    progress: ExportProgress


def resolve_settings(source: Source, options: ExportOptions) -> Settings:
    """Check the options of an export and fill their defaults in.

    Raises:
        ExportProblem: with everything that does not fit.
    """
    findings: list[str] = []
    directory, name = _read_place(options, findings)
    _check_known(options, findings)
    batch_sizes, is_dynamic = _read_batch_sizes(options, findings)
    inputs = read_inputs(source, options, bool(batch_sizes), findings)
    letters = dict(options.get("axis_letters") or {})
    files = _read_files(options, findings)
    resolved = Settings(
        directory=directory,
        name=name,
        batch_sizes=batch_sizes,
        is_dynamic=is_dynamic,
        inputs=inputs,
        variants=len(inputs[0].shapes) if inputs else 1,
        output_names=_read_output_names(options, findings),
        output_batch_axes=_read_output_axes(options, bool(batch_sizes), findings),
        client_inputs=_read_client("client_inputs", options, findings),
        client_outputs=_read_client("client_outputs", options, findings),
        axis_letters=letters,
        matmul_precision=_read_precision(options, findings),
        compile_options=check_compile_options(options.get("compile_options"), findings),
        target_version=_read_target(options, findings),
        files=files,
        labels=_read_labels(options, files, findings),
        description=options.get("description", ""),
        provenance=_read_provenance(options, findings),
        overwrite=options.get("overwrite", False),
        tolerance=_read_tolerance(options, findings),
        prove_every_size=options.get("prove_every_size", False),
        sample_inputs=options.get("sample_inputs"),
        progress=NamedProgress(options.get("progress") or ExportProgress(), name),
    )
    _check_sizes(resolved, findings)
    _check_clients(resolved, options, findings)
    rows = batch_sizes[0] if batch_sizes else 1
    if not findings:  # the author's code runs last
        types = [(each.dtype.numpy, each.extents(0, rows)) for each in inputs]
        several = resolved.variants > 1
        findings += try_samples(resolved.sample_inputs, rows, None if several else types)
    if findings:
        raise ExportProblem(name, list(dict.fromkeys(findings)))
    return resolved


def _check_known(options: ExportOptions, findings: list[str]) -> None:
    known = sorted(ExportOptions.__annotations__)
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name[:80], known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            findings.append(f"option {name!r} is not known{hint} (known: {', '.join(known)})")


def _read_place(options: ExportOptions, findings: list[str]) -> tuple[Path, str]:
    if not options.get("dir"):
        findings.append("dir: the directory of the bundle is missing; its last part is the name")
        return Path(), options.get("name", "")
    directory = Path(os.path.abspath(options["dir"]))
    name = options.get("name", bundle_name(directory))
    if name != bundle_name(directory):
        findings.append(
            f"name: is {name!r} and dir ends in {directory.name!r}; they must be equal, because"
            " the directory's name is the model's"
        )
    elif not is_bundle_name(name):
        findings.append(
            f"name: {name!r} begins with '.' or holds '.tmp-'; servers skip such directories"
        )
    findings += check_destination(directory, overwrite=options.get("overwrite", False))
    return directory, name


def _check_clients(settings: Settings, options: ExportOptions, findings: list[str]) -> None:
    """Client specs are what hooks make of the program's."""
    given = [name for name in ("client_inputs", "client_outputs") if options.get(name) is not None]
    if given and _HOOK_FILE not in settings.files and options.get("hook_file") is None:
        findings.append(
            f"{' and '.join(given)}: need a hook_file that makes the program's tensors of them;"
            " give it, or leave them out"
        )


def _check_sizes(settings: Settings, findings: list[str]) -> None:
    """A batch must fit into memory, here and in servers."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for size in settings.batch_sizes:
        needed_bytes = max(
            sum(each.nbytes(variant, size) for each in settings.inputs)
            for variant in range(settings.variants)
        )
        # They are drawn in float64, and both source and program get them, and answer.
        if _COPIES * needed_bytes > memory_bytes:
            option = "dynamic_sizes" if settings.is_dynamic else "batch_sizes"
            findings.append(
                f"{option}: the inputs of {size} rows are {format_bytes(needed_bytes)},"
                f" and this machine has {format_bytes(memory_bytes)} of memory, which"
                f" must hold them {_COPIES} times; leave that size out"
            )


def _read_batch_sizes(options: ExportOptions, findings: list[str]) -> tuple[tuple[int, ...], bool]:
    given = options.get("batch_sizes")
    if isinstance(given, str) and given == "dynamic":
        sizes = options.get("dynamic_sizes", DEFAULT_DYNAMIC_SIZES)
        return _read_sizes("dynamic_sizes", sizes, findings), True
    if "dynamic_sizes" in options:
        findings.append('dynamic_sizes: is for batch_sizes="dynamic" only; leave it out')
    if given is None:
        return (), False
    return _read_sizes("batch_sizes", given, findings), False


def _read_sizes(option: str, given: object, findings: list[str]) -> tuple[int, ...]:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    sizes = list(cast(Sequence[Any], given)) if is_list else []
    if not sizes or not all(is_whole(size) and size > 0 for size in sizes):
        dynamic = "" if option == "dynamic_sizes" else ', "dynamic" for an open batch axis, or None'
        findings.append(
            f"{option}: must be sizes above 0, such as [1, 8, 32]{dynamic}, got {describe(given)}"
        )
        return ()
    if repeated(sizes):
        findings.append(f"{option}: {listing(repeated(sizes))} is in it twice")
    return tuple(sorted(int(size) for size in sizes))


def _read_output_names(options: ExportOptions, findings: list[str]) -> tuple[str, ...] | None:
    return read_names("output_names", options, None, findings)


def _read_output_axes(
    options: ExportOptions, has_batch: bool, findings: list[str]
) -> tuple[int | None, ...] | None:
    given = options.get("output_batch_axes")
    if given is None:
        return None
    axes = tuple(given)
    if not has_batch and any(axis is not None for axis in axes):
        findings.append(
            "output_batch_axes: there is no batch axis without batch_sizes; give these too"
        )
    if not all(axis is None or (is_whole(axis) and axis >= 0) for axis in axes):
        findings.append(
            f"output_batch_axes: must be axes from 0 on, or None, got {describe(given)}"
        )
        return None
    return axes


def _read_client(
    option: str, options: ExportOptions, findings: list[str]
) -> tuple[IOSpec, ...] | None:
    given = cast(Mapping[str, Any], options).get(option)
    if given is None:
        return None
    specs = tuple(given)
    if not all(isinstance(spec, IOSpec) for spec in specs):
        findings.append(f"{option}: must be IOSpec, got {describe(given)}")
        return None
    build_specs(option, specs, findings)
    return specs


def _read_precision(options: ExportOptions, findings: list[str]) -> MatmulPrecision | None:
    given = options.get("matmul_precision")
    if given is not None and given not in get_args(MatmulPrecision):
        findings.append(
            f"matmul_precision: must be one of {listing(get_args(MatmulPrecision))}, got"
            f" {describe(given)}"
        )
    return given


def _read_target(options: ExportOptions, findings: list[str]) -> str | None:
    given: Any = options.get("target_version")
    if given is not None and not (isinstance(given, str) and _VERSION.fullmatch(given)):
        findings.append(
            f"target_version: must be a StableHLO version such as '1.0.0', got {describe(given)}"
        )
        return None
    if given is not None:
        findings += check_target(given)
    return given


def _read_provenance(options: ExportOptions, findings: list[str]) -> Mapping[str, object]:
    given: Any = options.get("provenance") or {}
    if not isinstance(given, Mapping):
        findings.append(f"provenance: must be a mapping, got {describe(given)}")
        return {}
    split_provenance(given, findings)
    return given


def _read_tolerance(options: ExportOptions, findings: list[str]) -> float | None:
    given: Any = options.get("tolerance")
    if given is not None and not (isinstance(given, int | float) and 0 < given < float("inf")):
        findings.append(f"tolerance: must be a share above 0, such as 1e-4, got {describe(given)}")
        return None
    return cast(float | None, given)


def _read_files(options: ExportOptions, findings: list[str]) -> dict[str, bytes]:
    """Hook file and assets."""
    wanted: list[tuple[str, str, Path]] = []
    hook_file = options.get("hook_file")
    if hook_file is not None:
        wanted.append(("hook_file", _HOOK_FILE, Path(hook_file)))
    wanted += [("assets", Path(path).name, Path(path)) for path in options.get("assets", ())]
    files: dict[str, bytes] = {}
    for option, name, path in wanted:
        if name in files:
            findings.append(f"{option}: {name!r} is included twice; names are unique")
        if name in _OWN_FILES or name.endswith(".mlir"):
            findings.append(f"{option}: {name!r} is a name that the bundle uses itself; rename it")
        try:
            files[name] = path.read_bytes()
        except OSError as error:
            findings.append(f"{option}: {path} cannot be read: {error.strerror}")
            continue
        if name.endswith(".py"):
            findings += _check_syntax(option, path, files[name])
    return files


def _read_labels(
    options: ExportOptions, files: Mapping[str, bytes], findings: list[str]
) -> Mapping[str, str]:
    given: Any = options.get("labels") or {}
    if not isinstance(given, Mapping):
        findings.append(f"labels: must be a mapping of outputs to files, got {describe(given)}")
        return {}
    findings += [
        f"labels: of output {output!r} are in {describe(file)}, which is not among the assets"
        f" ({listing(files)}); add its path to them"
        for output, file in given.items()
        if not (isinstance(file, str) and file in files)
    ]
    return given


def _check_syntax(option: str, path: Path, content: bytes) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of, it warns of when it is run
            compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        at = f" line {line}" if line else ""
        reason = getattr(error, "msg", None) or error
        return [f"{option}: {path}{at} is no Python: {type(error).__name__}: {reason}"]
    return []
