"""What choosing the next batch costs: `python -m benchmarks.scheduling`.

The real scheduler on the real clock: submitting, choosing, taking and ending, without a device, per
request; the smallest and the median of many rounds. What disciplines make of traffic is simulated
by `benchmarks.sim`.
"""

import statistics
import time
from collections.abc import Callable, Sequence

from hloserve.config.scheduling_schema import SchedulerConfig
from hloserve.core.clock import SystemClock
from hloserve.core.dtypes import F32
from hloserve.core.tensors import Axis, AxisKind, TensorSpec
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_programs import FakeProgram
from hloserve.engine.programs.signature import Signature, TensorType
from hloserve.engine.scheduling.building import build_scheduler
from hloserve.engine.scheduling.queued_request import QueuedRequest
from hloserve.engine.scheduling.scheduler import Scheduler

_SIZES = (1, 2, 4, 8, 16, 32, 64)
_X = TensorSpec("x", F32, (Axis("n", AxisKind.BATCH), Axis("c", AxisKind.FIXED, 3)))


def _model(name: str, sizes: Sequence[int], cost_ns: Callable[[int], float]) -> DeviceModel:
    kind = TensorType(F32, (None, 3))
    program = FakeProgram(Signature((kind,), (kind,)), "identity")
    model = DeviceModel(name, (_X,), (_X,), {(): dict.fromkeys(sizes, program)})
    for size in sizes:
        model.statistics.learn_cost((), size, round(cost_ns(size)))
    return model


def _scheduler(kind: str) -> Scheduler:
    name, _, formula = kind.partition(" ")
    config = SchedulerConfig(
        discipline=name,  # type: ignore[arg-type]
        fair_formula=formula or "corrected",  # type: ignore[arg-type]
    )
    return build_scheduler(config, SystemClock())


def _round_us(scheduler: Scheduler, busy: Sequence[DeviceModel], depth: int) -> float:
    """Time per request of submitting `depth` to each of some models, and taking all of them."""
    requests = [[QueuedRequest(model, [], 1)] for model in busy for _ in range(depth)]
    left = len(requests)
    started_ns = time.perf_counter_ns()
    for request in requests:
        scheduler.submit(request)
    while left:
        dispatch = scheduler.next_dispatch()
        assert dispatch is not None
        left -= len(dispatch.requests)
        dispatch.model.statistics.compute_ns += 1000 * dispatch.size
        scheduler.end(dispatch)
    return (time.perf_counter_ns() - started_ns) / len(requests) / 1000


def show_cost() -> None:
    """Print what a request costs, by discipline and by how many models wait and are loaded."""
    cases = [(1, 1, 1), (1, 1, 8), (1, 1, 64), (10, 10, 1), (1000, 10, 1), (1000, 10, 64)]
    print("us per request: smallest / median")
    for kind in ("fifo", "fair", "fair original", "edf"):
        for loaded, waiting, depth in cases:
            scheduler = _scheduler(kind)
            models = [_model(f"m{n}", _SIZES, lambda size: 1000 * size) for n in range(loaded)]
            for model in models:
                scheduler.add(model)
            busy = models[:waiting]
            times_us = [_round_us(scheduler, busy, depth) for _ in range(9000 // waiting // depth)]
            print(
                f"  {kind:14s} {loaded:5d} loaded, {waiting:3d} waiting, {depth:3d} requests each:"
                f" {min(times_us):6.2f} / {statistics.median(times_us):6.2f}"
            )


if __name__ == "__main__":
    show_cost()
