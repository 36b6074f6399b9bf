"""The simulated device: what it takes, whom it serves, and that nothing in it is random."""

from collections.abc import Mapping
from random import Random

import pytest

from benchmarks.sim.device import Device, Loading, SimModel, scheduler_config
from benchmarks.sim.memory import LoadTime, Lru, Memory, Ours
from benchmarks.sim.record import Outcome, Record
from benchmarks.sim.traffic import Arrival, Clients, bursty, merged, poisson
from hloserve.config.scheduling_schema import SchedulerConfig

_MS = 1_000_000


def _one(costs_s: Mapping[int, float], max_delay_s: float = 0.0) -> list[SimModel]:
    return [SimModel(name="m", costs_s=costs_s, max_delay_s=max_delay_s)]


@pytest.mark.parametrize(
    ("costs_s", "weights"),
    [((0.002, 0.01, 0.04), (1, 1, 1)), ((0.01, 0.01, 0.03), (1, 2, 5)), ((0.005, 0.02), (3, 1))],
)
def test_shares_equal_the_weights(costs_s: tuple[float, ...], weights: tuple[float, ...]) -> None:
    """Saturated models get what their weights say, to within 5%, also when requests coalesce."""
    models = [
        SimModel(name=f"m{place}", costs_s={1: cost_s, 4: 2 * cost_s}, weight=weight)
        for place, (cost_s, weight) in enumerate(zip(costs_s, weights, strict=True))
    ]
    clients = [Clients(model=model.name, count=12) for model in models]

    shares = Device(models, scheduler_config(models)).run(60, clients=clients).shares(0, 60)

    for model in models:
        assert model.weight / sum(weights) == pytest.approx(shares[model.name], rel=0.05)


def _busy_minute(seed: int) -> Record:
    chance = Random(seed)
    models = [
        SimModel(name="a", costs_s={1: 0.004, 8: 0.01}, weight=2, max_delay_s=0.003),
        SimModel(name="b", costs_s={1: 0.02}),
    ]
    sizes = {"a": 10**8, "b": 10**8}
    loading = Loading(Ours(sizes, 10**8, LoadTime(0.001, 1e10)), sizes, LoadTime(0.001, 1e10))
    arrivals = merged(
        (
            poisson(chance, "a", 80, 10, timeout_s=0.2),
            bursty(chance, "b", 10, 10, burst=5, timeout_s=1.0),
        )
    )
    return Device(models, scheduler_config(models, "edf"), loading).run(10, arrivals)


def test_a_seed_says_all() -> None:
    """The same seed gives the same record, another one another."""
    record = _busy_minute(1)

    assert record == _busy_minute(1)
    assert record != _busy_minute(2)


def test_a_lone_request_takes_what_the_table_says() -> None:
    """An idle device answers after the time of the smallest program that holds the request."""
    models = _one({1: 0.002, 4: 0.005})

    record = Device(models, scheduler_config(models)).run(1, [Arrival(7 * _MS, "m", rows=3)])

    (answer,) = record.answers
    assert (7 * _MS, 12 * _MS, Outcome.SERVED) == (
        answer.arrived_ns,
        answer.ended_ns,
        answer.outcome,
    )


def test_a_held_batch_goes_when_its_delay_has_passed() -> None:
    """A batch that is not full waits for its delay, counted from the oldest request."""
    models = _one({1: 0.002, 8: 0.003}, max_delay_s=0.010)

    record = Device(models, scheduler_config(models)).run(
        1, [Arrival(0, "m"), Arrival(4 * _MS, "m")]
    )

    (batch,) = record.batches
    assert (10 * _MS, 13 * _MS, 2) == (batch.started_ns, batch.ended_ns, batch.rows)


def test_a_request_of_many_rows_is_answered_once() -> None:
    """A request that no program holds runs in parts, and is answered with the last one."""
    models = _one({4: 0.005})

    record = Device(models, scheduler_config(models), overhead_s=0).run(
        1, [Arrival(0, "m", rows=10)]
    )

    assert [4, 4, 2] == [batch.rows for batch in record.batches]
    assert [(15 * _MS, Outcome.SERVED)] == [(a.ended_ns, a.outcome) for a in record.answers]


@pytest.mark.parametrize(
    ("kind", "outcome", "batches"),
    [("fifo", Outcome.LATE, 2), ("edf", Outcome.EXPIRED, 1)],
)
def test_who_cannot_make_it(kind: str, outcome: Outcome, batches: int) -> None:
    """Only edf leaves out a request that would end after its deadline."""
    models = _one({1: 0.010})
    arrivals = [Arrival(0, "m"), Arrival(0, "m", timeout_s=0.015)]

    record = Device(models, scheduler_config(models, kind)).run(1, arrivals)

    assert {Outcome.SERVED, outcome} == {answer.outcome for answer in record.answers}
    assert batches == len(record.batches)
    assert (outcome is Outcome.LATE) == (record.late_fraction == 0.5)
    assert record.served_fraction() == 0.5


def test_a_refused_client_asks_again_later() -> None:
    """A client that finds the queue full tries again after a pause, so time goes on."""
    config = SchedulerConfig(max_queue_depth=1)

    record = Device(_one({1: 0.030}), config).run(0.5, clients=[Clients(model="m", count=4)])

    outcomes = [answer.outcome for answer in record.answers]
    assert Outcome.REJECTED in outcomes
    assert outcomes.count(Outcome.SERVED) == len(record.batches) == 17


@pytest.mark.parametrize(("is_ahead", "waits_ns"), [(True, 20 * _MS), (False, 50 * _MS)])
def test_weights_come_while_another_batch_runs(is_ahead: bool, waits_ns: int) -> None:
    """A load ahead begins with the batch before, which hides as much of it as that takes."""
    models = [SimModel(name=name, costs_s={1: 0.030}) for name in "ab"]
    sizes, load_time = {"a": 100, "b": 100}, LoadTime(0.050, 1e12)
    memories: list[Memory] = [Lru(sizes, 200), Ours(sizes, 200, load_time)]

    for memory in memories:
        loading = Loading(memory, sizes, load_time, is_ahead)
        device = Device(models, scheduler_config(models, "fifo"), loading, overhead_s=0)
        record = device.run(1, [Arrival(0, "a"), Arrival(0, "b"), Arrival(500 * _MS, "a")])

        assert [50 * _MS, waits_ns, 0] == [batch.load_ns for batch in record.batches]
        assert (3, 1) == (record.leases, record.hits)
        assert record.load_s == pytest.approx((50 * _MS + waits_ns) * 1e-9)


def test_what_runs_is_not_evicted_for_what_comes() -> None:
    """Nothing is loaded ahead in the place of the weights that are in use."""
    models = [SimModel(name=name, costs_s={1: 0.030}) for name in "ab"]
    sizes, load_time = {"a": 100, "b": 100}, LoadTime(0.010, 1e12)
    memories: list[Memory] = [Lru(sizes, 150), Ours(sizes, 150, load_time)]

    for memory in memories:
        device = Device(models, scheduler_config(models, "fifo"), Loading(memory, sizes, load_time))
        record = device.run(1, [Arrival(0, "a"), Arrival(0, "b")])

        assert [10 * _MS, 10 * _MS] == [batch.load_ns for batch in record.batches]


def test_time_passes_between_batches() -> None:
    """What a dispatch costs beside computing delays the next one, and not the answer."""
    models = _one({1: 0.010})

    record = Device(models, scheduler_config(models), overhead_s=0.002).run(
        1, [Arrival(0, "m"), Arrival(0, "m")]
    )

    assert [10 * _MS, 22 * _MS] == [answer.ended_ns for answer in record.answers]


def test_weights_of_who_waits_are_not_evicted() -> None:
    """The server's choice hears who waits: their weights stay, though others are used more."""
    models = [SimModel(name=name, costs_s={1: 0.001}) for name in "abc"]
    sizes, load_time = dict.fromkeys("abc", 100), LoadTime(0.010, 1e12)
    loading = Loading(Ours(sizes, 200, load_time), sizes, load_time, is_ahead=False)
    arrivals = [Arrival(n * 50 * _MS, name) for n, name in enumerate("abbb")]
    arrivals += [Arrival(500 * _MS + late, name) for late, name in enumerate("bca")]

    record = Device(models, scheduler_config(models, "fifo"), loading).run(1, arrivals)

    assert [("c", 10 * _MS), ("a", 0)] == [(b.model, b.load_ns) for b in record.batches[-2:]]
