"""An exporter that only writes a bundle, for tests of what is around exporters."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hloserve import IOSpec, write_bundle
from hloserve.core.errors import ExportProblem
from hloserve.export.options import ExportProgress
from hloserve.export.report import ExportReport, ProgramReport

HEADER = "from functools import partial\nfrom support.export_targets import fake_export\n"


def write_target(path: Path, source: str) -> Path:
    """Write a Python file that can use `partial` and `fake_export`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + textwrap.dedent(source))
    return path


def fake_export(
    largest: int = 8,
    *,
    dir: str | Path,  # as exporters call it
    batch_sizes: Sequence[int] | None = (1, 2),
    progress: ExportProgress | None = None,
    overwrite: bool = False,
    name: str | None = None,
    **options: Any,
) -> ExportReport:
    """Write a bundle whose programs are no programs; sizes above `largest` fail."""
    directory = Path(dir)
    if options.get("description") == "interrupt":
        raise KeyboardInterrupt
    too_large = [size for size in batch_sizes or () if size > largest]
    if too_large:
        raise ExportProblem(directory.name, f"batch size {too_large[0]} is too large")
    if progress is not None:
        progress.step("tracing", 0, 2)
        progress.step("writing", 1, 2)
    axis = 0 if batch_sizes else None
    spec = IOSpec("x", "f32", (1, 2), batch_axis=axis)
    write_bundle(
        directory,
        name or directory.name,
        [spec],
        [IOSpec("y", "f32", (1, 2), batch_axis=axis)],
        dict.fromkeys(batch_sizes or (0,), "module {}"),
        [("w", np.ones(2, np.float32))],
        overwrite=overwrite,
        description=options.get("description", ""),
    )
    programs = tuple(ProgramReport(f"model.b{size}.mlir", size, 9) for size in batch_sizes or ())
    return ExportReport(directory.name, directory, "fake", "not at all", programs, 1, 8, 99)
