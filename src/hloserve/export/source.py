"""The seam between the frameworks and the exporter: what a trained model must be able to do.

What lives here: `Source`, which each frontend implements, and `Traced`, what it hands over. What
does not: turning that into a bundle (`hloserve.export.pipeline`), which is the same for all.

Rules.
1. `main` of a traced program takes the inputs, then the weights of `Traced.weights`, in order, and
   every one of them, used or not.
2. A weight is an argument, never a constant, and occurs once: tied weights are one argument.
3. A frontend refuses what would be served wrongly (training mode, random state, mutated buffers)
   with `ExportProblem`, which names the layer or the argument.

One thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hloserve.core.tensors import Array

__all__ = ["NamedArrays", "Shape", "Source", "SymbolicTraceFailed", "Traced"]

NamedArrays: TypeAlias = tuple[tuple[str, Array], ...]
"""Named host arrays, in order; C-contiguous."""

Shape: TypeAlias = tuple[int | str, ...]
"""Extents of an input in numpy order; text names an open extent, the same text the same one."""


class SymbolicTraceFailed(Exception):
    """The model cannot be traced with open extents; the exporter then traces it once per size.

    The message is one line that an author understands: it goes into the report.
    """


@dataclass(frozen=True, slots=True)
class Traced:
    """One traced program.

    Attributes:
        artifact: portable artifact as the tracer wrote it: not cleaned, any target version. Or
            the program as text.
        weights: what `main` takes after the inputs, in order.
        output_names: one per result; what `output_names` of the options defaults to.
        notes: sentences for the report: what was left out, cast or replaced.
    """

    artifact: bytes
    weights: NamedArrays
    output_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


class Source(Protocol):
    """A trained model of some framework, with example inputs."""

    @property
    def framework(self) -> str:
        """Recorded as provenance ``source_framework``: ``jax``, ``pytorch``..."""
        ...

    @property
    def inputs(self) -> NamedArrays:
        """The example inputs by their default names, in argument order."""
        ...

    @property
    def provenance(self) -> Mapping[str, object]:
        """What else is worth recording: versions of the framework, the path of a file."""
        ...

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        """Trace the model for inputs of these shapes, one per input, and its example's dtypes.

        Raises:
            SymbolicTraceFailed: `shapes` holds open extents that the model cannot be traced with.
            ExportProblem: the model must not or cannot be exported.
        """
        ...

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the source model itself, in its own framework where it has one, for the proof.

        Returns:
            The results, in the order of the traced program's.
        """
        ...
