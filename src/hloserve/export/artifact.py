"""The exporter's side of a program: clean it, refuse what other machines cannot run, write it.

What lives here: from what a tracer wrote to the artifact of a bundle. What does not: reading and
refining (`hloserve.engine.programs.mlir`, the same code that the server runs). jaxlib only, no jax.

Rules.
1. An artifact holds no locations: they are paths of the exporting machine, make two exports differ,
   and cannot be parsed by jaxlib up to 0.4.31.
2. It is written for StableHLO 1.0.0, or for the oldest version that has what the program uses.
3. The dialects are StableHLO's and custom calls are those that every platform runs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxlib import _jax
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from hloserve.core.errors import ExportProblem, ProgramProblem
from hloserve.engine.programs.mlir import Diagnostics, MlirProgram, one_line, read_program
from hloserve.engine.programs.mlir_annotations import walk_ops
from hloserve.engine.programs.portability import PORTABLE_DIALECTS, large_constants

__all__ = [
    "OLDEST_TARGET",
    "Artifact",
    "check_target",
    "clean_program",
    "serialise_program",
    "tidy_program",
]

OLDEST_TARGET = "1.0.0"
"""What is written when nothing newer is needed: readers promise five years back."""

_TIDYING = "symbol-dce,canonicalize,cse"
_CLEANING = ",".join(
    (
        # Composites (`chlo.erf`, `top_k`) exist only in newer versions; their bodies are plain ops.
        "func.func(stablehlo-legalize-composite-to-call)",
        _TIDYING,
        "strip-debuginfo",
    )
)
_TOO_NEW = re.compile(r"failed to legalize operation 'vhlo\.(\w+?)_v\d+'")
_PORTABLE_CALLS = frozenset(("shape_assertion",))
_USUAL_CAUSES: Mapping[str, str] = {
    "getrf": "jnp.linalg.solve, inv, det or slogdet",
    "potrf": "jnp.linalg.cholesky",
    "geqrf": "jnp.linalg.qr",
    "orgqr": "jnp.linalg.qr",
    "ungqr": "jnp.linalg.qr",
    "gesdd": "jnp.linalg.svd, pinv or matrix_rank",
    "gesvd": "jnp.linalg.svd, pinv or matrix_rank",
    "syevd": "jnp.linalg.eigh",
    "heevd": "jnp.linalg.eigh",
    "geev": "jnp.linalg.eig",
    "trsm": "jax.scipy.linalg.solve_triangular or cho_solve",
    "gees": "jax.scipy.linalg.schur",
    "gehrd": "jax.scipy.linalg.hessenberg",
    "sytrd": "jnp.linalg.eigh",
    "gtsv": "jax.lax.linalg.tridiagonal_solve",
    "topk": "jax.lax.approx_max_k",
    "threefry": "jax.random on a GPU",
    "cudnn": "attention or a convolution lowered for a GPU",
    "triton": "a Pallas or Triton kernel",
    "mosaic": "a Pallas kernel",
    "tpu_custom_call": "a Pallas kernel",
    "fft": "jnp.fft",
}

stablehlo.register_stablehlo_passes()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A program file.

    Attributes:
        content: its bytes.
        target_version: StableHLO version that reads it.
        why_newer: why it is not for `OLDEST_TARGET`, where nobody asked for another version.
    """

    content: bytes
    target_version: str
    why_newer: str = ""


def clean_program(artifact: bytes, model: str) -> MlirProgram:
    """Read what a tracer wrote, make it portable, and check that it is.

    Args:
        artifact: a portable artifact of any version.
        model: the bundle's name, for messages.

    Raises:
        ExportProblem: it is for several devices or platforms, calls what other machines do not
            have, or holds weights as constants; all findings at once.
    """
    try:
        program = read_program(artifact, "traced program")
    except ProgramProblem as problem:
        raise ExportProblem(model, problem.findings) from problem
    _run_passes(program, _CLEANING, model)
    findings = _portability_findings(program.module)
    if findings:
        raise ExportProblem(model, findings)
    return program


def tidy_program(program: MlirProgram, model: str) -> MlirProgram:
    """Fold what refining to fixed extents left behind; changes the program that is given."""
    _run_passes(program, _TIDYING, model)
    return replace(program, custom_calls=frozenset(_custom_calls(program.module)))


def check_target(version: str) -> list[str]:
    """Whether a StableHLO version can be written here; a finding when it cannot."""
    oldest, newest = str(stablehlo.get_minimum_version()), str(stablehlo.get_current_version())
    if _version_key(oldest) <= _version_key(version) <= _version_key(newest):
        return []
    return [
        f"target_version: this jaxlib writes StableHLO {oldest} to {newest}, got {version};"
        " leave it out for the oldest that has what the program uses"
    ]


def serialise_program(program: MlirProgram, target_version: str | None, model: str) -> Artifact:
    """Write a program as a portable artifact.

    Args:
        program: left as it is.
        target_version: StableHLO version to write; None for the oldest that can hold it.
        model: the bundle's name, for messages.

    Raises:
        ExportProblem: the version is not one that this jaxlib writes, or is too old for what the
            program uses.
    """
    current = str(stablehlo.get_current_version())
    if target_version is not None:
        wrong = check_target(target_version)
        if wrong:
            raise ExportProblem(model, wrong)
        content, reason = _try_serialise(program.module, target_version)
        if content is None:
            oldest = _oldest_artifact(program, current)
            hint = f"; {oldest.target_version} or newer can hold it" if oldest else ""
            raise ExportProblem(
                model,
                f"target_version: StableHLO {target_version} cannot hold this program"
                f" ({reason}){hint}",
            )
        return Artifact(content, target_version)
    found = _oldest_artifact(program, current)
    if found is None:
        _, reason = _try_serialise(program.module, current)
        raise ExportProblem(model, f"the program cannot be written as an artifact: {reason}")
    return found


def _oldest_artifact(program: MlirProgram, current: str) -> Artifact | None:
    why_newer = ""
    for version in _versions_from(OLDEST_TARGET, current):
        content, reason = _try_serialise(program.module, version)
        if content is not None:
            return Artifact(content, version, why_newer)
        why_newer = reason
    return None


def _versions_from(oldest: str, current: str) -> Iterator[str]:
    """Minor versions of StableHLO 1; features come with them, not with patches."""
    newest = _version_key(current)
    yield oldest
    yield from (f"1.{minor}.0" for minor in range(1, newest[1]))
    yield current


def _version_key(version: str) -> tuple[int, int, int]:
    major, minor, patch = map(int, version.split("."))
    return major, minor, patch


def _try_serialise(module: Any, version: str) -> tuple[bytes | None, str]:
    """The artifact, or why there is none."""
    with Diagnostics(module.context) as said:
        try:
            # jax's own helper; the public `stablehlo.serialize_portable_artifact` changes `module`.
            return bytes(_jax.mlir.serialize_portable_artifact(module, version, False)), ""
        except (ValueError, RuntimeError, ir.MLIRError) as error:
            return None, _why_unwritable(said.text() + str(error))


def _why_unwritable(text: str) -> str:
    """MLIR prints the whole operation; its name is what an author can look for."""
    found = _TOO_NEW.search(text)
    return f"it uses {found.group(1)} in a newer form" if found else one_line(text)


def _run_passes(program: MlirProgram, passes: str, model: str) -> None:
    with program.module.context as context, Diagnostics(context) as said:
        try:
            manager = passmanager.PassManager.parse(f"builtin.module({passes})")
            manager.run(program.module.operation)
        except (ValueError, RuntimeError, ir.MLIRError) as error:
            reason = one_line(said.text() or str(error))
            raise ExportProblem(model, f"the program cannot be cleaned: {reason}") from error


def _portability_findings(module: Any) -> list[str]:
    findings: dict[str, None] = {}  # each once, in order
    for op in walk_ops(module.operation):
        for finding in _op_findings(op):
            findings.setdefault(finding)
    return list(findings)


def _op_findings(op: Any) -> Sequence[str]:
    name = op.name
    if name == "stablehlo.constant":
        return _constant_findings(op)
    if name == "stablehlo.custom_call":
        return _call_findings(ir.StringAttr(op.attributes["call_target_name"]).value)
    if name == "stablehlo.rng":
        return ["draws random numbers (stablehlo.rng), which differ on every run; take them out"]
    if name == "stablehlo.rng_bit_generator" and "DEFAULT" in str(op.attributes["rng_algorithm"]):
        return [
            "draws random numbers by an algorithm that differs between platforms"
            " (stablehlo.rng_bit_generator, from a key of implementation 'rbg'); take them out, or"
            " use jax.random.key(seed, impl='threefry2x32')"
        ]
    dialect = name.split(".")[0]
    if dialect not in PORTABLE_DIALECTS:
        return [f"uses the operation {name}, which is not StableHLO: no server can read it"]
    return ()


def _constant_findings(op: Any) -> Sequence[str]:
    return [
        f"a constant of {size_bytes} bytes ({op.results[0].type}) is part of the program; weights"
        " are arguments: pass this array in `weights`"
        for _, size_bytes in large_constants([op])
    ]


def _call_findings(target: str) -> Sequence[str]:
    if target in _PORTABLE_CALLS or target.startswith("stablehlo.dynamic_"):
        return ()
    lowered = target.lower()
    cause = next((cause for key, cause in _USUAL_CAUSES.items() if key in lowered), None)
    usually = f", usually from {cause}," if cause else ""
    return [
        f"calls {target}{usually} which is a function of one platform's libraries: other servers"
        " do not have it; compute it outside of the program, or with plain operations"
    ]


def _custom_calls(module: Any) -> Iterator[str]:
    for op in walk_ops(module.operation):
        if op.name == "stablehlo.custom_call":
            yield ir.StringAttr(op.attributes["call_target_name"]).value
