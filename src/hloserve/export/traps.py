"""What a traced model must not hold, and how its author is told.

What lives here: looking for baked arrays, random state, host callbacks and several devices in what
JAX traced. What does not: the same for the artifact, whoever traced it
(`hloserve.export.artifact`). Pure; one thread.
"""

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["check_exported", "check_traced"]


def check_traced(
    jaxpr: Any,
    function: Callable[..., Any],
    inputs: Sequence[str],
    weights: Sequence[str],
    *,
    model: str,
) -> None:
    """Raise ExportProblem for what must not be in a bundle's program."""


def check_exported(exported: Any, *, model: str) -> None:
    """Raise ExportProblem when the export is not for one device."""
