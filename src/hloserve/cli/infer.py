"""`hloserve infer`: ask a running server once.

The work is `hloserve.client`; here are files in, and a summary or files out. Main thread.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloserve.cli.connecting import connection_options, open_client, parse_timeout
from hloserve.cli.printing import print_json, print_table, safe

if TYPE_CHECKING:
    from hloserve.core.requests import ModelMetadata
    from hloserve.core.tensors import Array, Tensors

__all__ = [
    "generate",
    "infer",
    "load_files",
    "parse_text",
    "save_outputs",
    "split_inputs",
    "summarise",
    "tensor_as_json",
]

_GENERATED = re.compile(r"(?P<kind>zeros|ones|random)(:(?P<shape>[0-9]+(,[0-9]+)*)?)?", re.ASCII)
_MAX_GENERATED_BYTES = 2**31


@click.command()
@click.argument("model")
@click.argument("inputs", nargs=-1, metavar="[NAME=FILE.npy]...")
@connection_options
@click.option("--timeout", default="60s", show_default=True, metavar="TIME", help="Deadline.")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Save each output as DIR/NAME.npy.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outputs as JSON.")
def infer(
    model: str,
    inputs: tuple[str, ...],
    timeout: str,
    output_dir: Path | None,
    as_json: bool,
    **connection: Any,
) -> int:
    """Send one request to MODEL and print its outputs.

    An input is a file made by numpy.save, or zeros, ones or random, which take the model's dtype
    and shape (open axes are 1), or the shape behind a colon. Random integers are 0 or 1, other
    values are normally distributed; they are the same every time. Strings are given as JSON, nested
    as the shape is.

    \b
    Examples:
      hloserve infer digits image=digit.npy
      hloserve infer digits image=random:4,8,8 --output-dir answers
      hloserve infer sentiment 'text=["a fine day", "rain again"]'
    """
    given = split_inputs(inputs)
    with open_client(timeout_s=parse_timeout(timeout), **connection) as client:
        arrays = load_files(given)
        if len(arrays) < len(given):
            arrays |= generate(given, client.model_metadata(model))
        outputs = client.infer(model, {name: arrays[name] for name in given})
    if output_dir is not None:
        save_outputs(outputs, output_dir)
    if as_json:
        print_json({"model": model, "outputs": [tensor_as_json(n, a) for n, a in outputs.items()]})
    else:
        rows = [(name, *summarise(array)) for name, array in outputs.items()]
        print_table(("OUTPUT", "DTYPE", "SHAPE", "VALUES"), rows)
    return 0


def split_inputs(inputs: Sequence[str]) -> Mapping[str, str]:
    """Take NAME=WHAT apart, for each input.

    Raises:
        UsageError: one is not of that form, or a name is there twice.
    """
    given: dict[str, str] = {}
    for text in inputs:
        name, equals, what = text.partition("=")
        if not (name and equals and what):
            raise click.UsageError(f"{text!r} is not an input; write NAME=FILE.npy")
        if name in given:
            raise click.UsageError(f"input {name!r} is given twice")
        given[name] = what
    return given


def load_files(given: Mapping[str, str]) -> "Tensors":
    """Read the inputs that are files; those to generate are left out.

    Raises:
        UsageError: a file is not one array.
    """
    from hloserve.core.array_files import load_array

    arrays: Tensors = {}
    for name, what in given.items():
        if _GENERATED.fullmatch(what):
            continue
        if what[0] in '["':
            arrays[name] = parse_text(name, what)
            continue
        try:
            arrays[name] = load_array(what)
        except OSError as error:
            raise click.UsageError(f"input {name!r}: {what}: {error.strerror or error}") from error
        except ValueError as error:
            raise click.UsageError(f"input {name!r}: {what} {error}") from error
    return arrays


def parse_text(name: str, text: str) -> "Array":
    """Read strings that are given as JSON: one, or nested lists of them.

    Raises:
        UsageError: it is no JSON, holds something else, or lists of different lengths.
    """
    import json

    import numpy as np

    from hloserve.core.strings import strings_from

    try:
        return strings_from(np.array(json.loads(text), dtype=object))
    except (ValueError, RecursionError) as error:
        raise click.UsageError(
            f"input {name!r}: {text[:60]!r} is not JSON of strings: {error}"
        ) from error


def generate(given: Mapping[str, str], metadata: "ModelMetadata") -> "Tensors":
    """Make the inputs that are words: the same values every time.

    Raises:
        UsageError: the model has no such input, or one request could not hold it.
    """
    declared = {tensor.name: tensor for tensor in metadata.inputs}
    arrays: Tensors = {}
    for name, what in given.items():
        match = _GENERATED.fullmatch(what)
        if match is None:
            continue
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise click.UsageError(f"model {metadata.name!r} has no input {name!r}; it has {known}")
        tensor = declared[name]
        shape = tuple(max(extent, 1) if extent < 0 else extent for extent in tensor.shape)
        if match["shape"]:
            shape = tuple(map(int, match["shape"].split(",")))
        arrays[name] = _filled(match["kind"], name, tensor.datatype, shape)
    return arrays


def _filled(kind: str, name: str, datatype: str, shape: tuple[int, ...]) -> "Array":
    import math

    import numpy as np

    from hloserve.core.dtypes import BYTES, by_kserve

    try:
        dtype = by_kserve(datatype).numpy
    except KeyError:
        raise click.UsageError(f"input {name!r}: cannot make values of type {datatype}") from None
    if datatype == BYTES.kserve:
        raise click.UsageError(f"""input {name!r} takes strings; give them as '{name}=["..."]'""")
    if math.prod(shape) * dtype.itemsize > _MAX_GENERATED_BYTES:
        raise click.UsageError(f"input {name!r}: shape {shape} is more than one request can hold")
    if kind == "random":
        random = np.random.default_rng(0)
        is_real = dtype.kind not in "biu"
        values = random.standard_normal(shape) if is_real else random.integers(0, 2, shape)
        return np.asarray(values).astype(dtype)
    return np.full(shape, 0 if kind == "zeros" else 1, dtype)


def save_outputs(outputs: "Tensors", directory: Path) -> None:
    """Write the arrays; a name from the server cannot lead out of the directory."""
    import numpy as np

    directory.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for name, array in outputs.items():
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:100] or "_"
        while stem in taken:
            stem += "_"
        taken.add(stem)
        file = directory / f"{stem}.npy"
        np.save(file, _savable(name, array), allow_pickle=False)
        click.echo(f"saved {safe(file)}", err=True)


def _savable(name: str, array: "Array") -> "Array":
    """Strings as NumPy's fixed-width type, which files can hold; it has no zeros at the end."""
    if not array.dtype.hasobject:
        return array
    if any(value.endswith(b"\0") for value in array.reshape(-1).tolist()):
        raise click.ClickException(
            f"output {name!r} has strings that end in a zero byte, which .npy files cannot hold;"
            " print it with --json"
        )
    return array.astype(bytes)


def summarise(array: "Array") -> tuple[str, str, str]:
    """Dtype, shape and the first values of an output, for people."""
    import numpy as np

    from hloserve.core.dtypes import of_wire

    values = np.asarray(array).reshape(-1)[:6]
    shown = ", ".join(_short(value, array.dtype.kind) for value in values.tolist())
    more = ", ..." if array.size > len(values) else ""
    shape = f"({', '.join(map(str, array.shape))})"
    return of_wire(array.dtype).token, shape, f"[{shown}{more}]"


def _short(value: Any, kind: str) -> str:
    if kind == "O":
        return repr(safe(value[:40].decode(errors="replace"))) + ("..." if len(value) > 40 else "")
    return f"{value:.6g}" if kind in "fV" else str(value)


def tensor_as_json(name: str, array: "Array") -> dict[str, Any]:
    """The tensor as V2 JSON writes it, with null for numbers that JSON lacks.

    Bytes that are no UTF-8 are written as ``\\xff``, which no server does.
    """
    from hloserve.core.dtypes import of_wire

    dtype = of_wire(array.dtype)
    data: list[Any] = array.reshape(-1).tolist()
    if array.dtype.hasobject:
        data = [value.decode(errors="backslashreplace") for value in data]
    else:
        data = [None if v != v or v in (_INF, -_INF) else v for v in data]
    return {
        "name": safe(name),
        "datatype": dtype.kserve or dtype.token,
        "shape": list(array.shape),
        "data": data,
    }


_INF = float("inf")
