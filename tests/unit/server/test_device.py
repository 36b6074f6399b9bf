"""Which of the ways to place weights a worker takes."""

import logging
from collections.abc import Mapping

import pytest

from hloserve.config import load
from hloserve.core.clock import ManualClock
from hloserve.engine.dispatcher import Dispatcher
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.floors import ResidencyMode, ResidencyStatus
from hloserve.engine.scheduling.building import build_scheduler
from hloserve.server.device import open_weights, watch_executions


def _status(settings: Mapping[str, object], backend: FakeBackend) -> ResidencyStatus:
    config = load(None, {}, dict(settings)).config
    clock = ManualClock()
    scheduler = build_scheduler(config.scheduler, clock)
    weights = open_weights(config, backend, scheduler, clock)
    weights.close()
    return weights.status()


@pytest.mark.parametrize(
    ("settings", "limit_bytes", "expected"),
    [
        ({}, None, (ResidencyMode.EVERYTHING, None)),
        ({"runtime.weight_cache_bytes": 500}, None, (ResidencyMode.SELF_MANAGED, 500)),
        ({}, 1000, (ResidencyMode.SELF_MANAGED, 900)),
        ({"runtime.weight_cache_fraction": 0.5}, 1000, (ResidencyMode.SELF_MANAGED, 500)),
        ({"runtime.weight_cache_wiggle_fraction": 0.3}, 1000, (ResidencyMode.SELF_MANAGED, 700)),
        ({"runtime.weight_cache_fraction": 0.0}, 1000, (ResidencyMode.EVERYTHING, None)),
        ({"runtime.weight_cache_bytes": 500}, 1000, (ResidencyMode.SELF_MANAGED, 500)),
        (
            {"runtime.weight_cache_fraction": 0.0, "runtime.weight_cache_bytes": 500},
            1000,
            (ResidencyMode.SELF_MANAGED, 500),
        ),
        (
            {"runtime.weight_cache_bytes": 500, "runtime.residency_mode": "external"},
            None,
            (ResidencyMode.EXTERNAL, 500),
        ),
    ],
)
def test_budget_follows_from_settings_and_memory(
    settings: Mapping[str, object],
    limit_bytes: int | None,
    expected: tuple[ResidencyMode, int | None],
) -> None:
    """Without either, all weights are on the device and nothing is counted."""
    status = _status(settings, FakeBackend(limit_bytes=limit_bytes))

    assert expected == (status.mode, status.max_bytes)


@pytest.mark.parametrize(
    ("settings", "event"),
    [
        ({"runtime.residency_mode": "external"}, "no_weight_budget"),
        (
            {"runtime.shared_host_weights": True, "runtime.shared_host_weights_mode": "666"},
            "shared_weights_writable_by_all",
        ),
    ],
)
def test_settings_that_are_doubtful_are_told(
    settings: Mapping[str, object], event: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller without anything to control, and weights that everybody may write."""
    _status(settings, FakeBackend())

    told = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert [event] == [record.message.split()[0] for record in told]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [5.0]),
        ({"runtime.execution_timeout_seconds": 2}, [0.5]),
        ({"runtime.execution_timeout_seconds": 0}, []),
    ],
)
def test_executions_are_watched_unless_that_is_switched_off(
    settings: Mapping[str, object], expected: list[float]
) -> None:
    """The first look is some seconds away."""
    config = load(None, {}, dict(settings)).config
    clock = ManualClock()
    scheduler = build_scheduler(config.scheduler, clock)
    dispatcher = Dispatcher(FakeBackend(), scheduler, clock, lambda callback, *arguments: None)
    delays_s: list[float] = []

    watch_executions(config, dispatcher, clock, lambda delay_s, callback: delays_s.append(delay_s))

    assert expected == delays_s
