"""What choosing the next batch costs, and what disciplines and plans make of the same traffic.

    python -m benchmarks.scheduling

"cost" is the real scheduler on the real clock: submitting, choosing, taking and ending, without a
device, per request; the smallest and the median of many rounds. "shares" and "plans" are
simulations on a clock that moves by what batches cost, so they give the same on any machine.
"""

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from hloserve.config.scheduling_schema import SchedulerConfig
from hloserve.core.clock import Clock, ManualClock, SystemClock
from hloserve.core.dtypes import F32
from hloserve.core.tensors import Axis, AxisKind, TensorSpec
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_programs import FakeProgram
from hloserve.engine.programs.signature import Signature, TensorType
from hloserve.engine.scheduling.batching import DISPATCH_OVERHEAD_NS, plan_batch
from hloserve.engine.scheduling.building import build_discipline
from hloserve.engine.scheduling.model_queue import ModelPolicy
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


def _scheduler(kind: str, clock: Clock, weights: Mapping[str, float] = {}) -> Scheduler:
    name, _, formula = kind.partition(" ")
    config = SchedulerConfig(
        discipline=name,  # type: ignore[arg-type]
        fair_formula=formula or "corrected",  # type: ignore[arg-type]
    )
    policies = {model: ModelPolicy(weight) for model, weight in weights.items()}
    return Scheduler(clock, build_discipline(config), 10**6, policies)


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
            scheduler = _scheduler(kind, SystemClock())
            models = [_model(f"m{n}", _SIZES, lambda size: 1000 * size) for n in range(loaded)]
            for model in models:
                scheduler.add(model)
            busy = models[:waiting]
            times_us = [_round_us(scheduler, busy, depth) for _ in range(9000 // waiting // depth)]
            print(
                f"  {kind:14s} {loaded:5d} loaded, {waiting:3d} waiting, {depth:3d} requests each:"
                f" {min(times_us):6.2f} / {statistics.median(times_us):6.2f}"
            )


def shares(
    kind: str,
    costs_s: Mapping[str, float],
    weights: Mapping[str, float],
    comes_s: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, float]]:
    """Let models always have work for a minute.

    Args:
        kind: the discipline.
        costs_s: of a batch, by model.
        weights: by model.
        comes_s: when a model's work begins; at once when it is not named.

    Returns:
        The share of the device that each has used, and the longest wait of a request in seconds.
    """
    clock = ManualClock(10**9)
    scheduler = _scheduler(kind, clock, weights)
    models = {
        name: _model(name, (1,), lambda _, s=cost_s: s * 1e9) for name, cost_s in costs_s.items()
    }
    for model in models.values():
        scheduler.add(model)
    used_s = dict.fromkeys(models, 0.0)
    waits_s = dict.fromkeys(models, 0.0)
    while (now_s := clock.now_ns() * 1e-9 - 1) < 60:
        for name, model in models.items():
            while now_s >= comes_s.get(name, 0) and scheduler.depth(model) < 2:
                scheduler.submit([QueuedRequest(model, [], 1)])
        dispatch = scheduler.poll_dispatch()
        assert dispatch is not None
        name = dispatch.model.name
        wait_ns = clock.now_ns() - dispatch.requests[0].enqueued_ns
        waits_s[name] = max(waits_s[name], wait_ns * 1e-9)
        clock.advance(seconds=costs_s[name])
        dispatch.model.statistics.compute_ns += round(costs_s[name] * 1e9)
        used_s[name] += costs_s[name]
        scheduler.end(dispatch)
    total_s = sum(used_s.values())
    return {name: value / total_s for name, value in used_s.items()}, waits_s


_NEVER_S = 1e9


def show_shares() -> None:
    """Print who gets what of a saturated device."""
    idle = dict.fromkeys(("i", "j"), _NEVER_S)
    cases: dict[str, tuple[dict[str, float], dict[str, float], dict[str, float]]] = {
        "weights 1, 2, 4": ({"a": 0.01, "b": 0.01, "c": 0.01}, {"b": 2, "c": 4}, {}),
        "costs 1, 10, 100 ms": ({"a": 0.001, "b": 0.01, "c": 0.1}, {}, {}),
        "weights 1, 2, and 5, 5 idle": (
            {"a": 0.01, "b": 0.05, "i": 0.01, "j": 0.01},
            {"b": 2, "i": 5, "j": 5},
            idle,
        ),
        "b comes after 20 s": ({"a": 0.01, "b": 0.01}, {}, {"b": 20}),
    }
    for label, case in cases.items():
        print(f"{label}:")
        for kind in ("fair", "fair original", "fifo"):
            used, waits_s = shares(kind, *case)
            told = [
                f"{name} {used[name]:.3f}, waits up to {waits_s[name]:.3f} s"
                for name in used
                if name not in case[2] or case[2][name] < _NEVER_S
            ]
            print(f"  {kind:14s} {'; '.join(told)}")


def throughput(
    costs_ns: Mapping[int, float], clients: int, most_rows: int, *, weighs_costs: bool
) -> float:
    """Rows per second of clients that ask again once they are answered."""
    chance = random.Random(1)
    queue = deque(chance.randint(1, most_rows) for _ in range(clients))
    spent_ns, rows = 0.0, 0
    for _ in range(4000):
        plan = plan_batch(list(queue), sorted(costs_ns), None, costs_ns if weighs_costs else None)
        spent_ns += costs_ns[plan.size] + DISPATCH_OVERHEAD_NS
        rows += plan.rows
        for _ in range(plan.taken):
            queue.popleft()
            queue.append(chance.randint(1, most_rows))
    return rows / spent_ns * 1e9


def show_plans() -> None:
    """Print what taking cheaper padded batches brings."""
    programs: dict[str, Callable[[int], float]] = {
        "20 us + 1.3 us a row (small, CPU)": lambda size: 20e3 + 1.3e3 * size,
        "1 ms + 2.5 ms a row (MiniLM, CPU)": lambda size: 1e6 + 2.5e6 * size,
        "30 ms a row (ResNet-50, CPU)": lambda size: 30e6 * size,
        "2 ms, from 8 rows on 0.15 ms a row": lambda size: 2e6 + 0.15e6 * max(0, size - 8),
    }
    print("rows per second with batch_planning min_cost over those with full, 3/5/12/24 clients")
    for sizes in ((1, 2, 4, 8, 16, 32), (1, 8), (1, 32)):
        for label, cost_ns in programs.items():
            costs_ns = {size: cost_ns(size) for size in sizes}
            gains = [
                throughput(costs_ns, clients, rows, weighs_costs=True)
                / throughput(costs_ns, clients, rows, weighs_costs=False)
                for rows in (1, 4)
                for clients in (3, 5, 12, 24)
            ]
            one, many = (" ".join(f"{g:6.2f}" for g in part) for part in (gains[:4], gains[4:]))
            print(f"  {sizes!s:22s} {label:36s} 1 row: {one}   1-4 rows: {many}")


if __name__ == "__main__":
    show_cost()
    show_shares()
    show_plans()
