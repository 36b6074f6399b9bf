"""The options that every exporter takes, in one place.

What lives here: their types and meaning. What does not: checking them against a model
(`hloserve.export.settings`). Frontends take ``**options: Unpack[ExportOptions]``, so that an
option is written and explained once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Required, TypeAlias, TypedDict

from hloserve.bundle.io_spec import IOSpec
from hloserve.core.tensors import Array

__all__ = ["BatchSizes", "ExportOptions", "ExportProgress", "MatmulPrecision"]

BatchSizes: TypeAlias = Sequence[int] | Literal["dynamic"] | None
MatmulPrecision: TypeAlias = Literal["default", "high", "highest"]


class ExportOptions(TypedDict, total=False):
    """Keyword options of every exporter. All shapes and axes are in numpy order.

    Attributes:
        dir: the bundle's directory; its last part is the name of the model.
        name: must equal the last part of `dir`, and defaults to it.
        batch_sizes: None for one program of exactly the example's shapes, without a batch axis;
            a list for one program per size; ``"dynamic"`` for one program with an open batch axis.
        dynamic_sizes: with ``"dynamic"``, the sizes that a server compiles unless its operator
            configures others. Default 1, 2, 4, 8, 16, 32.
        input_names: one per input.
        output_names: one per output.
        output_select: from what the model returns to the array, tuple or dict to export.
        input_batch_axes: batch axis per input, None for an input without one. Default: axis 0 of
            all, when there are batch sizes.
        output_batch_axes: likewise for outputs. Default: axis 0 of each output that has the
            extent of the batch there.
        shape_variants: example inputs per compiled set of shapes, each given as the example inputs
            are. Axes that differ become variable axes; all variants share the weights.
        client_inputs: what clients send, when the hook file makes it differ.
        client_outputs: what clients get, likewise.
        axis_letters: letters by tensor, one per axis without the batch axis, in numpy order.
        matmul_precision: of float32 products, fixed when the model is traced. Default: what the
            framework has set.
        compile_options: the frontend's own options for tracing; an unknown one is an error, and
            what is not default is recorded as provenance.
        target_version: StableHLO version of the artifacts. Default: 1.0.0, or the oldest that has
            the features of the program.
        hook_file: path of the file to include as ``model.py``.
        assets: paths of more files to include, under their own names.
        labels: which of them has the names of an output's classes, one per line, by output.
        description: free text for people.
        provenance: recorded in the manifest; wins over what is collected. None takes an entry out,
            such as ``exported_at``, without which the same export gives the same bytes.
        overwrite: replace an existing bundle in one step.
        tolerance: largest error of an output, as a share of its signal. Default: by dtype.
        prove_every_size: run the programs of all batch sizes. By default, of those that come of one
            trace only the two smallest run, and of the others the types are compared.
        sample_inputs: makes inputs for the proof, from a random generator and a number of rows
            (1 without batch sizes). With shape variants it may give each one's in turn. Default:
            random values in the range of the example's.
        progress: hears what is being done; see `ExportProgress`.
    """

    dir: Required[str | os.PathLike[str]]
    name: str
    batch_sizes: BatchSizes
    dynamic_sizes: Sequence[int]
    input_names: Sequence[str] | None
    output_names: Sequence[str] | None
    output_select: Callable[[Any], Any] | None
    input_batch_axes: Sequence[int | None] | None
    output_batch_axes: Sequence[int | None] | None
    shape_variants: Sequence[Any] | None
    client_inputs: Sequence[IOSpec] | None
    client_outputs: Sequence[IOSpec] | None
    axis_letters: Mapping[str, str] | None
    matmul_precision: MatmulPrecision | None
    compile_options: Mapping[str, object] | None
    target_version: str | None
    hook_file: str | os.PathLike[str] | None
    assets: Sequence[str | os.PathLike[str]]
    labels: Mapping[str, str] | None
    description: str
    provenance: Mapping[str, object] | None
    overwrite: bool
    tolerance: float | None
    prove_every_size: bool
    sample_inputs: Callable[[Any, int], Sequence[Array]] | None
    progress: "ExportProgress | None"


class ExportProgress:
    """Hears how an export goes; override what is of interest. Called on the exporting thread."""

    def step(self, what: str, done: int, total: int) -> None:
        """`what` is about to happen, after `done` of `total` steps of this phase.

        Phases are tracing, refining, proving and writing; each counts its own steps.
        """
