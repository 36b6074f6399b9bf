"""`hloserve hooks`: for authors of `model.py`.

The work is `hloserve.models.bundle_runner`. Main thread.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloserve.cli.infer import generate, load_files, save_outputs, split_inputs, summarise
from hloserve.cli.printing import print_json, print_table, safe

if TYPE_CHECKING:
    from hloserve.core.tensors import Tensors
    from hloserve.models.bundle_runner import BundleRunner

__all__ = ["hooks"]


@click.group()
def hooks() -> None:
    """Work on the hooks of a bundle."""


@hooks.command("test")
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("inputs", nargs=-1, metavar="[NAME=FILE.npy]...")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Save each output as DIR/NAME.npy.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the steps as JSON.")
def test_hooks(
    bundle: Path, inputs: tuple[str, ...], output_dir: Path | None, as_json: bool
) -> int:
    """Run model.py of BUNDLE on one request, without a server, and show each step.

    The steps are preprocess, the program (on the CPU) and postprocess; of a meta model, run and the
    calls that it makes, to the bundles beside it. What a hook returns is checked as a server checks
    it. When one fails, the lines of model.py that led there are shown.

    Inputs are given as for `hloserve infer`: files made by numpy.save, or zeros, ones or random.
    Inputs that are not given are zeros.

    \b
    Examples:
      hloserve hooks test models/digits
      hloserve hooks test models/digits image=digit.npy --output-dir answers
      hloserve hooks test models/embedding 'text=["a fine day", "rain again"]'
    """
    from hloserve.core.errors import HookFailed, HookProblem, SubCallFailed
    from hloserve.models.bundle_runner import BundleRunner
    from hloserve.models.hook_file import author_frames

    steps: list[tuple[str, Tensors, float]] = []
    try:
        with BundleRunner(bundle) as runner:
            given = _request(runner, split_inputs(inputs))
            outputs = runner.run(given, lambda *step: steps.append(step))
    except (HookFailed, HookProblem, SubCallFailed) as error:
        if not as_json:
            _print_steps(steps)
        frames = author_frames(bundle.resolve(), error)
        raise click.ClickException("\n".join([str(error), *frames])) from error
    if output_dir is not None:
        save_outputs(outputs, output_dir)
    if as_json:
        print_json({"bundle": str(bundle), "steps": [_as_json(*step) for step in steps]})
    else:
        _print_steps(steps)
    return 0


def _request(runner: "BundleRunner", given: Mapping[str, str]) -> "Tensors":
    """The client's tensors, checked as a server checks them."""
    from hloserve.core.errors import HookFailed
    from hloserve.models.hook_results import check_tensors

    metadata = runner.model.metadata
    names = [tensor.name for tensor in metadata.inputs]
    unknown = [name for name in given if name not in names]
    if unknown:
        known = ", ".join(map(repr, names)) or "none"
        raise click.UsageError(f"the model has no input {unknown[0]!r}; its inputs are {known}")
    unset = {tensor.name: "zeros" for tensor in metadata.inputs if tensor.name not in given}
    arrays = load_files(given) | generate({**given, **unset}, metadata)
    try:
        checked = check_tensors(metadata.name, "inputs", runner.model.inputs, arrays)
    except HookFailed as error:
        raise click.UsageError(f"the inputs do not fit the model: {error.reason}") from error
    return {spec.name: array for spec, array in zip(runner.model.inputs, checked, strict=True)}


def _print_steps(steps: "list[tuple[str, Tensors, float]]") -> None:
    rows = []
    for step, tensors, seconds in steps:
        label, took = safe(step), f"{seconds * 1e3:.2f} ms"
        for name, array in tensors.items():
            rows.append((label, took, safe(name), *summarise(array)))
            label = took = ""
    print_table(("STEP", "TOOK", "TENSOR", "DTYPE", "SHAPE", "VALUES"), rows)


def _as_json(step: str, tensors: "Tensors", seconds: float) -> dict[str, Any]:
    from hloserve.core.dtypes import of_wire

    return {
        "step": step,
        "seconds": seconds,
        "tensors": [
            {"name": name, "dtype": of_wire(array.dtype).token, "shape": list(array.shape)}
            for name, array in tensors.items()
        ],
    }
