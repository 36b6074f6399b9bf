"""`hloserve check`: everything that is wrong with bundles, before a server meets them.

The work is `hloserve.models.bundle_check`. Main thread.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloserve.cli.bundle_arguments import all_bundles
from hloserve.cli.printing import print_json, print_table, safe

if TYPE_CHECKING:
    from hloserve.bundle.findings import Finding
    from hloserve.engine.backend import Backend
    from hloserve.models.bundle_check import BundleReport
    from hloserve.models.bundle_run import ProgramRun

__all__ = ["check", "describe_reports"]


@click.command()
@click.argument(
    "bundles",
    nargs=-1,
    required=True,
    metavar="BUNDLE...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--run", "runs_programs", is_flag=True, help="Run each program once, on the CPU.")
@click.option("--strict", is_flag=True, help="Exit with status 1 on warnings too.")
@click.option("--no-hooks", is_flag=True, help="Do not execute model.py.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    bundles: tuple[Path, ...], runs_programs: bool, strict: bool, no_hooks: bool, as_json: bool
) -> int:
    """Check that each BUNDLE can be served, and say everything that is wrong with it.

    A BUNDLE is a directory with manifest.yaml, or a model repository: then all of its bundles.
    Looked at are the manifest, file names, the header of the weights, each program against both and
    for what ties it to a platform, and whether model.py runs and registers what is needed. It is
    the author's code: --no-hooks leaves it out.

    --run also compiles each program and runs it once on random inputs, on the CPU, and tells of
    outputs that are not finite numbers.

    The exit status is 1 when there are errors, or with --strict warnings. Without the server extra
    programs are not read; the report says so.

    \b
    Examples:
      hloserve check models/resnet
      hloserve check models/ --run --strict
      hloserve check models/ --json
    """
    from hloserve.engine.programs.program_probe import ProgramProbe
    from hloserve.models.bundle_check import check_bundle

    reports = []
    open_backend = cache(_open_cpu) if runs_programs else None
    with ProgramProbe() as probe:
        for bundle in all_bundles(bundles):
            report = check_bundle(
                bundle,
                runs_hooks=not no_hooks,
                open_backend=open_backend,
                probe=probe.try_to_read,
            )
            reports.append(report)
            if not as_json:
                _print(report)
    if as_json:
        print_json(describe_reports(reports))
    elif len(reports) > 1:
        _print_total(reports)
    has_failed = any(report.errors or (strict and report.warnings) for report in reports)
    return 1 if has_failed else 0


def _open_cpu() -> "Backend":
    from hloserve.engine.xla_backend import XlaBackend

    return XlaBackend("cpu")


def describe_reports(reports: "Sequence[BundleReport]") -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "ok": not any(report.errors for report in reports),
        "errors": sum(len(report.errors) for report in reports),
        "warnings": sum(len(report.warnings) for report in reports),
        "bundles": [_describe(report) for report in reports],
    }


def _describe(report: "BundleReport") -> dict[str, Any]:
    return {
        "bundle": str(report.path),
        "ok": not report.errors,
        "findings": [
            {"severity": finding.severity, "place": finding.place, "text": finding.text}
            for finding in report.findings
        ],
        "checked": report.checked,
        "not_checked": report.not_checked,
        "weights_bytes": report.weights_bytes,
        "programs": [
            {
                "file": facts.file,
                "variant": facts.variant,
                "batch_sizes": list(facts.batch_sizes),
                "bytes": facts.nbytes,
                "stablehlo_version": facts.stablehlo_version or None,
                "jaxlib_version": facts.jaxlib_version or None,
                "custom_calls": list(facts.custom_calls),
            }
            for facts in report.programs
        ],
        "runs": [_describe_run(run) for run in report.runs],
    }


def _describe_run(run: "ProgramRun") -> dict[str, Any]:
    return {
        "program": run.program,
        "compile_seconds": round(run.compile_s, 6),
        "run_seconds": round(run.run_s, 6),
        "input_bytes": run.input_bytes,
        "output_bytes": run.output_bytes,
        "outputs": [
            {
                "name": output.name,
                "elements": output.elements,
                "nan": output.nan,
                "positive_infinite": output.positive_infinite,
                "negative_infinite": output.negative_infinite,
            }
            for output in run.outputs
        ],
    }


def _print(report: "BundleReport") -> None:
    click.echo(f"{safe(report.path)}: {_verdict(report)}")
    if report.path.is_dir() and not _has_manifest(report.path):
        click.echo(
            "  error: manifest.yaml is missing, here and in all directories inside: this is neither"
            " a bundle nor a model repository that holds one"
        )
        return
    for finding in sorted(report.findings, key=lambda finding: finding.severity):
        click.echo(f"  {finding.severity}: {safe(_sentence(finding))}")
    for part, reason in report.not_checked.items():
        click.echo(f"  not checked: {part}: {safe(reason)}")
    rows = [
        (
            run.program,
            f"{run.compile_s:.3f} s",
            f"{run.run_s:.6f} s",
            f"{run.input_bytes} B",
            f"{run.output_bytes} B",
        )
        for run in report.runs
    ]
    print_table(("PROGRAM", "COMPILED IN", "RAN IN", "INPUTS", "OUTPUTS"), rows, indent="  ")


def _has_manifest(path: Path) -> bool:
    from hloserve.bundle.layout import MANIFEST_FILE

    return (path / MANIFEST_FILE).exists()


def _verdict(report: "BundleReport") -> str:
    checked = ", ".join(_part(report, part) for part in report.checked)
    warnings = _count(len(report.warnings), "warning")
    if report.errors:
        return _count(len(report.errors), "error") + (f", {warnings}" if report.warnings else "")
    return f"ok{f', {warnings}' if report.warnings else ''} ({checked})"


def _part(report: "BundleReport", part: str) -> str:
    if part == "programs":
        oldest = {facts.jaxlib_version for facts in report.programs} - {""}
        needs = f" for jaxlib from {max(oldest, key=_version_key)} on" if oldest else ""
        return _count(len(report.programs), "program") + needs
    return part


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _sentence(finding: "Finding") -> str:
    if finding.place == "." or finding.text.startswith(finding.place):
        return finding.text
    return f"{finding.place}: {finding.text}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_total(reports: "Sequence[BundleReport]") -> None:
    errors = sum(len(report.errors) for report in reports)
    warnings = sum(len(report.warnings) for report in reports)
    sound = sum(not report.errors for report in reports)
    click.echo(
        f"{sound} of {_count(len(reports), 'bundle')} ok, {_count(errors, 'error')},"
        f" {_count(warnings, 'warning')}"
    )
