"""The scheduler against a slow obvious model of itself, and under threads."""

import logging
import random
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.engine_models import (
    DispatchThread,
    Engine,
    build_model,
    dummy,
    manual_scheduler,
    outcome_of,
    request,
    spec,
    wait_until_asleep,
)

from hloserve.core.errors import HloserveError, ModelNotFound, QueueFull, ShuttingDown
from hloserve.core.requests import DEFAULT_PRIORITY, NEVER_NS
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.queued_request import PRIORITY_STEP_NS, QueuedRequest

costs = st.integers(0, 20)
"""Of a batch, in ns: the scheduler compares them and nothing else."""

priorities = st.just(DEFAULT_PRIORITY) | st.sampled_from([1, 9, 11, 100])
"""Most callers name none."""


def turn_of(request: QueuedRequest) -> int:
    """Where a request belongs in its queue: its arrival, moved by its priority."""
    return request.enqueued_ns + request.shift_ns


NAMES = ("a", "b", "c")
DEPTH = 6


def _model(name: str, sizes: list[int], cap: int | None) -> DeviceModel:
    return build_model(
        FakeBackend(),
        name=name,
        function="first",
        inputs=[spec("x", "nw", w=-1)],
        outputs=[spec("y", "nw", w=-1)],
        shapes=[{"w": 1}, {"w": 2}],
        sizes=sizes,
        max_batch_size=cap,
    )


class SchedulerMachine(RuleBasedStateMachine):
    """Every request is in exactly one place, and each queue is served in order.

    The test plays the loop thread. The dispatch thread is a real one that takes a batch when it is
    asked to; while it sleeps, the loop takes cheap ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scheduler, self.clock = manual_scheduler(DEPTH)
        self.queues: dict[str, list[QueuedRequest]] = {}  # the obvious model
        self.models: dict[str, DeviceModel] = {}
        self.submitted: list[QueuedRequest] = []
        self.left: Counter[QueuedRequest] = Counter()
        self.is_open = True
        self.scheduler.announce_to(self._hear)
        self.thread = DispatchThread(self.scheduler)
        self.is_asleep = False  # the dispatch thread, for want of work
        self.is_told = False  # somebody was told of work and has not come yet
        self.cheap: Dispatch | None = None  # what the loop runs

    def _hear(self) -> None:
        assert not self.is_told, "the same news twice"
        self.is_told = True

    def teardown(self) -> None:
        """End the dispatch thread."""
        self.thread.end()

    @initialize(
        sizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3, unique=True),
        cap=st.none() | st.integers(1, 8),
        known=st.lists(costs | st.none(), min_size=len(NAMES), max_size=len(NAMES)),
        is_asleep=st.booleans(),
    )
    def build(
        self, sizes: list[int], cap: int | None, known: list[int | None], is_asleep: bool
    ) -> None:
        """Three models on one scheduler, timed or not, and a dispatch thread that may sleep."""
        for name, cost in zip(NAMES, known, strict=True):
            self.models[name] = _model(name, sizes, cap)
            self.queues[name] = []
            self.scheduler.add(self.models[name])
            for size in sizes if cost is not None else ():
                self.learn(name, size, cost or 0)
        if is_asleep:
            self.serve_all()

    @rule(
        name=st.sampled_from(NAMES),
        rows=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        width=st.integers(1, 2),
        budget=st.none() | st.integers(0, 3),
        priority=priorities,
    )
    def submit(
        self, name: str, rows: list[int], width: int, budget: int | None, priority: int
    ) -> None:
        """All parts are queued, or the right error is raised and none is."""
        deadline_ns = NEVER_NS if budget is None else self.clock.now_ns() + budget * 10**9
        model = self.models[name]
        requests = [dummy(model, count, (width,), deadline_ns, priority) for count in rows]
        queue = self.queues.get(name)
        expected: type[HloserveError] | None = None
        if not self.is_open:
            expected = ShuttingDown
        elif queue is None:
            expected = ModelNotFound
        elif queue and len(queue) + len(rows) > DEPTH:
            expected = QueueFull
        if expected is not None:
            with pytest.raises(expected):
                self.scheduler.submit(requests)
            return
        assert queue is not None
        self.scheduler.submit(requests)
        queue.extend(requests)
        queue.sort(key=turn_of)
        self.submitted += requests
        assert self.is_told or not self.is_asleep, "work came, and nobody was told"

    @rule(name=st.sampled_from(NAMES), size=st.sampled_from([1, 2, 4, 8]), cost=costs)
    def learn(self, name: str, size: int, cost: int) -> None:
        """An execution was timed; batches of other sizes stay unknown."""
        for width in (1, 2):
            self.models[name].statistics.learn_cost((width,), size, cost)

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A caller goes away while its request waits."""
        queue = data.draw(st.sampled_from([q for q in self.queues.values() if q]))
        gone = data.draw(st.sampled_from(queue))
        gone.cancel()
        queue.remove(gone)
        self.left[gone] += 1

    @rule(seconds=st.integers(1, 2))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.clock.advance(seconds=seconds)

    @precondition(lambda self: not self.is_asleep)
    @rule()
    def dispatch(self) -> None:
        """The dispatch thread takes a batch, or sleeps, or ends."""
        self.thread.ask()
        if any(self.queues.values()):
            self._check_taken(self.thread.given())
        elif self.is_open:
            wait_until_asleep(self.scheduler)
            self.is_asleep = True
        else:
            assert self.thread.given() is None

    @precondition(lambda self: self.is_open and not self.is_asleep)
    @rule()
    def serve_all(self) -> None:
        """The dispatch thread takes batches until there is none, and sleeps."""
        while not self.is_asleep:
            self.dispatch()

    @precondition(lambda self: self.cheap is None and (self.is_told or not self.is_asleep))
    @rule(budget=st.sampled_from([0, 10, 20]), ends_at_once=st.booleans())
    def come_for_cheap_work(self, budget: int, ends_at_once: bool) -> None:
        """The loop gets the next batch if it is cheap, else the dispatch thread does."""
        self.is_told = False
        dispatch = self.scheduler.take_cheap(budget)

        if dispatch is not None:
            assert self.is_asleep, "two batches at once"
            assert dispatch.cost_ns <= budget
            self._check_taken(dispatch)
            self.cheap = dispatch
            if ends_at_once:
                self.end_cheap_run()
        elif self.is_asleep and any(self.queues.values()):
            self.is_asleep = False
            handed = self.thread.given()
            assert handed is not None
            assert handed.cost_ns > budget
            self._check_taken(handed)

    @precondition(lambda self: self.cheap is not None)
    @rule()
    def end_cheap_run(self) -> None:
        """What waits by then is told of."""
        ended, self.cheap = self.cheap, None
        assert ended is not None
        self.scheduler.end_cheap(ended)
        assert self.is_told or not self.is_asleep or not any(self.queues.values())

    def _check_taken(self, dispatch: Dispatch | None) -> None:
        """It is of the oldest front, in order, and of requests of one variant that fit."""
        fronts = {name: queue[0] for name, queue in self.queues.items() if queue}
        name = min(fronts, key=lambda name: (fronts[name].enqueued_ns, name))
        assert dispatch is not None
        assert dispatch.model is self.models[name]
        now_ns, queue = self.clock.now_ns(), self.queues[name]
        live = [r for r in queue if r.deadline_ns > now_ns]
        assert dispatch.requests == live[: len(dispatch.requests)]
        assert dispatch.expired == [r for r in queue if r in dispatch.expired]
        assert all(r.deadline_ns <= now_ns for r in dispatch.expired)
        assert dispatch.requests or dispatch.expired
        assert len({r.variant for r in dispatch.requests}) <= 1
        assert dispatch.rows == sum(r.rows for r in dispatch.requests)
        assert dispatch.rows <= dispatch.size or len(dispatch.requests) == 1
        for taken in (*dispatch.requests, *dispatch.expired):
            queue.remove(taken)
            self.left[taken] += 1

    def _check_woken(self) -> None:
        """The end of the scheduler wakes the dispatch thread, which serves what is left."""
        self.is_open = False
        if self.is_asleep:
            self.is_asleep = False
            if any(self.queues.values()):
                self._check_taken(self.thread.given())
            else:
                assert self.thread.given() is None

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        """Unloading fails the queue of that model and no other."""
        orphans = self.queues.pop(name, [])

        assert self.scheduler.remove(self.models[name]) == orphans

        for orphan in orphans:
            with pytest.raises(ModelNotFound):
                outcome_of(orphan)
        self.left.update(orphans)

    @rule(name=st.sampled_from(NAMES))
    def add(self, name: str) -> None:
        """An unloaded model comes back."""
        if name not in self.queues:
            self.scheduler.add(self.models[name])
            self.queues[name] = []

    @precondition(lambda self: self.is_open and len(self.submitted) > 10)
    @rule()
    def drain(self) -> None:
        """Nothing new is taken on; what waits is still served."""
        self.scheduler.drain()
        self._check_woken()

    @precondition(lambda self: len(self.submitted) > 10)
    @rule()
    def stop(self) -> None:
        """Everybody who waits is told."""
        waiting = [r for queue in self.queues.values() for r in queue]

        assert set(self.scheduler.stop()) == set(waiting)

        for queue in self.queues.values():
            queue.clear()
        self.left.update(waiting)
        self._check_woken()

    @invariant()
    def nothing_is_lost_and_nothing_is_given_twice(self) -> None:
        """Each submitted request waits in its place or has left exactly once."""
        for name in NAMES:
            assert self.scheduler.depth(self.models[name]) == len(self.queues.get(name, ()))
        waiting = {r for queue in self.queues.values() for r in queue}
        assert set(self.submitted) == waiting | set(self.left)
        assert not waiting & set(self.left)
        assert set(self.left.values()) <= {1}


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(priorities, st.integers(0, 3)), min_size=1, max_size=30))
def test_priorities_order_a_queue_and_starve_nobody(arrivals: list[tuple[int, int]]) -> None:
    """A smaller number goes first, but passes nobody who waited a step longer for each level."""
    scheduler, clock = manual_scheduler()
    model = build_model(FakeBackend(), sizes=[1])
    scheduler.add(model)
    made: list[tuple[QueuedRequest, int]] = []
    for priority, seconds in arrivals:
        clock.advance(seconds=seconds)
        request = dummy(model, 1, priority=priority)
        scheduler.submit([request])
        made.append((request, priority))
    priority_of = dict(made)
    served: list[QueuedRequest] = []
    while len(served) < len(made):
        dispatch = scheduler.next_dispatch()
        assert dispatch is not None
        served += dispatch.requests

    for place, first in enumerate(served):
        for later in served[place + 1 :]:
            levels = priority_of[later] - priority_of[first]
            waited_ns = later.enqueued_ns - first.enqueued_ns
            if levels == 0:
                assert made.index((first, priority_of[first])) < made.index(
                    (later, priority_of[later])
                )
            else:  # who went first was as urgent, or had waited so much longer
                assert waited_ns + levels * PRIORITY_STEP_NS >= 0


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(3))
def test_every_caller_gets_its_own_answer_while_others_leave(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Thousands of requests of two models, some cancelled, some poisoned: none lost or mixed up."""
    caplog.set_level(logging.CRITICAL, logger="hloserve")
    chance = random.Random(seed)
    backend = FakeBackend(fail_when=lambda arguments: bool((arguments[0] == -1).any()))
    models = [
        build_model(backend, name="double", sizes=[1, 2, 4, 8, 16]),
        build_model(backend, name="same", function="identity", sizes=[4, 16], max_batch_size=10),
    ]
    callers: list[tuple[QueuedRequest, DeviceModel, list[int]]] = []
    with Engine(backend, *models, max_queue_depth=10**6) as engine:
        for number in range(3000):
            model = chance.choice(models)
            values = [number * 4 + row for row in range(chance.randint(1, 4))]
            if chance.random() < 0.01:
                values[0] = -1
            caller = request(model, *values)
            engine.scheduler.submit([caller])
            callers.append((caller, model, values))
            if chance.random() < 0.05:
                chance.choice(callers)[0].cancel()
            if chance.random() < 0.02:
                engine.loop.run_one()
        engine.run(*(caller for caller, _, _ in callers))

    for caller, model, values in callers:
        if caller.is_cancelled:
            continue
        if -1 in values:
            with pytest.raises(HloserveError):
                outcome_of(caller)
            continue
        factor = 2 if model is models[0] else 1
        np.testing.assert_array_equal(outcome_of(caller)[0][:, 0], factor * np.array(values))
    assert engine.scheduler.in_flight == 0


@pytest.mark.stress
def test_submitting_from_several_threads_loses_nothing() -> None:
    """Hook threads may submit as well: one lock guards the queues."""
    backend = FakeBackend()
    model = build_model(backend, function="identity", sizes=[1, 4, 16])
    callers = [[request(model, 100 * t + i) for i in range(300)] for t in range(4)]
    with Engine(backend, model, max_queue_depth=10**6) as engine:

        def submit_all(mine: list[QueuedRequest]) -> None:
            for caller in mine:
                engine.scheduler.submit([caller])

        threads = [threading.Thread(target=submit_all, args=(mine,)) for mine in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        engine.run(*(r for mine in callers for r in mine))

    for t, mine in enumerate(callers):
        for i, caller in enumerate(mine):
            assert outcome_of(caller)[0][0, 0] == 100 * t + i
    assert model.statistics.requests_served == 1200
