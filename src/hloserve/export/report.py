"""What an export tells: which programs were made, how, and what proves them.

What lives here: the values and their three forms, text for a terminal, Markdown for a page, plain
values for JSON and for the manifest's provenance. What does not: filling them in
(`hloserve.export.pipeline`, `hloserve.export.proof.prove`). Everything is immutable; any thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from hloserve.core.units import format_bytes

__all__ = ["ExportReport", "OutputProof", "ProgramReport", "output_proofs"]

_MOST_NAMED = 8
_MOST_OUTPUTS = 16  # a manifest stays a page


@dataclass(frozen=True, slots=True)
class OutputProof:
    """One output of one program, compared with the source model's.

    Attributes:
        name: the output.
        dtype: its element type, as manifests name it.
        error: floats: the largest difference of an element, ``|program - source|``. Integers and
            bools: the share of elements that differ.
        signal: floats: how far an element of the source's own output moves from one input to
            another. Integers and bools: the share of elements that change.
        tolerance: largest error that passes, as a share of the signal.
        is_proved: the error is within the tolerance of a signal. Otherwise the output (nearly)
            ignores the inputs, and agrees to the last bits: no more can be said of it.
        note: what else is worth knowing; empty for nothing.
    """

    name: str
    dtype: str
    error: float
    signal: float
    tolerance: float
    is_proved: bool
    note: str = ""

    @property
    def relative(self) -> float:
        """Error as a share of the signal; 0 without an error, infinite without a signal."""
        if self.error == 0:
            return 0.0
        return self.error / self.signal if self.signal else float("inf")

    def to_json(self) -> dict[str, Any]:
        """Plain values; figures of three digits."""
        figures: dict[str, Any] = {
            "error": _digits(self.error),
            "signal": _digits(self.signal),
            "tolerance": self.tolerance,
            "is_proved": self.is_proved,
        }
        return figures | ({"note": self.note} if self.note else {})


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """One program file.

    Attributes:
        file: its name in the bundle.
        size: batch size that it was proved at; 0 without a batch axis.
        nbytes: size of the file.
        variant: sizes of the variable axes, by letter or name; empty without variants.
        target_version: StableHLO version that it is written for.
        inputs_run: on how many random inputs it ran; 0 when only its types were checked.
        outputs: one per output, in order; empty when it did not run.
        seconds: what its proof took, compiling included.
    """

    file: str
    size: int
    nbytes: int
    variant: Mapping[str, int] = field(default_factory=dict)
    target_version: str = ""
    inputs_run: int = 0
    outputs: tuple[OutputProof, ...] = ()
    seconds: float = 0.0

    @property
    def worst(self) -> OutputProof | None:
        """The proved output with the largest error as a share of its signal."""
        proved = [output for output in self.outputs if output.is_proved]
        return max(proved, key=lambda output: output.relative, default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "file": self.file,
            "batch_size": self.size or None,
            "variant": dict(self.variant),
            "bytes": self.nbytes,
            "target_version": self.target_version,
            "inputs_run": self.inputs_run,
            "outputs": {output.name: output.to_json() for output in self.outputs},
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What one export did. `str()` is the text for a terminal.

    Attributes:
        name: of the model.
        directory: the bundle.
        framework: where the model comes from: ``jax``, ``pytorch``...
        tracing: how it was traced, in a sentence: once, or per size and why.
        programs: one per file, and per size of a file that serves several.
        weights: number of weight tensors.
        weights_bytes: their bytes.
        bundle_bytes: bytes of all files of the bundle.
        seconds: duration per phase, in order: ``trace``, ``proof``, ``write``...
        unused_inputs: inputs that no program looks at.
        unused_weights: weights that no program looks at; they are in the bundle all the same.
        notes: what was done that an author may want to know, one sentence each.
        warnings: what an author should look at, one sentence each.
    """

    name: str
    directory: Path
    framework: str
    tracing: str
    programs: tuple[ProgramReport, ...]
    weights: int
    weights_bytes: int
    bundle_bytes: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    unused_inputs: tuple[str, ...] = ()
    unused_weights: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """For a terminal."""
        lines = [f"{self.name}: {self.directory}", *_facts(self), "programs:"]
        cells = [_HEADS, *(row for program in self.programs for row in _rows(program))]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADS))]
        for row in cells:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(f"  {'  '.join(padded)}".rstrip())
        for title, sentences in (("notes", self.notes), ("warnings", self.warnings)):
            lines += [f"{title}:", *(f"  - {s}" for s in sentences)] if sentences else []
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """A section for a page of several."""
        lines = [f"## {_cell(self.name)}", "", *(f"- {fact}" for fact in _facts(self)), ""]
        lines += [_line(_HEADS), _line(["---"] * len(_HEADS))]
        lines += [_line(row) for program in self.programs for row in _rows(program)]
        for title, sentences in (("Notes", self.notes), ("Warnings", self.warnings)):
            lines += ["", f"{title}:", "", *(f"- {s}" for s in sentences)] if sentences else []
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`."""
        return {
            "name": self.name,
            "directory": str(self.directory),
            "framework": self.framework,
            "tracing": self.tracing,
            "programs": [program.to_json() for program in self.programs],
            "weights": self.weights,
            "weights_bytes": self.weights_bytes,
            "bundle_bytes": self.bundle_bytes,
            "seconds": {phase: round(spent, 3) for phase, spent in self.seconds.items()},
            "unused_inputs": list(self.unused_inputs),
            "unused_weights": list(self.unused_weights),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def output_proofs(programs: Sequence[ProgramReport]) -> dict[str, Any]:
    """The proof as provenance keeps it: the worst figures of each output over all programs.

    Returns:
        A mapping for the key ``proof`` of the provenance; of many outputs only the worst.
    """
    worst: dict[str, OutputProof] = {}
    for program in programs:
        for output in program.outputs:
            known = worst.get(output.name)
            if known is None or output.relative > known.relative:
                worst[output.name] = output
    kept = sorted(worst, key=lambda name: -worst[name].relative)[:_MOST_OUTPUTS]
    proof: dict[str, Any] = {
        "platform": "cpu",
        "programs_run": sum(1 for program in programs if program.inputs_run),
        "programs_checked": len(programs),
        "outputs": {name: _summary(worst[name]) for name in worst if name in kept},
    }
    left_out = len(worst) - len(kept)
    return proof | ({"outputs_left_out": left_out} if left_out else {})


_HEADS = ("FILE", "BATCH", "SIZE", "OUTPUT", "ERROR", "SIGNAL", "ERROR/SIGNAL", "TOLERANCE", "TIME")


def _facts(report: ExportReport) -> list[str]:
    weights = "1 weight" if report.weights == 1 else f"{report.weights} weights"
    facts = [
        f"framework: {report.framework}, traced {report.tracing}",
        f"size: {format_bytes(report.bundle_bytes)}, of these {weights} of"
        f" {format_bytes(report.weights_bytes)}",
    ]
    if report.seconds:
        total = sum(report.seconds.values())
        phases = ", ".join(f"{phase} {spent:.1f} s" for phase, spent in report.seconds.items())
        facts.append(f"time: {total:.1f} s ({phases})")
    if report.unused_inputs:
        facts.append(f"inputs that nothing depends on: {', '.join(report.unused_inputs)}")
    if report.unused_weights:
        named = report.unused_weights[:_MOST_NAMED]
        left_out = len(report.unused_weights) - len(named)
        more = f" and {left_out} more" if left_out else ""
        facts.append(f"weights that nothing depends on: {', '.join(named)}{more}")
    return facts


def _rows(program: ProgramReport) -> list[tuple[str, ...]]:
    variant = " ".join(f"{axis}={size}" for axis, size in program.variant.items())
    batch = " ".join(filter(None, (str(program.size or "-"), variant)))
    first = (program.file, batch, format_bytes(program.nbytes))
    time = f"{program.seconds:.1f} s"
    if not program.outputs:
        return [(*first, "types checked, not run", "", "", "", "", time)]
    rows: list[tuple[str, ...]] = []
    for output in program.outputs:
        ratio = f"{output.relative:.1e}" if output.is_proved else "constant"
        figures = (f"{output.error:.1e}", f"{output.signal:.1e}", ratio, f"{output.tolerance:.0e}")
        note = f" ({output.note})" if output.note else ""
        rows.append((*first, output.name + note, *figures, time))
        first, time = ("", "", ""), ""
    return rows


def _summary(output: OutputProof) -> str:
    """One line, since a manifest is for people too."""
    if not output.is_proved:
        return f"error {output.error:.1e}, constant"
    return (
        f"error {output.error:.1e}, signal {output.signal:.1e}, ratio {output.relative:.1e},"
        f" tolerance {output.tolerance:.0e}"
    )


def _digits(value: float) -> float:
    return float(f"{value:.2e}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"
