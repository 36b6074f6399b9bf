"""`hloserve show`: what a bundle holds, and what is wrong with it.

Reads manifest, file names and weights header; needs no XLA and runs no code of the bundle. Programs
and hooks are looked at by `hloserve check`. Main thread.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloserve.cli.printing import print_findings, print_json, print_table, safe
from hloserve.core.errors import BundleProblem, HookProblem, ManifestProblem

if TYPE_CHECKING:
    from hloserve.bundle.manifest import Manifest
    from hloserve.core.tensors import TensorSpec

__all__ = ["show"]

Summary = dict[str, Any]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--weights", "list_weights", is_flag=True, help="List every weight tensor.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(bundle: Path, list_weights: bool, as_json: bool) -> int:
    """Print what BUNDLE, a directory with manifest.yaml, holds.

    Shapes are in numpy order: n is the batch axis, ? an axis whose size varies. What is wrong is
    listed at the end; then the exit status is 1. Programs are not opened and hooks are not run:
    `hloserve check` does both.

    \b
    Examples:
      hloserve show models/resnet
      hloserve show models/resnet --json
    """
    summary = describe_bundle(bundle)
    if as_json:
        print_json(summary)
    else:
        _print(summary, list_weights)
    return 1 if summary["problems"] else 0


def describe_bundle(bundle: Path) -> Summary:
    """Everything that can be said about a bundle, as JSON values; never raises for a broken one."""
    from hloserve.bundle.manifest import load_manifest

    summary: Summary = {"bundle": str(bundle), "problems": [], "warnings": []}
    try:
        manifest = load_manifest(bundle)
    except ManifestProblem as problem:
        summary["problems"] += [*problem.findings, *_bundles_inside(bundle)]
        return summary
    summary |= _describe_manifest(manifest)
    parts: tuple[Callable[[Path, Manifest], Summary], ...] = (
        _describe_programs,
        _describe_weights,
        _describe_hooks,
    )
    for part in parts:
        try:
            found = part(bundle, manifest)
        except BundleProblem as problem:
            summary["problems"] += problem.findings
        else:
            summary["warnings"] += found.pop("warnings", ())
            summary |= found
    return summary


def _describe_manifest(manifest: "Manifest") -> Summary:
    executable = manifest.executable_inputs, manifest.executable_outputs
    summary: Summary = {
        "name": manifest.name,
        "description": manifest.description,
        "kind": manifest.kind,
        "format_version": manifest.format_version,
        "inputs": [_describe_tensor(spec) for spec in manifest.inputs],
        "outputs": [_describe_tensor(spec) for spec in manifest.outputs],
        "batch_sizes": list(manifest.compiled_batch_sizes),
        "is_dynamic": manifest.is_dynamic,
        "coalesces_requests": manifest.can_coalesce,
        "variants": [dict(sizes) for sizes in manifest.input_shapes],
        "provenance": _plain(manifest.provenance),
        "warnings": list(manifest.warnings),
    }
    if manifest.is_meta:
        summary["calls"] = list(manifest.calls)
    elif (manifest.inputs, manifest.outputs) != executable:
        summary["program_inputs"] = [_describe_tensor(s) for s in manifest.executable_inputs]
        summary["program_outputs"] = [_describe_tensor(s) for s in manifest.executable_outputs]
    return summary


def _describe_tensor(spec: "TensorSpec") -> Summary:
    shape = [str(axis) if axis.extent is None else axis.extent for axis in spec.axes]
    return {"name": spec.name, "dtype": spec.dtype.token, "shape": shape}


def _describe_programs(bundle: Path, manifest: "Manifest") -> Summary:
    from hloserve.bundle.layout import find_programs

    if manifest.is_meta:
        return {"programs": []}
    programs = [
        {
            "file": program.path.name,
            "batch_size": program.size or None,
            "variant": program.variant,
            "bytes": program.path.stat().st_size,
        }
        for program in find_programs(bundle, manifest)
    ]
    return {"programs": programs}


def _describe_weights(bundle: Path, manifest: "Manifest") -> Summary:
    from hloserve.bundle.active_weights import open_bundle_weights
    from hloserve.bundle.layout import weights_path

    path = weights_path(bundle, manifest)
    if manifest.is_meta and not path.exists():
        return {"weights": None}
    with open_bundle_weights(bundle, manifest) as file:
        tensors = [
            {"name": t.name, "dtype": t.dtype.token, "shape": list(t.shape), "bytes": t.nbytes}
            for t in file.arguments
        ]
        weights = {"file": file.path.name, "bytes": file.nbytes, "is_legacy": file.is_legacy}
        return {"weights": {**weights, "tensors": tensors}, "warnings": file.warnings}


def _describe_hooks(bundle: Path, manifest: "Manifest") -> Summary:
    from hloserve.bundle.manifest import FOREIGN_HOOK_FILE, HOOK_FILE

    if (bundle / HOOK_FILE).is_file():
        return {"hooks": HOOK_FILE, "hook_processes": manifest.hook_processes}
    if (bundle / FOREIGN_HOOK_FILE).is_file():
        reason = f"{FOREIGN_HOOK_FILE} holds another server's hooks; port them to {HOOK_FILE}"
        raise HookProblem(bundle, reason)
    return {"hooks": None}


def _bundles_inside(directory: Path) -> Sequence[str]:
    """The next step when somebody shows a repository."""
    try:
        names = sorted(file.parent.name for file in directory.glob("*/manifest.yaml"))
    except OSError:
        return ()
    some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return (f"it is a model repository; show one of its bundles: {some}",) if names else ()


def _plain(value: object) -> Any:
    """The value as JSON holds it: free-form YAML may hold more."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    is_json = value is None or isinstance(value, bool | int | str)
    return value if is_json else str(value)


def _print(summary: Summary, list_weights: bool) -> None:
    if "name" in summary:
        _print_manifest(summary)
        _print_files(summary, list_weights)
    else:
        click.echo(safe(summary["bundle"]))
    print_findings("warnings", summary["warnings"])
    print_findings("problems", summary["problems"])


def _print_manifest(summary: Summary) -> None:
    kind = "meta model, " if summary["kind"] == "meta" else ""
    click.echo(f"{safe(summary['name'])} ({kind}format {summary['format_version']})")
    if summary["description"]:
        click.echo(safe(summary["description"]))
    for title in ("inputs", "outputs", "program_inputs", "program_outputs"):
        if title in summary:
            click.echo(f"{title.replace('_', ' ')}:")
            rows = [
                (t["name"], t["dtype"], f"({', '.join(map(str, t['shape']))})")
                for t in summary[title]
            ]
            print_table(("NAME", "DTYPE", "SHAPE"), rows, indent="  ")
    if "calls" in summary:
        click.echo(f"calls: {safe(', '.join(summary['calls'])) or 'no other model'}")
    if summary["batch_sizes"]:
        others = "; its operator may name others" if summary["is_dynamic"] else ""
        click.echo(f"batch sizes: {', '.join(map(str, summary['batch_sizes']))}{others}")
    click.echo(f"coalesces requests: {'yes' if summary['coalesces_requests'] else 'no'}")
    for index, sizes in enumerate(summary["variants"]):
        click.echo(f"variant {index}: {', '.join(f'{k}={v}' for k, v in sizes.items())}")


def _print_files(summary: Summary, list_weights: bool) -> None:
    from hloserve.core.units import format_bytes

    programs = summary.get("programs") or ()
    if programs:
        click.echo("programs:")
        rows = [
            (
                p["file"],
                p["batch_size"] or "any",
                "-" if p["variant"] is None else p["variant"],
                format_bytes(p["bytes"]),
            )
            for p in programs
        ]
        print_table(("FILE", "BATCH", "VARIANT", "SIZE"), rows, indent="  ")
    weights = summary.get("weights")
    if weights:
        layout = ", stored in the legacy axis order" if weights["is_legacy"] else ""
        count = len(weights["tensors"])
        size = format_bytes(weights["bytes"])
        click.echo(f"weights: {safe(weights['file'])}, {count} tensors, {size}{layout}")
        if list_weights:
            rows = [
                (t["name"], t["dtype"], tuple(t["shape"]), format_bytes(t["bytes"]))
                for t in weights["tensors"]
            ]
            print_table(("NAME", "DTYPE", "SHAPE", "SIZE"), rows, indent="  ")
    processes = summary.get("hook_processes")
    where = f", in {processes} process{'es' * (processes > 1)}" if processes else ""
    click.echo(f"hooks: {summary.get('hooks') or 'none'}{where}")
    if summary["provenance"]:
        click.echo("provenance:")
        for key, value in summary["provenance"].items():
            click.echo(f"  {safe(key)}: {safe(value)}")
