"""Dispatches whose weights are not there."""

import logging
from collections.abc import Sequence

import pytest
from support.engine_models import Engine, build_model, outcome_of, request
from typing_extensions import override

from hloserve.core.errors import HloserveError, WeightsNotResident, WeightsUnreadable
from hloserve.engine.backend import Buffer
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.leasing import EverythingResident


class _Refusing(EverythingResident):
    """Has no weights, and says why."""

    def __init__(self, error: HloserveError) -> None:
        self.error = error
        self.leases = 0

    @override
    def is_resident(self, model: DeviceModel) -> bool:
        return False

    @override
    def lease(self, model: DeviceModel) -> Sequence[Buffer]:
        self.leases += 1
        raise self.error


@pytest.mark.parametrize(
    ("error", "told"),
    [(WeightsNotResident("m"), []), (WeightsUnreadable("m", "gone"), ["weights_unreadable"])],
)
def test_all_requests_of_a_batch_are_told_at_once(
    error: HloserveError, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """None is tried alone; a refusal, which may be usual, is not in the log."""
    caplog.set_level(logging.WARNING, logger="hloserve")
    backend = FakeBackend()
    model, residency = build_model(backend, sizes=[4]), _Refusing(error)
    with Engine(backend, model, residency=residency) as engine:
        callers = [request(model, value) for value in (1, 2, 3)]
        engine.scheduler.submit(callers)
        engine.run(*callers)

    for caller in callers:
        with pytest.raises(type(error)):
            outcome_of(caller)
    assert (1, 3) == (residency.leases, model.statistics.failed_count)
    assert told == [record.message.split()[0] for record in caplog.records]


def test_weights_that_cannot_be_read_are_in_the_log_once_for_each_load_of_their_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the reason and without a traceback: somebody wrote a file, and everybody asks."""
    caplog.set_level(logging.WARNING, logger="hloserve")
    backend = FakeBackend()
    old, new = build_model(backend, sizes=[1]), build_model(backend, sizes=[1])
    residency = _Refusing(WeightsUnreadable("m", "it was written"))
    with Engine(backend, old, new, residency=residency) as engine:
        for model in (old, old, new):
            caller = request(model, 1)
            engine.scheduler.submit([caller])
            engine.run(caller)

    told = [record for record in caplog.records if record.message.startswith("weights_unreadable")]
    assert ["it was written"] * 2 == [vars(record)["hloserve_fields"]["reason"] for record in told]
    assert [None, None] == [record.exc_info for record in told]
