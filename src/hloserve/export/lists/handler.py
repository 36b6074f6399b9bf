"""What a handler of an export list is given, and the TorchScript models that need none.

What lives here: `HandlerContext`, finding `handler` in a file, and the generic handler for
TorchScript directories in Triton's layout. What does not: the list and the run over it
(`hloserve.export.lists.export_list`, `hloserve.export.lists.run`). A handler is the user's own
code. One thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from hloserve.bundle.files import read_bounded
from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.export.lists.error_text import short_error
from hloserve.export.lists.export_list import ListedModel
from hloserve.export.lists.target import DeferredExport, load_file
from hloserve.export.lists.triton_config import (
    TritonConfig,
    TritonConfigFault,
    TritonTensor,
    batch_ladder,
    parse_config,
)
from hloserve.export.options import ExportProgress

__all__ = [
    "Handler",
    "HandlerContext",
    "NotExportable",
    "example_input",
    "generic_handler",
    "handler_context",
    "load_handler",
]

_CONFIG_FILE = "config.pbtxt"
_MAX_CONFIG_BYTES = 1 << 20
_PROGRAM_FILE = Path("1", "model.pt")


class NotExportable(Exception):
    """A model that nothing here is made for; it is skipped, and the message says why."""


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """One model, as its handler sees it.

    Attributes:
        source: the model's directory in a source directory; None when it has none.
        model: the model's name.
        bundle_name: the bundle's name.
        out_dir: where the bundle goes: a directory that may exist, when it is to be replaced.
        config_text: content of ``config.pbtxt``; empty when there is none.
        inputs: what ``config.pbtxt`` declares, in numpy order without the batch axis.
        outputs: likewise.
        ladder: batch sizes up to its largest; empty when tensors have no batch axis.
        options: from the list.
        overwrite: whether a bundle in `out_dir` is to be replaced.
        progress: for the exporter's `progress`.
        utils: functions for handlers: ``batch_ladder(max_batch_size)``,
            ``parse_max_batch_size(config_text)``, ``example_input(tensor, rows)`` and
            ``short_error(error)``.
    """

    source: Path | None
    model: str
    bundle_name: str
    out_dir: Path
    config_text: str
    inputs: tuple[TritonTensor, ...]
    outputs: tuple[TritonTensor, ...]
    ladder: tuple[int, ...]
    options: Mapping[str, Any]
    overwrite: bool
    progress: ExportProgress
    utils: SimpleNamespace


Handler: TypeAlias = Callable[[HandlerContext], DeferredExport | Sequence[int]]
"""Returns a deferred export, as a target does, or the batch sizes of the bundle that it wrote."""


def handler_context(
    model: ListedModel, out_dir: Path, *, overwrite: bool, progress: ExportProgress
) -> HandlerContext:
    """Collect what the handler of a model may want to know.

    A ``config.pbtxt`` that cannot be read is none: a handler may know better.
    """
    text, config = "", TritonConfig(1, (), ())
    if model.source is not None:
        try:
            text = _read_config(model.source)
            config = parse_config(text)
        except (NotExportable, TritonConfigFault):
            pass
    return HandlerContext(
        source=model.source,
        model=model.name,
        bundle_name=model.name,
        out_dir=out_dir,
        config_text=text,
        inputs=config.inputs,
        outputs=config.outputs,
        ladder=batch_ladder(config.max_batch_size),
        options=model.options,
        overwrite=overwrite,
        progress=progress,
        utils=SimpleNamespace(
            batch_ladder=batch_ladder,
            parse_max_batch_size=lambda text: parse_config(text).max_batch_size,
            example_input=example_input,
            short_error=short_error,
        ),
    )


def load_handler(file: Path, model: str) -> Handler:
    """Find the function `handler` in a file.

    Raises:
        ExportProblem: the file cannot be run, or has no such function.
    """
    handler = getattr(load_file(file, model), "handler", None)
    if not callable(handler):
        raise ExportProblem(model, f"{str(file)!r} defines no function handler(ctx)")
    return handler  # type: ignore[no-any-return]  # callable, and that is all that can be known


def generic_handler(context: HandlerContext) -> DeferredExport:
    """Export ``<model>/1/model.pt``, a TorchScript file, as ``<model>/config.pbtxt`` describes it.

    Raises:
        NotExportable: the directory has not that layout, or the configuration says something that
            only a handler can answer, such as the size of an open axis.
    """
    assert context.source is not None, "a model without origin is not in a list"
    try:
        config = parse_config(_read_config(context.source))
    except TritonConfigFault as fault:
        raise NotExportable(f"{fault}; write a handler for it") from fault
    program = context.source / _PROGRAM_FILE
    if not program.is_file():
        raise NotExportable(f"it has no {_PROGRAM_FILE}, so it is not a TorchScript model")
    for tensor in config.inputs:
        if any(extent < 1 for extent in tensor.dims):
            shown = list(tensor.dims)
            raise NotExportable(
                f"input {tensor.name!r} has open axes (dims {shown}); write a handler that chooses"
                " their sizes"
            )
    from hloserve.export.torchscript.source import export_torchscript

    rows = config.max_batch_size and 1
    return partial(
        export_torchscript,
        program,
        tuple(example_input(tensor, rows) for tensor in config.inputs),
        input_names=[tensor.name for tensor in config.inputs],
        output_names=[tensor.name for tensor in config.outputs] or None,
        batch_sizes=batch_ladder(config.max_batch_size) or None,
    )


def example_input(tensor: TritonTensor, rows: int) -> Array:
    """Random values for an input: small enough for indices, bytes in their whole range.

    Args:
        tensor: its dtype and dims.
        rows: extent of the batch axis; 0 for no batch axis.
    """
    random = np.random.default_rng(0)
    shape = (rows, *tensor.dims) if rows else tensor.dims
    dtype = tensor.dtype.numpy
    if dtype == np.uint8:
        return random.integers(0, 256, shape, np.uint8)
    if dtype.kind in "iub":
        return random.integers(0, 2, shape).astype(dtype)
    return random.random(shape).astype(dtype)


def _read_config(source: Path) -> str:
    try:
        content = read_bounded(source / _CONFIG_FILE, _MAX_CONFIG_BYTES)
        return content.decode()
    except FileNotFoundError as error:
        raise NotExportable(f"it has no {_CONFIG_FILE}; write a handler for it") from error
    except OSError as error:
        raise NotExportable(f"{_CONFIG_FILE} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise NotExportable(f"{_CONFIG_FILE} is not UTF-8 text") from error
