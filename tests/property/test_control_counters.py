"""What the control service counts, while requests come, go, are late and fail."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.server_services import Services, running_services
from support.server_worker import rows

from hloserve.core.model_control import ModelControlStatus
from hloserve.core.requests import NEVER_NS, InferRequest
from hloserve.core.tensors import Array

_COUNTERS = (
    "compute_seconds", "requests_served", "dispatch_count", "rows_served", "padded_rows",
    "requests_expired", "requests_failed",
)  # fmt: skip
_FEW = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """Services with the model "scale", whose largest program takes eight rows."""
    with running_services(tmp_path) as services:
        yield services


def _status(services: Services) -> ModelControlStatus:
    (model,) = services.operations.control.status().models
    return model


def _count(model: ModelControlStatus) -> Array:
    return np.array([getattr(model, name) for name in _COUNTERS])


@_FEW
@given(st.lists(st.tuples(st.integers(1, 20), st.booleans(), st.booleans()), max_size=20))
def test_counters_never_fall_and_miss_nothing(
    services: Services, requests: list[tuple[int, bool, bool]]
) -> None:
    """Whatever is asked between two looks: rows of requests in time add up exactly."""
    first = _status(services)
    looks = [_count(first)]
    answered: list[bool] = []
    for asked, (count, is_late, is_awaited) in enumerate(requests, start=1):
        request = InferRequest(
            "scale", {"x": rows(*range(count))}, deadline_ns=1 if is_late else NEVER_NS
        )
        services.inference.start(request, lambda _, error: answered.append(error is None))
        looks.append(_count(_status(services)))
        while len(answered) < asked and (is_awaited or asked == len(requests)):
            services.deliver()
            looks.append(_count(_status(services)))

    last = _status(services)
    in_time = sum(count for count, is_late, _ in requests if not is_late)
    assert all((after >= before).all() for before, after in pairwise(looks))
    assert [not is_late for _, is_late, _ in requests].count(True) == answered.count(True)
    assert in_time == last.rows_served - first.rows_served
    assert last.padded_rows - first.padded_rows >= in_time
    assert 0 == last.queue_depth
