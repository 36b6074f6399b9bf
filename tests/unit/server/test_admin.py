"""Health on the admin port."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server_services import Services, running_services
from support.wire_callers import RestCaller

from hloserve.server.admin import AdminService
from hloserve.server.metrics import Exposition
from hloserve.server.model_events import ModelEvents
from hloserve.server.worker_figures import WorkerFigures
from hloserve.wire.bytes_in_hand import BytesInHand


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """One model that serves."""
    with running_services(tmp_path) as made:
        yield made


def _status(services: Services, target: str) -> int:
    figures = WorkerFigures(
        services.config, services.registry, services.engine.scheduler, services.inference,
        services.metrics, ModelEvents(services.metrics, lambda loaded, failed: None),
        services.operations.control, BytesInHand(1000),
    )  # fmt: skip
    caller = RestCaller("GET", target, b"")
    AdminService(services.catalog, Exposition(figures))(caller.exchange)
    return caller.status


@pytest.mark.parametrize(
    ("is_live", "is_draining", "expected"),
    [(True, False, (200, 200)), (True, True, (200, 503)), (False, False, (503, 503))],
)
def test_probes_are_told_whether_to_send_requests_and_whether_to_restart(
    services: Services, *, is_live: bool, is_draining: bool, expected: tuple[int, int]
) -> None:
    """A server that drains is alive; one whose device is lost is not."""
    services.catalog.is_live, services.catalog.is_draining = is_live, is_draining

    assert expected == (_status(services, "/healthz"), _status(services, "/readyz"))
