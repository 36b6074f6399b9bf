"""A bundle against expected outputs, sample by sample.

What lives here: the comparison, its figures, and the report. What does not: reading samples
(`hloserve.export.comparison.samples`), running the bundle
(`hloserve.models.bundle_runner`) and the reference
(`hloserve.export.comparison.references`). One thread.

Rules.
1. Floats are close when each element is: ``|got - want| <= atol + rtol * |want|``. NaN equals NaN
   and an infinity itself.
2. The norm-wise figure is ``|got - want| / max(|got|, |want|)``, in the Euclidean norm over the
   whole output. It forgives a few elements that are far off, and is told beside the other; with
   `Tolerances.norm_wise` it decides, by ``|got - want| <= max(atol, rtol * max(|got|, |want|))``.
3. Integers and bools are equal or not. Values are compared: expected outputs are often saved in a
   wider type than the model's, but floats are no integers, and integers no bools.
4. Another shape, another kind of type, a missing output and a run that fails are failures of the
   sample, never of the command: the other samples are compared.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hloserve.core.errors import HloserveError
from hloserve.core.tensors import Array, Tensors, TensorSpec
from hloserve.engine.programs.differences import is_float
from hloserve.export.comparison.samples import Sample, read_inputs, with_batch_axis

__all__ = [
    "CompareReport",
    "OutputResult",
    "SampleResult",
    "Tolerances",
    "compare_arrays",
    "compare_samples",
]

_NAMED_PLACES = 3


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What is close enough; see the rules of the module."""

    rtol: float = 1e-3
    atol: float = 1e-4
    norm_wise: bool = False


@dataclass(frozen=True, slots=True)
class OutputResult:
    """One output of one sample.

    Attributes:
        name: the output.
        why: what is wrong; empty when it passed.
        error: the largest difference of an element; of integers and bools, too.
        beyond: number of elements that are not close.
        size: number of elements.
        norm_error: the norm-wise figure.
    """

    name: str
    why: str = ""
    error: float = 0.0
    beyond: int = 0
    size: int = 0
    norm_error: float = 0.0

    @property
    def passed(self) -> bool:
        """True when nothing is wrong."""
        return not self.why

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "passed": self.passed,
            "why": self.why,
            "error": _plain(self.error),
            "elements_beyond": self.beyond,
            "elements": self.size,
            "norm_error": _plain(self.norm_error),
        }


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One sample.

    Attributes:
        name: the sample.
        why: why it could not be compared; empty when it was.
        outputs: what was compared.
        seconds: what the bundle took for it.
    """

    name: str
    why: str = ""
    outputs: tuple[OutputResult, ...] = ()
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """True when it was compared, and every output passed."""
        return not self.why and all(output.passed for output in self.outputs)


@dataclass(frozen=True, slots=True)
class CompareReport:
    """A whole comparison.

    Attributes:
        bundle: name of the model.
        reference: what it was compared with, for people.
        tolerances: what was close enough.
        samples: one result each.
    """

    bundle: str
    reference: str
    tolerances: Tolerances
    samples: tuple[SampleResult, ...]

    @property
    def passed(self) -> bool:
        """True when all samples passed, and there are some."""
        return bool(self.samples) and all(sample.passed for sample in self.samples)

    def headline(self) -> str:
        """The result in one line."""
        good = sum(sample.passed for sample in self.samples)
        limits = f"rtol {self.tolerances.rtol:g}, atol {self.tolerances.atol:g}"
        how = "norm-wise" if self.tolerances.norm_wise else "element-wise"
        return (
            f"{self.bundle} against {self.reference}: {good} of {len(self.samples)} samples passed"
            f" ({how}, {limits})"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A row per output, for a table."""
        rows: list[tuple[str, ...]] = []
        for sample in self.samples:
            if sample.why or not sample.outputs:
                result = f"FAILED: {sample.why}" if sample.why else "passed"
                rows.append((sample.name, "-", result, "-", "-", "-"))
            rows += [
                (
                    sample.name,
                    output.name,
                    "passed" if output.passed else f"FAILED: {output.why}",
                    f"{output.error:.2e}",
                    f"{output.norm_error:.2e}",
                    f"{output.beyond} of {output.size}",
                )
                for output in sample.outputs
            ]
        return rows

    def to_markdown(self) -> str:
        """A page."""
        lines = [f"# Comparison of {self.bundle}", "", self.headline() + ".", ""]
        lines += [_line(HEADS), _line(["---"] * len(HEADS)), *map(_line, self.rows())]
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`."""
        return {
            "bundle": self.bundle,
            "reference": self.reference,
            "passed": self.passed,
            "rtol": self.tolerances.rtol,
            "atol": self.tolerances.atol,
            "norm_wise": self.tolerances.norm_wise,
            "samples": [
                {
                    "name": sample.name,
                    "passed": sample.passed,
                    "why": sample.why,
                    "seconds": round(sample.seconds, 4),
                    "outputs": {output.name: output.to_json() for output in sample.outputs},
                }
                for sample in self.samples
            ],
        }


HEADS = ("SAMPLE", "OUTPUT", "RESULT", "MAX ERROR", "NORM ERROR", "BEYOND")


def compare_samples(
    samples: Sequence[Sample],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    run: Callable[[Tensors], Tensors],
    expect: Callable[[Sample, Tensors], Tensors] | None,
    tolerances: Tolerances,
) -> list[SampleResult]:
    """Run each sample and compare what comes out.

    Args:
        samples: what to run.
        inputs: client-facing inputs of the model.
        outputs: its client-facing outputs.
        run: from inputs to outputs, of the bundle.
        expect: from a sample and its inputs to the expected outputs, of which some may be missing;
            None only runs.
        tolerances: what is close enough.
    """
    return [_compare_sample(s, inputs, outputs, run, expect, tolerances) for s in samples]


def _compare_sample(
    sample: Sample,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    run: Callable[[Tensors], Tensors],
    expect: Callable[[Sample, Tensors], Tensors] | None,
    tolerances: Tolerances,
) -> SampleResult:
    try:
        given = read_inputs(sample, inputs)
        wanted = {} if expect is None else expect(sample, given)
        started = time.monotonic()
        got = run(given)
        seconds = time.monotonic() - started
    except HloserveError as error:
        return SampleResult(sample.name, str(error))
    specs = {spec.name: spec for spec in outputs}
    results = [
        compare_arrays(name, got[name], _like(want, got[name], specs[name]), tolerances)
        if name in got
        else OutputResult(name, "the run gave no such output")
        for name, want in wanted.items()
    ]
    return SampleResult(sample.name, "", tuple(results), seconds)


def _like(want: Array, got: Array, spec: TensorSpec) -> Array:
    """The expected output with the batch axis that a lone sample is often saved without."""
    return want if want.shape == got.shape else with_batch_axis(want, spec)


def compare_arrays(name: str, got: Array, want: Array, tolerances: Tolerances) -> OutputResult:
    """Compare one output.

    Args:
        name: for the result.
        got: of the bundle.
        want: what is expected.
        tolerances: what is close enough.
    """
    if got.shape != want.shape:
        return OutputResult(name, f"shape is {list(got.shape)}, expected {list(want.shape)}")
    if _kind(got) != _kind(want):
        return OutputResult(name, f"dtype is {got.dtype}, expected {want.dtype}")
    if not is_float(want.dtype):
        return _compare_exactly(name, got, want)
    ours, theirs = got.astype(np.float64), want.astype(np.float64)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(same, 0.0, np.abs(ours - theirs))
        difference = np.where(np.isnan(difference), np.inf, difference)
        is_close = same | (difference <= tolerances.atol + tolerances.rtol * np.abs(theirs))
        # An infinite limit would take anything for close to an infinity.
        is_close &= same | (np.isfinite(ours) & np.isfinite(theirs))
    delta, scale = _norms(ours, theirs, difference)
    passes = bool(is_close.all())
    if tolerances.norm_wise:
        passes = delta <= max(tolerances.atol, tolerances.rtol * scale)
    beyond = want.size - int(np.count_nonzero(is_close))
    return OutputResult(
        name,
        "" if passes else _why(got, want, is_close, tolerances, delta, scale),
        float(difference.max(initial=0.0)),
        beyond,
        want.size,
        delta / scale if scale else delta,
    )


def _kind(array: Array) -> str:
    if is_float(array.dtype):
        return "float"
    return "bool" if array.dtype == np.bool_ else "integer"


def _norms(ours: Array, theirs: Array, difference: Array) -> tuple[float, float]:
    """Norm of the difference, and the larger norm of the two sides, where both are finite."""
    finite = np.isfinite(ours) & np.isfinite(theirs)
    sizes = [float(np.linalg.norm(side[finite])) for side in (ours, theirs)]
    return float(np.linalg.norm(difference.reshape(-1))), max(sizes)


def _compare_exactly(name: str, got: Array, want: Array) -> OutputResult:
    is_equal = got == want
    beyond = want.size - int(np.count_nonzero(is_equal))
    difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
    error, delta = float(difference.max(initial=0.0)), float(np.linalg.norm(difference.reshape(-1)))
    scale = max(float(np.linalg.norm(a.astype(np.float64).reshape(-1))) for a in (got, want))
    why = "" if not beyond else f"{beyond} of {want.size} differ: {_places(got, want, is_equal)}"
    return OutputResult(name, why, error, beyond, want.size, delta / scale if scale else delta)


def _why(
    got: Array, want: Array, is_close: Array, tolerances: Tolerances, delta: float, scale: float
) -> str:
    if tolerances.norm_wise:
        limit = max(tolerances.atol, tolerances.rtol * scale)
        return f"the norm of the difference is {delta:.3g}, at most {limit:.3g} passes"
    beyond = want.size - int(np.count_nonzero(is_close))
    return f"{beyond} of {want.size} are not close: {_places(got, want, is_close)}"


def _places(got: Array, want: Array, is_good: Array) -> str:
    wrong = np.argwhere(~np.asarray(is_good))[:_NAMED_PLACES]
    texts = [
        f"[{', '.join(map(str, place))}] is {got[tuple(place)]}, expected {want[tuple(place)]}"
        for place in wrong
    ]
    return "; ".join(texts)


def _plain(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)  # JSON has no infinity


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"
