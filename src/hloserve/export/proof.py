"""The proof: each program runs beside the model it was made of, on random inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloserve.core.tensors import Array, TensorSpec
from hloserve.export.options import ExportProgress
from hloserve.export.report import ProgramReport
from hloserve.export.source import NamedArrays, Source

__all__ = ["Candidate", "Proof", "prove"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program as it will be written, at one batch size and variant.

    Attributes:
        file: its name in the bundle; several candidates share the file of a dynamic batch.
        artifact: the file's bytes; open extents are fixed here, for `size`.
        size: batch size; 0 without a batch axis.
        variable: extent per variable letter of the inputs; empty without variants.
        is_refined: it comes of a symbolic trace that other sizes share.
        target_version: StableHLO version of the artifact, for the report.
    """

    file: str
    artifact: bytes
    size: int
    variable: Mapping[str, int] = field(default_factory=dict)
    is_refined: bool = False
    target_version: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found: one report per candidate, in order, and sentences for the export's report."""

    programs: tuple[ProgramReport, ...]
    unused_inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def prove(
    source: Source,
    candidates: Sequence[Candidate],
    weights: NamedArrays,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    model: str,
    tolerance: float | None = None,
    sample_inputs: Callable[[Any, int], Sequence[Array]] | None = None,
    every_size: bool = False,
    progress: ExportProgress | None = None,
) -> Proof:
    """Run every candidate beside the source and compare the results.

    Args:
        source: the model.
        candidates: its programs.
        weights: in argument order.
        inputs: specs of the executable inputs.
        outputs: specs of the results.
        model: its name, for messages.
        tolerance: largest error as a share of the signal; None for the default of the dtype.
        sample_inputs: as in `ExportOptions`.
        every_size: run also the refined programs beyond the first two of a variant.
        progress: hears of each run.

    Raises:
        ProofFailed: a program has the wrong types, fails to run, or computes something else than
            the source; or nothing is proved because the outputs ignore the inputs. All findings.
    """
    raise NotImplementedError
