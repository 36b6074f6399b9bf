"""Where a program runs: what of it depends on one platform, several devices, or luck.

What lives here: reading that off a program, as findings. What does not: whether it fits its bundle
(`hloserve.engine.programs.program_check`), and what an exporter refuses to write
(`hloserve.export`). Needs no device; one thread at a time per program.

Rule: an error is what no server of ours can run; a warning is what some can, or what runs but is
not what its author wants.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hloserve.bundle.findings import Finding, errors_at, listing, warnings_at
from hloserve.core.units import format_bytes
from hloserve.engine.programs.mlir import MlirProgram
from hloserve.engine.programs.mlir_annotations import walk_ops

__all__ = [
    "LARGE_CONSTANT_BYTES",
    "PORTABLE_DIALECTS",
    "check_portability",
    "large_constants",
    "oldest_jaxlib",
]

LARGE_CONSTANT_BYTES = 64 * 1024
"""Above it a constant is a weight that was baked in; tables that a model computes are smaller."""

PORTABLE_DIALECTS = frozenset(("builtin", "func", "stablehlo", "chlo", "shape"))
"""What the operations of a program are of, that every server can read."""

_BETWEEN_DEVICES = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute"),
        *("partition_id", "reduce_scatter", "replica_id"),
    )
)
# XLA expands these itself, on every platform.
_EXPANDED = ("shape_assertion", "stablehlo.dynamic_", "mhlo.", "ApproxTopK", "TopK")
_PLATFORMS = (
    ("cpu", ("lapack_", "blas_", "ducc_fft", "dynamic_ducc_fft", "__onednn$", "cpu_")),
    ("cuda", ("cu", "__cu", "__gpu$", "gpu", "triton", "mosaic_gpu", "xla.gpu.")),
    ("rocm", ("hip", "roc", "__hip", "__roc")),
    ("tpu", ("tpu", "LuDecomposition", "Qr", "Eigh", "ProductOfElementaryHouseholderReflectors")),
    ("tensorflow", ("tf.",)),
)
_SERVED = ("cpu", "cuda")
_JAXLIBS = (
    ((0, 14), "0.4.20"),
    ((1, 4), "0.4.31"),
    ((1, 10), "0.5.3"),
    ((1, 11), "0.6.2"),
    ((1, 17), "0.10.2"),
)  # the StableHLO of releases that were tried; what lies between is answered with the next one


def check_portability(program: MlirProgram) -> list[Finding]:
    """Say what ties a program to a platform or to a machine.

    Args:
        program: as it was read; its `source` is the findings' place.
    """
    errors, warnings = [], []
    if not program.stablehlo_version:
        warnings.append(
            "it is MLIR text or plain bytecode, which only the very version of jaxlib is sure to"
            " read that wrote it; write a portable artifact (stablehlo.serialize_portable_artifact)"
        )
    operations = list(walk_ops(program.module.operation))
    counts = Counter(op.name for op in operations)
    if crossing := sorted(counts.keys() & _BETWEEN_DEVICES):
        errors.append(
            f"it exchanges data between devices ({listing(crossing)}); export it for one device"
        )
    elif program.device_count > 1:
        warnings.append(
            f"it was exported for {program.device_count} devices; one runs it whole: export it for"
            " one"
        )
    for target in sorted(program.custom_calls):
        is_fatal, text = _describe_call(target)
        if text:
            (errors if is_fatal else warnings).append(text)
    foreign = sorted(name for name in counts if name.split(".")[0] not in PORTABLE_DIALECTS)
    if foreign:
        warnings.append(f"it uses operations that are not StableHLO: {listing(foreign)}")
    warnings += _randomness(operations)
    warnings += _large_constants(operations)
    return errors_at(program.source, errors) + warnings_at(program.source, warnings)


def oldest_jaxlib(stablehlo_version: str) -> str:
    """The oldest jaxlib that was tried with artifacts of a version; empty when none was."""
    wanted = tuple(map(int, stablehlo_version.split(".")))[:2]
    return next((jaxlib for version, jaxlib in _JAXLIBS if version >= wanted), "")


def _describe_call(target: str) -> tuple[bool, str]:
    """Whether no server runs a custom call, and what to say of it; empty for one that all run."""
    if target.startswith(_EXPANDED):
        return False, ""
    platform = next((name for name, marks in _PLATFORMS if target.startswith(marks)), "")
    if not platform:
        return False, (
            f"it calls {target!r}, which is not part of XLA: it runs only where something registers"
            " it; replace it with plain operations"
        )
    if platform not in _SERVED:
        return True, (
            f"it calls {target!r}, which exists on {platform} only; servers run on"
            f" {' and '.join(_SERVED)}: export it for one of these"
        )
    return False, f"it calls {target!r}, which exists on {platform} only; it cannot move elsewhere"


def _randomness(operations: Iterable[Any]) -> Sequence[str]:
    for op in operations:
        is_default = op.name == "stablehlo.rng_bit_generator" and "DEFAULT" in str(
            op.attributes["rng_algorithm"]
        )
        if op.name == "stablehlo.rng" or is_default:
            return [
                f"it draws random numbers that differ between runs or platforms ({op.name}); pass"
                " them in, or use a fixed algorithm"
            ]
    return ()


def _large_constants(operations: Iterable[Any]) -> Sequence[str]:
    found = [
        (size_bytes, str(op.results[0].type)) for op, size_bytes in large_constants(operations)
    ]
    if not found:
        return ()
    largest_bytes, kind = max(found)
    total_bytes = sum(size_bytes for size_bytes, _ in found)
    count = f"{len(found)} large constants" if len(found) > 1 else "a large constant"
    return [
        f"it holds {count} of {format_bytes(total_bytes)} (the largest is {kind},"
        f" {format_bytes(largest_bytes)}), and so does each file of another batch size; export them"
        " as weights, which are stored once"
    ]


def large_constants(operations: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """The constants above `LARGE_CONSTANT_BYTES` that are not one value everywhere.

    Their values are not looked at: of complex numbers, and of what later versions bring, the
    binding cannot make an object.

    Args:
        operations: of a program, in the block of its context or not.

    Returns:
        Pairs of the operation and its bytes.
    """
    for op in operations:
        if op.name != "stablehlo.constant":
            continue
        kind = op.results[0].type
        size_bytes = (math.prod(kind.shape) * _bits_of(kind.element_type) + 7) // 8
        # All but a splat is printed as a resource, with this limit.
        is_large = size_bytes > LARGE_CONSTANT_BYTES
        if is_large and "dense_resource<" in op.get_asm(large_elements_limit=1):
            yield op, size_bytes


def _bits_of(element: Any) -> int:
    part = getattr(element, "element_type", None)  # of a complex number
    return 2 * _bits_of(part) if part is not None else int(getattr(element, "width", 64))
