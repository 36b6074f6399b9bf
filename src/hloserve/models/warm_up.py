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
    cache: ExecutableCache | None,
    hears: Progress,
) -> None:
    """Run every program on zeros, and note what it costs.

    A program that was restored has its cost in the cache, from the load that compiled it. A failure
    is a warning only: zeros may be out of a program's domain.

    Args:
        device: the model; gets the costs.
        compiled: its programs by variant and batch size.
        backend: the device.
        cache: has costs and keeps them; None keeps none.
        hears: of failures.
    """
    for (variant, size), made in compiled.items():
        known_ns = _known_cost_ns(made, cache)
        kinds = made.executable.signature.inputs[: len(device.inputs)]
        try:
            if known_ns is None or known_ns < _DEAR_NS:
                _run_on_zeros(made.executable, kinds, device.weights, backend)
            cost_ns = known_ns
            if cost_ns is None:
                cost_ns = _quickest_ns(made.executable, kinds, device.weights, backend)
                if cache is not None and made.key:
                    cache.write(_cost_key(made.key), _COST.pack(cost_ns))
        except HloserveError as error:
            hears.bundle_warning(device.name, f"warm-up at batch size {size} failed: {error}")
        else:
            device.statistics.learn_cost(variant, size, cost_ns)


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
