"""`hloserve compare`: a bundle against its source model or expected outputs, on samples.

The work is `hloserve.export.comparison.comparing`. Main thread.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloserve.cli.printing import print_json, print_table, safe

if TYPE_CHECKING:
    from hloserve.bundle.manifest import Manifest
    from hloserve.core.tensors import Tensors
    from hloserve.export.comparison.comparing import CompareReport, Tolerances
    from hloserve.export.comparison.references import Reference
    from hloserve.export.comparison.samples import Sample

__all__ = ["compare"]

_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_LIMIT = click.FloatRange(min=0)
_ROWS_SHOWN = 40


@click.command()
@click.argument("bundle", type=_DIRECTORY)
@click.option(
    "--samples",
    "directory",
    type=_DIRECTORY,
    required=True,
    metavar="DIR",
    help="Where the samples are.",
)
@click.option(
    "--reference",
    metavar="WHAT",
    help="Run a TorchScript file, or MODULE:FUNCTION, for the expected outputs.",
)
@click.option(
    "--rtol", type=_LIMIT, default=1e-3, show_default=True, metavar="X", help="Relative tolerance."
)
@click.option(
    "--atol", type=_LIMIT, default=1e-4, show_default=True, metavar="X", help="Absolute tolerance."
)
@click.option("--norm-wise", is_flag=True, help="Judge outputs as a whole, not by element.")
@click.option(
    "--max", "most", type=click.IntRange(min=1), metavar="N", help="Take the first N samples only."
)
@click.option("--bundle-only", is_flag=True, help="Run the bundle; compare nothing.")
@click.option("--reference-only", is_flag=True, help="Run the reference; compare nothing.")
@click.option(
    "--report", "report_path", type=_FILE, metavar="PATH", help="Write the report as Markdown."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def compare(  # noqa: PLR0913  # one argument per option
    bundle: Path,
    directory: Path,
    reference: str | None,
    rtol: float,
    atol: float,
    norm_wise: bool,
    most: int | None,
    bundle_only: bool,
    reference_only: bool,
    report_path: Path | None,
    as_json: bool,
) -> int:
    """Run BUNDLE on samples, on the CPU, and compare its outputs with what is expected.

    The bundle runs as a server would run it, with its hooks, padding and splitting, but without a
    server. Samples are arrays that numpy.save wrote, in the shapes that clients send; a batch axis
    that is missing is added.

    \b
    Files of samples:
      DIR/NAME/INPUT.npy              one directory per sample, one file per input
      DIR/NAME/expected/OUTPUT.npy    its expected outputs (or DIR/NAME/OUTPUT.npy)
      DIR/NAME.npy                    or a file per sample, for a model with one input,
      DIR/expected/NAME/OUTPUT.npy    and its expected outputs (or, if there is one output,
                                      DIR/expected/NAME.npy)

    With --reference the expected outputs come of another program: a TorchScript file, which runs on
    the CPU, or a Python function (package.module:function, path/to/file.py:function) that takes the
    inputs as NumPy arrays, in the order of the bundle, and returns an array, a tuple in the order
    of the outputs, or a dict of some of them. It is code, and runs with your rights.

    Floats are close when each element is: |got - want| <= atol + rtol * |want|, and NaN is where it
    is expected. Integers and bools are equal. With --norm-wise a float output passes as a whole:
    |got - want| <= max(atol, rtol * max(|got|, |want|)) in the Euclidean norm, which forgives a few
    elements. Another shape or kind of type, a missing file and a run that fails are failures.

    The exit status is 0 only when every sample passed.

    \b
    Examples:
      hloserve compare models/resnet --samples samples/
      hloserve compare models/resnet --samples samples/ --reference resnet.pt --report compare.md
      hloserve compare models/resnet --samples samples/ --reference train.py:predict --max 10
    """
    from hloserve.bundle.manifest import load_manifest
    from hloserve.export.comparison.comparing import Tolerances
    from hloserve.export.comparison.samples import find_samples

    if bundle_only and reference_only:
        raise click.UsageError("--bundle-only and --reference-only exclude each other")
    if reference_only and reference is None:
        raise click.UsageError("--reference-only needs --reference")
    if bundle_only and reference is not None:
        raise click.UsageError("--bundle-only runs no --reference")
    manifest = load_manifest(bundle)
    samples = find_samples(directory, manifest.inputs, manifest.outputs)[:most]
    known = None if reference is None else _load_reference(reference, manifest)
    if report_path is not None:  # one that cannot be written is told before the work, not after
        report_path.open("a").close()
    tolerances = Tolerances(rtol, atol, norm_wise)
    if reference_only:
        assert known is not None, "checked above"
        report = _run(manifest, samples, known, None, "nothing (the reference alone)", tolerances)
    else:
        report = _compare_bundle(
            bundle, manifest, samples, known, reference, bundle_only, tolerances
        )
    _tell(report, report_path, as_json)
    return 0 if report.passed else 1


def _load_reference(text: str, manifest: "Manifest") -> "Reference":
    from hloserve.export.comparison.references import load_reference
    from hloserve.export.lists.target import TargetFault

    try:
        return load_reference(text, manifest.outputs)
    except TargetFault as fault:
        raise click.BadParameter(
            f"{text!r} {fault}, or a TorchScript file that ends in .pt", param_hint="--reference"
        ) from fault


def _compare_bundle(
    bundle: Path,
    manifest: "Manifest",
    samples: "list[Sample]",
    known: "Reference | None",
    reference: str | None,
    bundle_only: bool,
    tolerances: "Tolerances",
) -> "CompareReport":
    from hloserve.export.comparison.samples import read_expected
    from hloserve.models.bundle_runner import BundleRunner

    expect: Callable[[Sample, Tensors], Tensors] | None = None
    described = "nothing (the bundle alone)"
    if known is not None:
        described, expect = str(reference), lambda _, inputs: known(inputs)
    elif not bundle_only:
        described = "expected outputs"

        def expect(sample: "Sample", inputs: "Tensors") -> "Tensors":
            return read_expected(sample, manifest.outputs)

    with BundleRunner(bundle) as runner:
        return _run(manifest, samples, runner.run, expect, described, tolerances)


def _run(
    manifest: "Manifest",
    samples: "list[Sample]",
    run: "Callable[[Tensors], Tensors]",
    expect: "Callable[[Sample, Tensors], Tensors] | None",
    described: str,
    tolerances: "Tolerances",
) -> "CompareReport":
    from hloserve.export.comparison.comparing import CompareReport, compare_samples

    results = compare_samples(samples, manifest.inputs, manifest.outputs, run, expect, tolerances)
    return CompareReport(manifest.name, described, tolerances, tuple(results))


def _tell(report: "CompareReport", path: Path | None, as_json: bool) -> None:
    from hloserve.export.comparison.comparing import HEADS

    if path is not None:
        path.write_text(report.to_markdown(), encoding="utf-8")
    if as_json:
        print_json(report.to_json())
        return
    rows: list[Any] = report.rows()
    if len(rows) > _ROWS_SHOWN:  # then what failed comes first, and is what one looks for
        rows = sorted(rows, key=lambda row: row[2] == "passed")[:_ROWS_SHOWN]
    print_table(HEADS, rows)
    click.echo(safe(report.headline()))
