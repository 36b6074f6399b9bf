"""A bundle that runs without a server: hooks, padding and slicing as a server does them.

What lives here: one request at a time, on the CPU. What does not: queues and threads
(`hloserve.engine.scheduling.scheduler`, `hloserve.engine.dispatcher`). One thread.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hloserve.core.tensors import Array, Tensors
from hloserve.engine.assembly import (
    StagingArea,
    assemble,
    check_outputs,
    join_outputs,
    slice_rows,
    split_inputs,
)
from hloserve.engine.backend import Buffer
from hloserve.engine.device_model import VariantKey
from hloserve.engine.scheduling.batching import smallest_fitting
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.loader import load_model

__all__ = ["BundleRunner"]


class BundleRunner:
    """A loaded bundle; a context manager that gives its memory back.

    Args:
        bundle: its directory.

    Raises:
        BundleProblem: it cannot be loaded.
        NotImplementedYet: it is a meta model.
    """

    def __init__(self, bundle: Path) -> None:
        self._backend = XlaBackend("cpu")
        self.model = load_model(bundle, self._backend)
        self._staging = StagingArea()

    def __enter__(self) -> "BundleRunner":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.model.free()

    def run(self, inputs: Tensors) -> Tensors:
        """Answer one request.

        Args:
            inputs: what a client would send; of the declared dtypes and ranks.

        Raises:
            HloserveError: a hook refused or failed, no program fits, or the execution failed.
        """
        device = self.model.device
        prepared = self.model.preprocess(inputs)
        variant = device.variant_of(prepared)
        rows = device.rows_of(prepared)
        device.check_rows(variant, rows)
        if not device.can_coalesce:
            size = rows if rows in device.sizes(variant) else device.largest_size(variant)
            return self.model.postprocess(self._execute(variant, prepared, rows, size))
        largest = device.largest_size(variant)
        requests = split_inputs(device.inputs, prepared, rows, largest) or [(0, prepared)]
        parts = [self._execute_padded(variant, part, count) for count, part in requests]
        return self.model.postprocess(join_outputs(device.outputs, parts))

    def _execute_padded(
        self, variant: VariantKey, inputs: Sequence[Array], rows: int
    ) -> list[Array]:
        device = self.model.device
        size = smallest_fitting(device.sizes(variant), rows)
        outputs = self._execute(variant, inputs, rows, size)
        return slice_rows(device.outputs, outputs, [rows])[0]

    def _execute(
        self, variant: VariantKey, inputs: Sequence[Array], rows: int, size: int
    ) -> list[Array]:
        device = self.model.device
        padded = size if device.can_coalesce else 0
        batch = assemble(device.inputs, [inputs], rows, padded, self._staging)
        arguments = self._backend.to_device(batch)
        results: Sequence[Buffer] = ()
        try:
            executable = device.executables[variant][size]
            results = self._backend.execute(executable, [*arguments, *device.weights])
            outputs = self._backend.to_host(results)
        finally:
            self._backend.free([*arguments, *results])
        result_rows = (padded or rows) if device.has_batch_axis else None
        check_outputs(self.model.name, device.outputs, outputs, result_rows)
        return outputs
