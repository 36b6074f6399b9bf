"""Executions that do not end."""

import logging
from collections.abc import Callable, Sequence

import pytest
from support.engine_models import Engine, build_model, expect_device_lost, outcome_of, request

from hloserve.core.clock import ManualClock
from hloserve.core.errors import DeviceLost
from hloserve.engine.execution_watch import ExecutionWatch, Sight, look, period_s
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.leasing import EverythingResident, Residency

_S = 1_000_000_000
_SETTING = "runtime.execution_timeout_seconds"


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="hloserve")


@pytest.mark.parametrize(
    ("timeout_s", "expected"), [(300, 5), (86400, 5), (20, 5), (8, 2), (1, 0.25), (0.001, 0.05)]
)
def test_looks_are_seconds_apart_or_a_quarter_of_the_timeout(
    timeout_s: float, expected: float
) -> None:
    """Few enough to cost nothing, and enough to be nearly on time."""
    assert expected == period_s(timeout_s)


@pytest.mark.parametrize(
    ("before", "since_ns", "now_ns", "expected"),
    [
        (None, None, 50, None),
        (Sight(10, 40, 30), None, 50, None),
        (None, 45, 50, Sight(45, 50, 5)),
        (Sight(10, 40, 30), 45, 50, Sight(45, 50, 5)),
        (Sight(10, 40, 30), 10, 50, Sight(10, 50, 40)),
        (Sight(10, 40, 30), 10, 55, Sight(10, 55, 45)),
        (Sight(10, 40, 30), 10, 9000, Sight(10, 9000, 50)),
        (None, 45, 9000, Sight(45, 9000, 20)),
        (Sight(10, 40, 30), 45, 9000, Sight(45, 9000, 20)),
    ],
)
def test_look_adds_what_has_passed_but_not_time_in_which_nobody_looked(
    before: Sight | None, since_ns: int | None, now_ns: int, expected: Sight | None
) -> None:
    """Looks are 10 ns apart here; a process that was stopped for long counts 20."""
    assert expected == look(before, since_ns, now_ns, period_ns=10)


class _Watched(Engine):
    """An engine on a clock of its own, watched with a timeout of 300 s."""

    def __init__(
        self,
        backend: FakeBackend,
        sizes: Sequence[int] = (1, 4),
        in_flight: int = 1,
        residency: Residency | None = None,
    ) -> None:
        self.manual = ManualClock(_S)
        self.model = build_model(backend, sizes=sizes)
        super().__init__(
            backend, self.model, clock=self.manual, in_flight=in_flight, residency=residency,
            sleep=lambda _: None,
        )  # fmt: skip
        self._looks: list[tuple[float, Callable[..., object]]] = []
        ExecutionWatch(
            self.dispatcher.under_way,
            self.dispatcher.give_up,
            self.manual,
            lambda delay_s, callback: self._looks.append((delay_s, callback)),
            300.0,
            _SETTING,
        ).start()

    @property
    def is_watching(self) -> bool:
        """Another look will come."""
        return bool(self._looks)

    def pass_time(self, seconds: float) -> None:
        """Let time pass and looks be taken; whole periods."""
        while seconds > 0 and self._looks:
            delay_s, callback = self._looks.pop()
            self.manual.advance(seconds=delay_s)
            seconds -= delay_s
            callback()

    def run_until_the_end_is_told(self) -> None:
        """Play the loop until the worker would end."""
        while not self.ends:
            self.loop.run_one()


@pytest.mark.parametrize("in_flight", [1, 2])
def test_execution_that_hangs_is_told_and_everybody_is_sent_elsewhere(
    in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Those in flight are told that the device is lost, those who wait that the server ends."""
    backend = FakeBackend(runs_ahead=in_flight > 1)
    backend.gate.close()
    with _Watched(backend, sizes=[1], in_flight=in_flight) as engine:
        callers = [request(engine.model, value) for value in range(4)]
        engine.scheduler.submit(callers)
        backend.transfer_gate.wait_for_arrivals(1 + in_flight)
        backend.gate.wait_for_arrivals(1)
        engine.pass_time(295)
        assert (engine.ends, caplog.records) == ([], [])
        engine.pass_time(5)
        engine.run_until_the_end_is_told()

        expect_device_lost(callers, in_flight)
        assert (engine.is_watching, engine.dispatcher.is_given_up) == (False, True)
        assert engine.model.statistics.failed_count == in_flight

    (fault,) = engine.ends
    assert isinstance(fault, DeviceLost)
    assert fault.reason == "an execution of model 'm' has not ended in 300 s"
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.CRITICAL, "execution_stuck")
    expected = {
        "model": "m", "seconds": 300.0, "size": 1, "rows": 1, "requests": 1,
        "waiting": 4 - in_flight, "setting": _SETTING,
    }  # fmt: skip
    assert expected.items() <= record.__dict__["hloserve_fields"].items()


def test_what_a_thread_brings_that_was_given_up_is_dropped() -> None:
    """Its callers have been answered, and the end is told once."""
    with _Watched(FakeBackend()) as engine:
        blocker = engine.hold_device(engine.model)
        engine.pass_time(300)
        engine.run_until_the_end_is_told()
        engine.backend.gate.open()
        while engine.dispatcher.under_way() is not None:
            pass
        engine.loop.run_one()

        with pytest.raises(DeviceLost):
            outcome_of(blocker)
    assert len(engine.ends) == 1


def test_batches_have_the_whole_time_each() -> None:
    """One that waits on the device behind another one is not under way yet."""
    backend = FakeBackend(runs_ahead=True)
    backend.gate.close()
    with _Watched(backend, sizes=[1], in_flight=2) as engine:
        first, second = request(engine.model, 1), request(engine.model, 2)
        engine.scheduler.submit([first, second])
        backend.transfer_gate.wait_for_arrivals(3)
        engine.pass_time(200)
        backend.gate.let_through()
        engine.loop.run_until_settled(first)
        engine.pass_time(295)
        assert engine.is_watching
        engine.pass_time(5)
        assert not engine.is_watching


def test_requests_that_are_run_again_alone_have_the_whole_time_each() -> None:
    """A batch that fails is run again, request by request, and is no hanging one for that."""
    backend = FakeBackend(fail_when=lambda arguments: len(arguments[0]) > 1)
    with _Watched(backend) as engine:
        backend.gate.close()
        callers = [request(engine.model, value) for value in (1, 2, 3, 4)]
        engine.scheduler.submit(callers)
        for run in range(1, 6):
            backend.gate.wait_for_arrivals(run)
            engine.pass_time(295)
            assert engine.is_watching
            backend.gate.let_through()
        engine.loop.run_until_settled(*callers)

    assert [2, 4, 6, 8] == [float(outcome_of(caller)[0][0, 0]) for caller in callers]


def test_time_in_which_the_process_was_stopped_is_not_held_against_the_device() -> None:
    """After hours in a frozen container an execution may go on."""
    with _Watched(FakeBackend()) as engine:
        engine.hold_device(engine.model)
        engine.pass_time(100)
        engine.manual.advance(seconds=7200)
        engine.pass_time(190)
        assert engine.is_watching
        engine.pass_time(5)
        assert not engine.is_watching


class _HeldUp(EverythingResident):
    is_held_up = True


def test_batch_that_waits_for_a_warm_up_is_not_under_way() -> None:
    """A slow model may take long to warm up, and takes the room of its weights meanwhile."""
    residency = _HeldUp()
    with _Watched(FakeBackend(), residency=residency) as engine:
        engine.hold_device(engine.model)
        engine.pass_time(3600)
        residency.is_held_up = False
        engine.pass_time(290)
        assert engine.is_watching
        engine.pass_time(5)
        assert not engine.is_watching


def test_idle_device_is_looked_at_for_ever() -> None:
    """Waiting for work is no hanging."""
    with _Watched(FakeBackend()) as engine:
        engine.pass_time(3600)

        assert engine.is_watching
        assert engine.ends == []
