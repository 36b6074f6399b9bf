"""Running every program once before it serves: no request pays for what happens only once.

What lives here: the runs on zeros, and what they tell of a program's cost. What does not: loading
(`hloserve.models.loader`). Runs on a load thread.
"""

import struct
import time
from collections.abc import Mapping, Sequence

import numpy as np

from hloserve.core.errors import HloserveError
from hloserve.engine.backend import Backend, Buffer, Executable
from hloserve.engine.device_model import DeviceModel, VariantKey
from hloserve.engine.programs.executable_cache import Compiled, ExecutableCache
from hloserve.engine.programs.signature import TensorType
from hloserve.engine.residency.placement import WeightsPlacement
from hloserve.models.progress import Progress

__all__ = ["warm_up"]

_COST = struct.Struct("<Q")
_DEAR_NS = 100_000_000
"""A program that took longer, when it was compiled, is not run before it serves: what happens only
once is a small part of it, and a warm start would take as long as a cold one."""

_ENOUGH_NS = 20_000_000


def warm_up(
    device: DeviceModel,
    compiled: Mapping[tuple[VariantKey, int], Compiled],
    backend: Backend,
    placement: WeightsPlacement,
    cache: ExecutableCache | None,
    hears: Progress,
) -> None:
    """Run every program on zeros, and note what it costs.

    Weights are borrowed for these runs, and only if there are any: where many models share little
    memory, a start need not bring them all to the device.

    A program that was restored has its cost in the cache, from the load that compiled it. A failure
    is a warning only: zeros may be out of a program's domain.

    Args:
        device: the model; gets the costs.
        compiled: its programs by variant and batch size.
        backend: the device.
        placement: has the weights.
        cache: has costs and keeps them; None keeps none.
        hears: of failures.

    Raises:
        WeightsProblem: the weights cannot be read.
        DeviceMemoryFull, BackendFailed: they cannot be on the device.
    """
    costs_ns = {place: _known_cost_ns(made, cache) for place, made in compiled.items()}
    to_run = []
    for place, cost_ns in costs_ns.items():
        if cost_ns is None or cost_ns < _DEAR_NS or placement.measures_scratch:
            to_run.append(place)
        else:
            device.statistics.learn_cost(*place, cost_ns)
    if not to_run:
        return
    with placement.borrow(device) as weights:
        for variant, size in to_run:
            made, cost_ns = compiled[variant, size], costs_ns[variant, size]
            try:
                if cost_ns is None:
                    cost_ns = _first_cost_ns(device, made, weights, backend, cache)
                else:
                    _run_on_zeros(made.executable, _inputs(device, made), weights, backend)
            except HloserveError as error:
                hears.bundle_warning(device.name, f"warm-up at batch size {size} failed: {error}")
            else:
                device.statistics.learn_cost(variant, size, cost_ns)


def _first_cost_ns(
    device: DeviceModel,
    made: Compiled,
    weights: Sequence[Buffer],
    backend: Backend,
    cache: ExecutableCache | None,
) -> int:
    """What a program costs that was never run, which is kept for the next start."""
    inputs = _inputs(device, made)
    _run_on_zeros(made.executable, inputs, weights, backend)
    cost_ns = _quickest_ns(made.executable, inputs, weights, backend)
    if cache is not None and made.key:
        cache.write(_cost_key(made.key), _COST.pack(cost_ns))
    return cost_ns


def _inputs(device: DeviceModel, made: Compiled) -> Sequence[TensorType]:
    return made.executable.signature.inputs[: len(device.inputs)]


def _cost_key(key: str) -> str:
    return f"cost-{key}"


def _known_cost_ns(made: Compiled, cache: ExecutableCache | None) -> int | None:
    """What the program took when it was compiled; None when nobody knows."""
    if cache is None or not made.is_restored:
        return None
    payload = cache.read(_cost_key(made.key))
    if payload is None or len(payload) != _COST.size:
        return None
    (cost_ns,) = _COST.unpack(payload)
    return int(cost_ns)


def _quickest_ns(
    executable: Executable,
    inputs: Sequence[TensorType],
    weights: Sequence[Buffer],
    backend: Backend,
) -> int:
    """The shortest of some runs: one of a slow program, up to ten of a quick one.

    A machine that is busy loading makes some of them slow.
    """
    quickest_ns, spent_ns = 2**63 - 1, 0
    for _ in range(10):
        started_ns = time.monotonic_ns()
        _run_on_zeros(executable, inputs, weights, backend)
        elapsed_ns = time.monotonic_ns() - started_ns
        quickest_ns, spent_ns = min(quickest_ns, elapsed_ns), spent_ns + elapsed_ns
        if spent_ns > _ENOUGH_NS:
            break
    return quickest_ns


def _run_on_zeros(
    executable: Executable,
    inputs: Sequence[TensorType],
    weights: Sequence[Buffer],
    backend: Backend,
) -> None:
    zeros = [np.zeros([extent or 0 for extent in kind.shape], kind.dtype.numpy) for kind in inputs]
    arguments = backend.to_device(zeros)
    results: Sequence[Buffer] = ()
    try:
        results = backend.execute(executable, [*arguments, *weights])
        backend.to_host(results)
    finally:
        backend.free([*arguments, *results])
