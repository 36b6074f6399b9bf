"""How programs are compiled: settings, compiler options, and what is done to a program before.

What lives here: all that decides what the compiler gets, as values; and the notes that an
executable keeps of it. What does not: the compiler (`hloserve.engine.xla_backend`), the rewrites
themselves (`hloserve.engine.programs.numerics`, `hloserve.engine.programs.rewriting`) and the
settings' sentences (`hloserve.config.schema`). Any thread.
"""

import hashlib
import json
import platform as platform_module
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from hloserve.engine.programs.mlir import MlirProgram, copy_module
from hloserve.engine.programs.notes import ProgramNotes
from hloserve.engine.programs.numerics import NumericsMode, apply_numerics, ungoverned_ops
from hloserve.engine.programs.rewriting import apply_rewrites

__all__ = [
    "CompileSettings",
    "OptionValue",
    "pack_executable",
    "plan_options",
    "prepare_program",
    "processor_identity",
    "rewriter_revision",
    "unpack_executable",
]

OptionValue: TypeAlias = bool | int | float | str

_MEASURED: Mapping[str, Mapping[str, OptionValue]] = {
    "cpu": {
        # Without it XLA gives convolutions and reductions to YNNPACK too, where they are slower.
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    }
}
"""Options that were measured to be quicker, by platform; docs/decisions/23-programs.md."""

_LENGTH = struct.Struct("<I")
_REWRITERS = (
    *("compiling", "convolutions", "mlir_annotations", "mlir_building", "numerics", "pooling"),
    "rewriting",
)


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """What an operator says of compiling.

    Attributes:
        numerics: precision of float32 products.
        has_rewrites: programs are rewritten for speed, and measured options are used.
        has_autotuning: XLA may try kernels on a GPU and take the quickest.
        autotune_cache_dir: where it keeps what it found; empty for nowhere.
        options: of XLA, by name; they win over all others.
    """

    numerics: NumericsMode = "auto"
    has_rewrites: bool = True
    has_autotuning: bool = True
    autotune_cache_dir: str = ""
    options: Mapping[str, OptionValue] = field(default_factory=lambda: MappingProxyType({}))


def plan_options(platform: str, settings: CompileSettings) -> Mapping[str, OptionValue]:
    """The options that XLA gets on a platform, beside its own defaults."""
    options: dict[str, OptionValue] = {}
    if settings.has_rewrites:
        options.update(_MEASURED.get(platform, {}))
    if platform != "cpu" and not settings.has_autotuning:
        options["xla_gpu_autotune_level"] = 0
    if platform != "cpu" and settings.autotune_cache_dir:
        options["xla_gpu_per_fusion_autotune_cache_dir"] = settings.autotune_cache_dir
        options["xla_gpu_experimental_autotune_cache_mode"] = "AUTOTUNE_CACHE_MODE_UPDATE"
    return {**options, **settings.options}


def prepare_program(
    program: MlirProgram, platform: str, settings: CompileSettings, *, is_capable: bool
) -> tuple[MlirProgram, ProgramNotes]:
    """Make of a program what the compiler gets.

    Args:
        program: of static types; left as it is.
        platform: short name of the kind of device.
        settings: what the operator wants.
        is_capable: the device has TF32.

    Returns:
        A copy, and what was done.

    Raises:
        ProgramProblem: it cannot be rewritten for these numerics.
    """
    module = copy_module(program)
    numerics = apply_numerics(
        module, settings.numerics, is_capable=is_capable, source=program.source
    )
    rewrites = apply_rewrites(module) if settings.has_rewrites and platform == "cpu" else {}
    ungoverned = ungoverned_ops(module) if settings.numerics == "f32" else ()
    return replace(program, module=module), ProgramNotes(numerics, ungoverned, rewrites)


def rewriter_revision() -> str:
    """Name the code that prepares programs: what it makes may change when that does."""
    digest = hashlib.sha256()
    for name in _REWRITERS:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


def pack_executable(notes: ProgramNotes, payload: bytes) -> bytes:
    """Put the notes of an executable that was compiled here in front of its bytes."""
    head = json.dumps([notes.numerics, notes.ungoverned, dict(notes.rewrites)]).encode()
    return _LENGTH.pack(len(head)) + head + payload


def unpack_executable(packed: bytes) -> tuple[ProgramNotes, bytes]:
    """Undo `pack_executable`.

    Raises:
        ValueError: it is something else.
    """
    try:
        (length,) = _LENGTH.unpack_from(packed)
        start = _LENGTH.size + length
        numerics, ungoverned, rewrites = json.loads(packed[_LENGTH.size : start])
        return ProgramNotes(str(numerics), tuple(ungoverned), dict(rewrites)), packed[start:]
    except (struct.error, TypeError) as error:
        raise ValueError(f"not a packed executable: {error}") from error


def processor_identity() -> str:
    """What machine code for this processor depends on: its kind and the features it has."""
    features = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        found = {line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))}
        features = " ".join(sorted({each for line in found for each in line.split()}))
    return f"{platform_module.machine()} {features}"
