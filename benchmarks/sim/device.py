"""One device on a clock of its own, with the real scheduler in front of it.

What lives here: the loop that a dispatch thread runs, without threads and without a device: time is
what a table says a batch takes. What does not: where requests come from
(`benchmarks.sim.traffic`), whose weights are there (`benchmarks.sim.memory`), and what a run shows
(`benchmarks.sim.record`).

Rules.
1. Nothing here is random, nor asks the real time: the same arrivals give the same record.
2. A batch takes what its model's table says, then `overhead_s` passes before the next one is taken.
3. Weights are loaded one after the other: for the batch that needs them, or ahead for the next one
   while a batch runs.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.sim.memory import LoadTime, Memory, Ours
from benchmarks.sim.record import Answer, Batch, Outcome, Record
from benchmarks.sim.traffic import Arrival, Clients
from hloserve.config.scheduling_schema import ModelSchedulerConfig, SchedulerConfig
from hloserve.core.clock import ManualClock
from hloserve.core.dtypes import F32
from hloserve.core.errors import QueueFull
from hloserve.core.requests import NEVER_NS
from hloserve.core.tensors import Axis, AxisKind, TensorSpec
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_programs import FakeProgram
from hloserve.engine.programs.signature import Signature, TensorType
from hloserve.engine.scheduling.batching import DISPATCH_OVERHEAD_NS, split_rows
from hloserve.engine.scheduling.building import build_scheduler
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.queued_request import QueuedRequest
from hloserve.engine.scheduling.scheduler import Scheduler

__all__ = ["Device", "Loading", "SimModel", "scheduler_config"]

_ROW = TensorSpec("x", F32, (Axis("n", AxisKind.BATCH), Axis("c", AxisKind.FIXED, 1)))
_KIND = TensorType(F32, (None, 1))
_PROGRAM = FakeProgram(Signature((_KIND,), (_KIND,)), "identity")

_PAUSE_NS = 10_000_000
"""A client that was not served asks again after so long; at once would be at this very instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimModel:
    """A model as the scheduler sees it.

    Attributes:
        name: served name.
        costs_s: what a batch takes, by compiled size.
        weight: its share of the device.
        max_delay_s: how long a batch that is not full is held back.
    """

    name: str
    costs_s: Mapping[int, float]
    weight: float = 1.0
    max_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Loading:
    """Weights that may have to be loaded.

    Attributes:
        memory: what is there.
        sizes_bytes: weights by model.
        load_time: of a load.
        is_ahead: the weights of the next batch are loaded while one runs.
    """

    memory: Memory
    sizes_bytes: Mapping[str, int]
    load_time: LoadTime
    is_ahead: bool = True

    def seconds(self, name: str) -> float:
        """What a load of a model takes."""
        return self.load_time.seconds(self.sizes_bytes[name])


@dataclass(slots=True)
class _Call:
    """One request, of one part or of several."""

    arrival: Arrival
    clients: Clients | None
    parts: int
    started_ns: int = 0


class _Part(QueuedRequest):
    __slots__ = ("call",)

    call: _Call


def scheduler_config(
    models: Sequence[SimModel], kind: str = "fair", batch_planning: str = "min_cost"
) -> SchedulerConfig:
    """The settings for a simulation.

    Args:
        models: whose weights and delays are set.
        kind: a discipline, or "fair original".
        batch_planning: as in the settings.
    """
    discipline, _, formula = kind.partition(" ")
    return SchedulerConfig(
        discipline=discipline,  # type: ignore[arg-type]
        fair_formula=formula or "corrected",  # type: ignore[arg-type]
        batch_planning=batch_planning,  # type: ignore[arg-type]
        models={
            model.name: ModelSchedulerConfig(
                weight=model.weight, max_queue_delay_seconds=model.max_delay_s
            )
            for model in models
        },
    )


class Device:
    """A device, its models, and the queues in front of it. For one run.

    Args:
        models: that are loaded.
        config: how they are scheduled.
        loading: None when all weights are there.
        overhead_s: between two batches.
    """

    def __init__(
        self,
        models: Sequence[SimModel],
        config: SchedulerConfig,
        loading: Loading | None = None,
        overhead_s: float = DISPATCH_OVERHEAD_NS * 1e-9,
    ) -> None:
        self._clock = ManualClock()
        self._scheduler: Scheduler = build_scheduler(config, self._clock)
        self._loading = loading
        self._overhead_ns = round(overhead_s * 1e9)
        self._costs_ns: dict[str, dict[int, int]] = {}
        self._models: dict[str, DeviceModel] = {}
        for model in models:
            sizes = dict.fromkeys(model.costs_s, _PROGRAM)
            device_model = DeviceModel(model.name, (_ROW,), (_ROW,), {(): sizes})
            costs_ns = {size: round(cost_s * 1e9) for size, cost_s in model.costs_s.items()}
            for size, cost_ns in costs_ns.items():  # as a warm-up does
                device_model.statistics.learn_cost((), size, cost_ns)
            self._costs_ns[model.name] = costs_ns
            self._models[model.name] = device_model
            self._scheduler.add(device_model)
        if loading is not None and isinstance(loading.memory, Ours):
            loading.memory.is_awaited = self._is_awaited
        self._record = Record()
        self._to_come: list[tuple[int, int, Arrival, Clients | None]] = []
        self._order = count()
        self._until_ns = 0
        self._ahead = _Ahead()

    def _is_awaited(self, name: str) -> bool:
        return self._scheduler.depth(self._models[name]) > 0

    def run(
        self, until_s: float, arrivals: Sequence[Arrival] = (), clients: Sequence[Clients] = ()
    ) -> Record:
        """Serve until an instant; what is unanswered then is not in the record.

        Args:
            until_s: since the beginning.
            arrivals: requests that come whatever happens.
            clients: those who wait for their answers.
        """
        self._until_ns = round(until_s * 1e9)
        for arrival in arrivals:
            self._await(arrival, None)
        for group in clients:
            for _ in range(group.count):
                self._await(group.next_arrival(round(group.from_s * 1e9)), group)
        while (now_ns := self._clock.now_ns()) < self._until_ns:
            self._pass_to(now_ns)
            dispatch = self._scheduler.poll_dispatch()
            if dispatch is not None:
                self._serve(dispatch)
            else:
                next_ns = self._to_come[0][0] if self._to_come else NEVER_NS
                self._move_to(min(next_ns, self._scheduler.due_ns(), self._until_ns))
        self._scheduler.stop()
        return self._record

    def _await(self, arrival: Arrival, clients: Clients | None) -> None:
        heapq.heappush(self._to_come, (arrival.at_ns, next(self._order), arrival, clients))

    def _move_to(self, at_ns: int) -> None:
        self._clock.advance(seconds=max(0, at_ns - self._clock.now_ns()) * 1e-9)

    def _pass_to(self, at_ns: int) -> None:
        """Let time pass until an instant, and queue who comes meanwhile."""
        while self._to_come and self._to_come[0][0] <= at_ns:
            came_ns, _, arrival, clients = heapq.heappop(self._to_come)
            self._move_to(came_ns)
            self._submit(arrival, clients)
        self._move_to(at_ns)

    def _submit(self, arrival: Arrival, clients: Clients | None) -> None:
        model = self._models[arrival.model]
        deadline_ns = NEVER_NS
        if arrival.timeout_s is not None:
            deadline_ns = arrival.at_ns + round(arrival.timeout_s * 1e9)
        rows = split_rows(arrival.rows, model.largest_size(()))
        call = _Call(arrival, clients, len(rows))
        parts = [_Part(model, [], each, (), deadline_ns) for each in rows]
        for part in parts:
            part.call = call
        try:
            self._scheduler.submit(parts)
        except QueueFull:
            call.parts = 1
            self._answer(call, Outcome.REJECTED)

    def _serve(self, dispatch: Dispatch) -> None:
        for request in dispatch.expired:
            self._end_part(request, Outcome.EXPIRED)
        if not dispatch.requests:
            self._scheduler.end(dispatch)
            return
        model = dispatch.model
        began_ns = self._clock.now_ns()
        self._pass_to(began_ns + self._load(model.name))
        started_ns = self._clock.now_ns()
        cost_ns = self._costs_ns[model.name][dispatch.size]
        self._load_ahead(model.name)
        self._pass_to(started_ns + cost_ns)
        model.statistics.learn_cost((), dispatch.size, cost_ns)
        model.statistics.compute_ns += cost_ns
        self._scheduler.end(dispatch)
        self._record.batches.append(
            Batch(
                model.name, started_ns, started_ns + cost_ns, dispatch.rows, dispatch.size,
                started_ns - began_ns,
            )
        )  # fmt: skip
        for request in dispatch.requests:
            _call(request).started_ns = began_ns
            self._end_part(request, Outcome.SERVED)
        self._pass_to(self._clock.now_ns() + self._overhead_ns)

    def _end_part(self, request: QueuedRequest, outcome: Outcome) -> None:
        call = _call(request)
        call.parts -= 1
        if outcome is Outcome.SERVED and request.deadline_ns < self._clock.now_ns():
            outcome = Outcome.LATE
        if outcome is not Outcome.SERVED or not call.parts:
            self._answer(call, outcome)

    def _answer(self, call: _Call, outcome: Outcome) -> None:
        now_ns, arrival = self._clock.now_ns(), call.arrival
        self._record.answers.append(
            Answer(arrival.model, arrival.at_ns, call.started_ns, now_ns, outcome)
        )
        group = call.clients
        if group is not None and (group.until_s is None or now_ns < group.until_s * 1e9):
            again_ns = now_ns + (outcome is not Outcome.SERVED) * _PAUSE_NS
            self._await(group.next_arrival(again_ns), group)

    def _load(self, name: str) -> int:
        """Have the weights of the next batch there; nanoseconds that it waits for them."""
        loading, now_ns = self._loading, self._clock.now_ns()
        if loading is None:
            return 0
        loading.memory.use(name)
        link_ns = max(0, self._ahead.until_ns - now_ns)  # until what is loaded ahead is there
        wait_ns = link_ns if name == self._ahead.name else 0
        if not loading.memory.is_resident(name):
            loading.memory.bring(name)
            wait_ns = link_ns + round(loading.seconds(name) * 1e9)
        self._record.leases += 1
        self._record.hits += not wait_ns
        return wait_ns

    def _load_ahead(self, running: str) -> None:
        loading, now_ns = self._loading, self._clock.now_ns()
        if loading is None or not loading.is_ahead or self._ahead.until_ns > now_ns:
            return
        upcoming = self._scheduler.upcoming()
        if upcoming is None or loading.memory.is_resident(upcoming.name):
            return
        if loading.memory.bring(upcoming.name, kept=running):
            took_ns = round(loading.seconds(upcoming.name) * 1e9)
            self._ahead = _Ahead(upcoming.name, now_ns + took_ns)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Weights that are being loaded for a batch to come."""

    name: str = ""
    until_ns: int = 0


def _call(request: QueuedRequest) -> _Call:
    assert isinstance(request, _Part), "queued by this device"
    return request.call
