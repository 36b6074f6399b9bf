"""Several dispatches in flight, under random interleavings of callers and device.

The fake device reads its arguments when it executes, in place: staging memory that is written too
early shows as a wrong answer.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_models import Engine, build_model, outcome_of, rows_of

from hloserve.core.errors import BackendFailed
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.queued_request import QueuedRequest

POISON = 13.0
SIZES = (1, 2, 4)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("hloserve").setLevel(logging.CRITICAL + 1)


class CountedRequest(QueuedRequest):
    """Counts how often it is answered."""

    __slots__ = ("answers",)

    def __init__(self, model: DeviceModel, values: list[float]) -> None:
        super().__init__(model, [rows_of(*values)], len(values))
        self.answers = 0

    def resolve(self, value: Any) -> None:
        """An answer."""
        self.answers += 1
        super().resolve(value)

    def fail(self, error: BaseException) -> None:
        """An answer as well."""
        self.answers += 1
        super().fail(error)


@dataclass(frozen=True)
class Step:
    """What happens next: callers come, one leaves, executions end, or replies are delivered."""

    submitted: tuple[tuple[int, int, bool], ...] = ()
    """Model, rows, poisoned."""
    cancelled: int | None = None
    let_through: int = 0
    delivered: bool = False


requests = st.tuples(
    st.integers(0, 1), st.sampled_from(SIZES), st.sampled_from([False] * 7 + [True])
)
steps = st.lists(
    st.builds(
        Step,
        submitted=st.lists(requests, max_size=6).map(tuple),
        cancelled=st.none() | st.integers(0, 30),
        let_through=st.integers(0, 2),
        delivered=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150)
@given(steps=steps, in_flight=st.integers(1, 4), runs_ahead=st.booleans())
def test_each_request_is_answered_once_and_with_its_own_rows(
    steps: list[Step], in_flight: int, runs_ahead: bool
) -> None:
    """Whatever is in flight beside it, fails, or is cancelled."""
    backend = FakeBackend(
        fail_when=lambda arguments: bool((arguments[0] == POISON).any()), runs_ahead=runs_ahead
    )
    backend.gate.close()
    models = [
        build_model(backend, name="double", sizes=SIZES),
        build_model(backend, name="treble", sizes=SIZES, weights=[np.full(3, 3, np.float32)]),
    ]
    submitted: list[tuple[CountedRequest, list[float], bool]] = []
    with Engine(backend, *models, in_flight=in_flight) as engine:
        for step in steps:
            for place, rows, is_poisoned in step.submitted:
                values = [float(100 + 10 * len(submitted) + row) for row in range(rows)]
                if is_poisoned:
                    values[-1] = POISON
                caller = CountedRequest(models[place], values)
                submitted.append((caller, [(place + 2) * v for v in values], is_poisoned))
                engine.scheduler.submit([caller])
            if step.cancelled is not None and step.cancelled < len(submitted):
                submitted[step.cancelled][0].cancel()
            backend.gate.let_through(step.let_through)
            if step.delivered:
                engine.loop.run_what_is_there()
        backend.gate.open()
        engine.loop.run_until_settled(*(caller for caller, _, _ in submitted))

    for caller, expected, is_poisoned in submitted:
        if caller.is_cancelled:
            continue
        assert caller.answers == 1
        if is_poisoned:
            with pytest.raises(BackendFailed, match="told to fail"):
                outcome_of(caller)
        else:
            assert outcome_of(caller)[0][:, 0].tolist() == expected
    assert backend.most_in_flight <= in_flight
    assert backend.in_use_bytes == 24
    assert backend.pinned == []
