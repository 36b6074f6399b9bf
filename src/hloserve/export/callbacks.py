"""The author's own functions among the options, called so that their faults carry their names.

What lives here: wrapping `progress` and trying `sample_inputs`. What does not: calling what is
traced (the sources do). One thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from typing_extensions import override

from hloserve.core.dtypes import by_numpy
from hloserve.core.errors import ExportProblem, HloserveError
from hloserve.core.tensors import Array
from hloserve.export.options import ExportProgress

__all__ = [
    "CallbackFailed",
    "NamedProgress",
    "SampleInputs",
    "name_fault",
    "sample",
    "select_outputs",
    "try_samples",
]

SampleInputs: TypeAlias = Callable[[Any, int], Sequence[Array]]

_PLAIN_FAULTS = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class CallbackFailed(Exception):
    """A callback that runs while a model is traced failed; the text names it."""


def select_outputs(select: Callable[[Any], Any] | None, result: Any) -> Any:
    """Call `output_select`; without one, everything is selected.

    Raises:
        CallbackFailed: it raised one of Python's own errors. What a framework raises of values that
            are not known yet is let through, because the exporter knows what to say of it.
    """
    if select is None:
        return result
    try:
        return select(result)
    except Exception as error:  # the author's code
        if type(error) in _PLAIN_FAULTS:
            raise CallbackFailed(name_fault("output_select", error)) from error
        raise


class NamedProgress(ExportProgress):
    """An author's progress; what it raises is a problem of the export, and names it."""

    def __init__(self, progress: ExportProgress, model: str) -> None:
        self._progress, self._model = progress, model

    @override
    def step(self, what: str, done: int, total: int) -> None:
        try:
            self._progress.step(what, done, total)
        except HloserveError:
            raise
        except Exception as error:  # the author's code
            raise ExportProblem(self._model, name_fault("progress.step", error)) from error


def name_fault(callback: str, error: BaseException) -> str:
    """Say what a callback raised."""
    return f"{callback} raised {type(error).__name__}: {error}"


def sample(function: SampleInputs, generator: np.random.Generator, rows: int) -> list[Array]:
    """Call `sample_inputs`.

    Raises:
        ValueError: it failed, or gave no arrays; the text says so.
    """
    try:
        arrays = [np.asarray(array, order="C") for array in function(generator, rows)]
        for array in arrays:
            by_numpy(array.dtype)
    except KeyError as error:
        raise ValueError("sample_inputs: a value has a dtype that no bundle can hold") from error
    except Exception as error:  # the author's code
        raise ValueError(name_fault(f"sample_inputs(generator, {rows})", error)) from error
    return arrays


def try_samples(
    function: Any, rows: int, types: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None
) -> list[str]:
    """What is wrong with `sample_inputs`, before anything is traced.

    Args:
        function: the option; None is right.
        rows: to ask for.
        types: of the inputs; None where it may choose among several.
    """
    if function is None:
        return []
    if not callable(function):
        return [f"sample_inputs: must be a function, got {type(function).__name__}"]
    try:
        arrays = sample(function, np.random.default_rng(0), rows)
    except ValueError as error:
        return [str(error)]
    got = [(array.dtype, array.shape) for array in arrays]
    if types is None or got == list(types):
        return []
    return [
        f"sample_inputs: gave {_described(got)} for {rows} rows, the model takes"
        f" {_described(types)}"
    ]


def _described(types: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype.name}{list(shape)}" for dtype, shape in types) or "nothing"
