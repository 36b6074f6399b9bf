"""A bundle that runs without a server: hooks, padding and slicing as a server does them.

What lives here: one request at a time, on the CPU, and what came of each step. What does not:
queues and threads (`hloserve.engine.scheduling.scheduler`, `hloserve.engine.dispatcher`). The
sub-models of a meta model are the bundles beside it. One thread, but for those that the `run` of a
meta model starts.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from hloserve.core.errors import HloserveError, NotPossibleNow, SubCallFailed, UnknownTensor
from hloserve.core.requests import NEVER_NS
from hloserve.core.tensors import Array, Tensors
from hloserve.engine.assembly import (
    StagingArea,
    assemble,
    check_outputs,
    join_outputs,
    slice_rows,
    split_inputs,
)
from hloserve.engine.backend import Backend, Buffer
from hloserve.engine.device_model import VariantKey
from hloserve.engine.scheduling.batching import smallest_fitting
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.hook_results import check_tensors
from hloserve.models.loader import load_model
from hloserve.models.meta_call import SubCalls
from hloserve.models.meta_run import MetaHost, MetaRun
from hloserve.models.model import Model

__all__ = ["BundleRunner", "Step"]

Step = Callable[[str, Tensors, float], object]
"""Hears of a step that was done: what it was, the tensors that came of it, and its seconds."""


class BundleRunner:
    """A loaded bundle; a context manager that gives its memory back.

    Args:
        bundle: its directory.
        backend: the device; None for the CPU.

    Raises:
        BundleProblem: it cannot be loaded.
    """

    def __init__(self, bundle: Path, backend: Backend | None = None) -> None:
        self._backend: Backend = backend or XlaBackend("cpu")
        self.model = load_model(bundle, self._backend)
        self._staging = StagingArea()
        self._lock = threading.RLock()
        self._subs: dict[str, BundleRunner] = {}

    def __enter__(self) -> "BundleRunner":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sub in self._subs.values():
            sub.model.free()
        self.model.free()

    def run(self, inputs: Tensors, on_step: Step | None = None) -> Tensors:
        """Answer one request.

        Args:
            inputs: what a client would send; of the declared dtypes and ranks.
            on_step: hears of ``preprocess``, ``program`` and ``postprocess``, or of ``run`` and of
                each call that it makes; of hooks that the bundle does not have it hears nothing.

        Raises:
            HloserveError: a hook refused or failed, no program fits, or the execution failed.
        """
        heard = on_step or _ignore
        if self.model.is_meta:
            return self._run_meta(inputs, heard)
        model, device = self.model, self.model.device
        started = time.monotonic()
        prepared = model.preprocess(inputs)
        if model.has_preprocess:
            named = dict(zip(model.input_names, prepared, strict=True))
            heard("preprocess", named, time.monotonic() - started)
        started = time.monotonic()
        raw = self._run_program(prepared)
        named = dict(zip((spec.name for spec in device.outputs), raw, strict=True))
        heard("program", named, time.monotonic() - started)
        started = time.monotonic()
        outputs = model.postprocess(raw)
        if model.has_postprocess:
            heard("postprocess", outputs, time.monotonic() - started)
        return outputs

    def _run_program(self, prepared: list[Array]) -> list[Array]:
        device = self.model.device
        variant = device.variant_of(prepared)
        rows = device.rows_of(prepared)
        device.check_rows(variant, rows)
        if not device.can_coalesce:
            size = rows if rows in device.sizes(variant) else device.largest_size(variant)
            return self._execute(variant, prepared, rows, size)
        largest = device.largest_size(variant)
        requests = split_inputs(device.inputs, prepared, rows, largest) or [(0, prepared)]
        parts = [self._execute_padded(variant, part, count) for count, part in requests]
        return join_outputs(device.outputs, parts)

    def _run_meta(self, inputs: Tensors, heard: Step) -> Tensors:
        def begin(calls: Sequence[SubCalls]) -> None:
            with self._lock:  # `run` may call from several threads
                for each in calls:
                    try:
                        each.settle([self._call(each, one, heard) for one in each.inputs])
                    except HloserveError as error:
                        each.settle(SubCallFailed(self.model.name, each.model, error))

        host = MetaHost(lambda function, *given: function(*given), time.monotonic_ns, None)
        run = MetaRun(self.model, inputs, NEVER_NS, host, begin=begin, withdraw=lambda _: None)
        started = time.monotonic()
        arrays = run.execute()
        specs = self.model.outputs
        outputs = {spec.name: array for spec, array in zip(specs, arrays, strict=True)}
        heard("run", outputs, time.monotonic() - started)
        return outputs

    def _call(self, calls: SubCalls, inputs: Tensors, heard: Step) -> Tensors:
        sub = self._subs.get(calls.model)
        if sub is None:
            bundle = self.model.bundle.absolute().parent / calls.model
            sub = self._subs[calls.model] = BundleRunner(bundle, self._backend)
        if sub.model.is_meta:
            raise NotPossibleNow(f"{calls.model!r} is a meta model itself")
        started = time.monotonic()
        checked = check_tensors(calls.model, "inputs", sub.model.inputs, inputs)
        outputs = sub.run(_named(sub.model, checked))
        for name in calls.outputs:
            if name not in outputs:
                raise UnknownTensor(f"output {name!r} of model {calls.model!r}", tuple(outputs))
        wanted = {name: outputs[name] for name in calls.outputs or outputs}
        heard(f"call {calls.model}", wanted, time.monotonic() - started)
        return wanted

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


def _named(model: Model, arrays: Sequence[Array]) -> Tensors:
    return {spec.name: array for spec, array in zip(model.inputs, arrays, strict=True)}


def _ignore(step: str, tensors: Tensors, seconds: float) -> None:
    pass
