"""`hloserve export`: bundles from a Python target, or from a YAML list of models.

The work is `hloserve.export`. Main thread.
"""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hloserve.cli.printing import print_json, print_table, safe

if TYPE_CHECKING:
    from hloserve.export.lists.run import ListRun, Task
    from hloserve.export.lists.target import Target
    from hloserve.export.options import BatchSizes
    from hloserve.export.report import ExportReport

__all__ = ["export"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOR_TARGET = ("out", "name", "overwrite", "batch_sizes", "dynamic_sizes", "tolerance",
    "prove_every_size", "target_version", "matmul_precision", "description", "hook_file",
    "assets")  # fmt: skip
_FOR_LIST = ("only", "force", "dry_run")


def _options(command: Decorated) -> Decorated:
    options = (
        click.option("--out", type=click.Path(path_type=Path), metavar="REPO",
            help="Model repository to write into: the bundle is REPO/NAME."),
        click.option("--name", metavar="NAME", help="Name of the model. [default: the function's]"),
        click.option("--batch-sizes", metavar="SIZES", help="1,8,32, or dynamic, or none."),
        click.option("--dynamic-sizes", metavar="SIZES",
            help="With dynamic: what a server compiles by itself."),
        click.option("--tolerance", type=click.FloatRange(0, 1, min_open=True), metavar="SHARE",
            help="Largest error of an output, as a share of its signal."),
        click.option("--prove-every-size", is_flag=True, default=None,
            help="Run the programs of all batch sizes, not only the smallest."),
        click.option("--target-version", metavar="V", help="StableHLO version of the programs."),
        click.option("--matmul-precision", type=click.Choice(("default", "high", "highest")),
            help="Of float32 products."),
        click.option("--description", metavar="TEXT", help="Free text for people."),
        click.option("--hook-file", type=_FILE, metavar="FILE", help="Include it as model.py."),
        click.option("--asset", "assets", type=_FILE, multiple=True, metavar="FILE",
            help="Include it under its own name; may be repeated."),
        click.option("--overwrite", is_flag=True, default=None,
            help="Replace an existing bundle in one step."),
        click.option("--only", metavar="NAMES", help="List: take these models, a,b; no report."),
        click.option("--force", is_flag=True, default=None,
            help="List: export again what is there already. Needs --only."),
        click.option("--dry-run", is_flag=True, default=None,
            help="List: say what would be done; runs no model's code."),
        click.option("--report", type=_FILE, metavar="FILE",
            help="Write the report as Markdown; for a list, in place of its report_path."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("what", metavar="TARGET|LIST")
@_options
def export(what: str, report: Path | None, as_json: bool, **flags: Any) -> int:
    """Make bundles from trained models, and prove them.

    TARGET is package.module:function or path/to/file.py:function. The function is called without
    arguments and returns an export that waits for its options, such as
    functools.partial(export_pytorch, model, (image,), batch_sizes=[1, 8]); flags override them.

    LIST is a YAML file that names many models, the handlers or targets that export them, and where
    the bundles and a report go; docs/export.md has its keys. What is there already is skipped. One
    model that fails does not stop the others.

    A target, and a handler that a list names, is Python code: it runs with your rights. Export only
    what you would run.

    The exit status is 1 when a model failed, and 2 when the list or a flag is wrong.

    \b
    Examples:
      hloserve export mymodels:resnet --out models/ --batch-sizes 1,8,32
      hloserve export models.yaml
      hloserve export models.yaml --only resnet --force
    """
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    if what.endswith((".yaml", ".yml")):
        _refuse_flags(given, _FOR_TARGET, "a target; a list has them as options of its models")
        return _export_list(Path(what), report, as_json=as_json, **given)
    _refuse_flags(given, _FOR_LIST, "a list of models")
    from hloserve.export.lists.target import TargetFault, parse_target

    try:
        target = parse_target(what)
    except TargetFault as fault:
        raise click.BadParameter(f"{what!r} {fault}, or a list that ends in .yaml") from fault
    return _export_target(target, report, as_json, given)


def _refuse_flags(given: Mapping[str, object], names: tuple[str, ...], what: str) -> None:
    wrong = [name for name in given if name in names]
    if wrong:
        flags = ", ".join(f"--{name.rstrip('s') if name == 'assets' else name}" for name in wrong)
        raise click.UsageError(f"{flags.replace('_', '-')} is for {what}")


def _export_target(
    target: "Target", report_path: Path | None, as_json: bool, given: dict[str, Any]
) -> int:
    from hloserve.cli.export_progress import build_progress
    from hloserve.export.lists.run import Outcome, run_deferred
    from hloserve.export.lists.target import importing_from, load_target

    if report_path is not None and not report_path.parent.is_dir():
        raise click.UsageError(f"--report: there is no directory {str(report_path.parent)!r}")
    options = _exporter_options(given, target)
    name = options.get("name", target.name)
    progress = build_progress()
    base, start_s = Path.cwd(), time.monotonic()
    directory = (base / target.module).parent if target.is_file else base
    with importing_from(directory, base), _user_output(as_json):
        progress.model_started(name, 1, 1)
        try:
            deferred = load_target(target, base, name)
            _check_directory({**getattr(deferred, "keywords", {}), **options}, name)
            report = run_deferred(deferred, {**options, "progress": progress}, name)
        finally:
            progress.ended()
        progress.model_ended(Outcome(report.name, "success", seconds=time.monotonic() - start_s))
    _print_report(report, as_json)
    if report_path is not None:
        report_path.write_text(report.to_markdown(), encoding="utf-8")
    return 0


def _check_directory(options: Mapping[str, Any], model: str) -> None:
    """Tell before the work what the flags can change."""
    from hloserve.core.errors import ExportProblem

    if "dir" not in options:
        raise click.UsageError("say where to: --out REPO")
    if os.path.lexists(options["dir"]) and not options.get("overwrite"):
        shown = str(options["dir"])
        raise ExportProblem(model, f"{shown!r} exists already; --overwrite replaces it in one step")


def _exporter_options(given: dict[str, Any], target: "Target") -> dict[str, Any]:
    """The flags as options of an exporter."""
    options = dict(given)
    out = options.pop("out", None)
    if out is not None:
        options.setdefault("name", target.name)
        options["dir"] = out / options["name"]
    elif "name" in options:
        raise click.UsageError("--name needs --out")
    for flag in ("batch_sizes", "dynamic_sizes"):
        if flag in options:
            options[flag] = _batch_sizes(flag, options[flag])
    return options


def _batch_sizes(flag: str, text: str) -> "BatchSizes":
    from hloserve.export.lists.plain_options import OptionRefused, parse_batch_sizes

    try:
        return parse_batch_sizes(text)
    except OptionRefused as refusal:
        raise click.UsageError(f"--{flag.replace('_', '-')} {refusal}") from refusal


def _print_report(report: "ExportReport", as_json: bool) -> None:
    if as_json:
        print_json(report.to_json())
    else:
        for line in report.to_text().splitlines():
            click.echo(safe(line))


@contextlib.contextmanager
def _user_output(as_json: bool) -> Iterator[None]:
    """Send what the user's code prints to standard error, when standard output is JSON."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


def _export_list(
    file: Path,
    report_path: Path | None,
    *,
    as_json: bool,
    only: str = "",
    force: bool = False,
    dry_run: bool = False,
) -> int:
    from hloserve.cli.export_progress import build_progress
    from hloserve.export.lists.export_list import check_names, load_export_list
    from hloserve.export.lists.run import ListRun, plan_run

    if force and not only:
        raise click.UsageError("--force needs --only, so that it cannot replace everything")
    names = [name for name in re.split(r"[,\s]+", only) if name]
    listed = load_export_list(file)
    check_names(listed, names)
    tasks = plan_run(listed, names, force=force)
    if dry_run:
        _print_tasks(tasks, as_json)
        return 0
    path = report_path or (None if names else listed.report_path)
    if path is not None:  # one that cannot be written is told before the work, not after
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    run = ListRun(listed, tasks, build_progress())
    try:
        with _user_output(as_json):
            run.run()
    finally:  # an interrupted run tells what it did, too
        run.listener.ended()
        _tell_run(run, path, as_json)
    return 1 if any(outcome.verdict == "failed" for outcome in run.outcomes) else 0


def _print_tasks(tasks: "Sequence[Task]", as_json: bool) -> None:
    if as_json:
        print_json([{"model": t.model.name, "action": t.action, "reason": t.reason} for t in tasks])
        return
    rows = [(t.model.name, t.action, "; ".join(t.reason.splitlines()) or "-") for t in tasks]
    print_table(("MODEL", "ACTION", "REASON"), rows)


def _tell_run(run: "ListRun", path: Path | None, as_json: bool) -> None:
    from hloserve.export.lists.report import count_outcomes, to_json, to_markdown

    missed = [task.model.name for task in run.tasks[len(run.outcomes) :]]
    if path is not None:
        text = to_markdown(f"Export of {run.listed.file.name}", run.outcomes, missed)
        path.write_text(text, encoding="utf-8")
    if as_json:
        print_json(to_json(run.outcomes, missed))
        return
    counts = ", ".join(
        f"{count} {verdict}" for verdict, count in count_outcomes(run.outcomes).items()
    )
    click.echo(counts + (f", {len(missed)} not reached" if missed else ""))
    if path is not None:
        click.echo(f"report: {safe(path)}")
