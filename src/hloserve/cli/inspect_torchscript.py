"""`hloserve inspect-torchscript`: what a TorchScript file holds, and whether it can be exported.

What lives here: options and printing. What does not: the looking
(`hloserve.export.torchscript.probe`). Runs the file's TorchScript code. Main thread.
"""

from pathlib import Path
from typing import Any

import click

from hloserve.cli.printing import print_findings, print_json, print_table, safe

__all__ = ["inspect_torchscript"]

_MOST_OPERATORS = 20
"""Operators listed of those that need no look."""


@click.command("inspect-torchscript")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=][DTYPE:]SHAPE",
    help="An input to run it on, like f32:1,3,224,224; -1 is an open extent. Once per input.",
)
@click.option("--size", default=512, show_default=True, help="Extent of open axes.")
@click.option("--no-export", is_flag=True, help="Do not try to trace it.")
@click.option(
    "--code-out", type=click.Path(path_type=Path), help="Write the scripted source to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect_torchscript(
    path: Path,
    inputs: tuple[str, ...],
    size: int,
    no_export: bool,
    code_out: Path | None,
    as_json: bool,
) -> int:
    """Print what PATH, a TorchScript file or the directory of a Triton model, holds.

    Its modules, its operators with those marked that exports stumble over, and its scripted source.
    It is run and traced when its inputs are known: from the config.pbtxt of a Triton model, or
    given. The exit status is 1 when it cannot be exported. The file's own code is run.

    \b
    Examples:
      hloserve inspect-torchscript models/detector --size 640
      hloserve inspect-torchscript net.pt --input f32:1,3,224,224 --code-out net.py
    """
    from hloserve.export.torchscript.probe import inspect_torchscript as inspect
    from hloserve.export.torchscript.probe import parse_input

    try:
        declared = [parse_input(text) for text in inputs]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--input") from error
    if size < 1:
        raise click.BadParameter("must be at least 1", param_hint="--size")
    summary = inspect(path, size=size, export=not no_export, inputs=declared)
    code = summary.pop("code")
    if code_out is not None:
        code_out.write_text(code, encoding="utf-8")
    if as_json:
        print_json(summary | ({} if code_out else {"code": code}))
    else:
        _print(summary, code, code_out)
    exported = summary["export"]
    failed = exported is not None and not exported["works"]
    return 1 if failed or summary["problems"] else 0


def _print(summary: dict[str, Any], code: str, code_out: Path | None) -> None:
    click.echo(f"{safe(summary['file'])}: forward({safe(summary['signature'])}")
    if summary["inputs"]:
        click.echo("inputs:")
        rows = [(i["name"] or "-", i["dtype"], tuple(i["shape"])) for i in summary["inputs"]]
        print_table(("NAME", "DTYPE", "SHAPE"), rows, indent="  ")
    click.echo("modules:")
    for line in summary["modules"]:
        name = line["path"].rpartition(".")[2] or "the model"
        indent = "  " * (line["depth"] + 1)
        click.echo(f"{indent}{safe(name)}: {safe(line['kind'])}, {line['parameters']:,} parameters")
    _print_operators(summary["operators"])
    if code_out is None:
        click.echo("code:")
        for text in code.splitlines():
            click.echo(f"  {safe(text)}".rstrip())
    else:
        click.echo(f"code: {safe(code_out)}")
    _print_forward(summary["forward"])
    _print_export(summary["export"])
    print_findings("problems", summary["problems"])


def _print_operators(operators: list[dict[str, Any]]) -> None:
    watched = [each for each in operators if each["remark"]]
    plain = [each for each in operators if not each["remark"]]
    click.echo("operators that deserve a look:" if watched else "operators:")
    rows = [
        (each["operator"], each["count"], each["remark"], ", ".join(each["places"]) or "-")
        for each in watched
    ]
    print_table(("OPERATOR", "COUNT", "REMARK", "PLACES"), rows, indent="  ")
    if watched:
        click.echo("other operators:")
    rest = len(plain) - _MOST_OPERATORS
    listed = [(each["operator"], each["count"]) for each in plain[:_MOST_OPERATORS]]
    print_table(("OPERATOR", "COUNT"), listed, indent="  ")
    if rest > 0:
        click.echo(f"  and {rest} more kinds")


def _print_forward(forward: dict[str, Any] | None) -> None:
    if forward is None:
        click.echo("forward: not run, its inputs are not known; give them with --input")
    elif "error" in forward:
        click.echo(f"forward: fails: {safe(forward['error'])}")
    else:
        click.echo(f"forward: {forward['seconds']} s")
        rows = [(o["name"], o["dtype"], tuple(o["shape"])) for o in forward["outputs"]]
        print_table(("NAME", "DTYPE", "SHAPE"), rows, indent="  ")


def _print_export(exported: dict[str, Any] | None) -> None:
    if exported is None:
        click.echo("export: not tried")
    elif exported["works"]:
        reason = f" ({safe(exported['reason'])})" if "reason" in exported else ""
        click.echo(f"export: works {exported['how']}, {exported['weights']} weights{reason}")
    else:
        click.echo(f"export: fails: {safe(exported['problems'][0])}")
