"""From settings to a scheduler."""

import pytest
from support.engine_models import build_model, dummy

from hloserve.config.scheduling_schema import ModelSchedulerConfig, SchedulerConfig
from hloserve.core.clock import ManualClock
from hloserve.core.errors import QueueFull
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.building import build_discipline, build_scheduler
from hloserve.engine.scheduling.discipline import Discipline, Fifo
from hloserve.engine.scheduling.edf import Edf
from hloserve.engine.scheduling.fair import Fair


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (SchedulerConfig(), Fair),
        (SchedulerConfig(discipline="fifo"), Fifo),
        (SchedulerConfig(discipline="edf"), Edf),
    ],
)
def test_discipline_by_its_name(config: SchedulerConfig, kind: type[Discipline]) -> None:
    """Without a setting, models share the device fairly."""
    assert isinstance(build_discipline(config), kind)


def test_settings_of_models_hold_for_their_names() -> None:
    """Weight, delay and depth come from the settings, and follow a model that is renamed."""
    config = SchedulerConfig(
        max_queue_depth=2,
        models={"a": ModelSchedulerConfig(weight=3, max_queue_delay_seconds=1)},
    )
    clock = ManualClock(10**9)
    scheduler = build_scheduler(config, clock)
    model = build_model(FakeBackend(), name="b", sizes=[1, 4])
    scheduler.add(model)
    assert scheduler.weight(model) == 1
    model.name = "a"
    scheduler.renamed(model)
    assert scheduler.weight(model) == 3

    for _ in range(2):
        scheduler.submit([dummy(model, 1)])
    assert scheduler.poll_dispatch() is None
    with pytest.raises(QueueFull):
        scheduler.submit([dummy(model, 1)])
    clock.advance(seconds=1)
    assert scheduler.poll_dispatch() is not None


def test_renamed_model_without_a_queue_is_ignored() -> None:
    """It may have been unloaded meanwhile."""
    model = build_model(FakeBackend())
    scheduler = build_scheduler(SchedulerConfig(), ManualClock())

    scheduler.renamed(model)

    assert scheduler.weight(model) == 1


@pytest.mark.parametrize(("planning", "taken"), [("min_cost", 3), ("full", 2)])
def test_batch_planning(planning: str, taken: int) -> None:
    """Programs of 4 and 8 rows cost the same, so one padded batch is cheaper than two full ones."""
    config = SchedulerConfig(batch_planning=planning)  # type: ignore[arg-type]
    scheduler = build_scheduler(config, ManualClock(10**9))
    model = build_model(FakeBackend(), sizes=[4, 8])
    for size in (4, 8):
        model.statistics.learn_cost((), size, 10**6)
    scheduler.add(model)
    scheduler.submit([dummy(model, 2) for _ in range(3)])

    dispatch = scheduler.poll_dispatch()

    assert dispatch is not None
    assert len(dispatch.requests) == taken
