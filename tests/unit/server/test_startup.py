"""Loading the start-up set: what is reported, and in which order."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine_models import FakeLoop
from support.server_worker import write_scale

from hloserve.config import load
from hloserve.config.schema import RuntimeConfig
from hloserve.core.errors import BackendFailed
from hloserve.engine.backend import Backend
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.model import Model
from hloserve.models.progress import NoProgress
from hloserve.server.startup import Startup


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="hloserve")


class _Heard:
    """Keeps what the start-up reports."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.models: list[Model] = []
        self.has_ended = False

    def device_opened(self, backend: Backend) -> None:
        """The device is there."""
        self.events.append(("device", backend.platform))

    def model_found(self, name: str) -> None:
        """A bundle."""
        self.events.append(("found", name))

    def model_loaded(self, model: Model) -> None:
        """A model."""
        self.models.append(model)
        self.events.append(("loaded", model.name, model.device.max_batch_size))

    def model_failed(self, name: str, reason: str) -> None:
        """A bundle that cannot be served."""
        self.events.append(("failed", name))
        assert reason

    def startup_done(self, loaded: int, failed: int) -> None:
        """The end."""
        self.events.append(("done", loaded, failed))
        self.has_ended = True

    def startup_failed(self, error: Exception) -> None:
        """The other end."""
        self.events.append((type(error),))
        self.has_ended = True


def _start(
    repository: Path,
    open_device: Callable[[RuntimeConfig], Backend] | None = None,
    **settings: Any,
) -> _Heard:
    backend = FakeBackend()
    heard, loop = _Heard(), FakeLoop()
    flags = {"model_dirs": [str(repository)], **settings}
    startup = Startup(
        load(None, {}, flags).config,
        post=loop.post,
        open_device=open_device or (lambda _: backend),
        progress=NoProgress(),
        events=heard,
    )
    startup.start()
    while not heard.has_ended:
        loop.run_one()
    for model in heard.models:
        model.free(backend)
    return heard


def test_all_are_found_before_the_device_is_opened_and_the_first_is_loaded(
    tmp_path: Path,
) -> None:
    """So nobody sees the server ready, or a name unknown, too early."""
    for name in ("b", "a"):
        write_scale(tmp_path, name)

    assert _start(tmp_path).events == [
        ("found", "a"),
        ("found", "b"),
        ("device", "fake"),
        ("loaded", "a", None),
        ("loaded", "b", None),
        ("done", 2, 0),
    ]


def test_broken_bundle_does_not_stop_the_others(tmp_path: Path) -> None:
    """It is reported with a reason."""
    for name in ("a", "b"):
        write_scale(tmp_path, name)
    next((tmp_path / "a").glob("*.safetensors")).unlink()

    assert _start(tmp_path).events[3:] == [("failed", "a"), ("loaded", "b", None), ("done", 1, 1)]


def test_only_the_wanted_bundles_are_found(tmp_path: Path) -> None:
    """`models_include` limits the set."""
    for name in ("a", "b"):
        write_scale(tmp_path, name)

    events = _start(tmp_path, models_include=["b"]).events

    assert [event for event in events if event[0] == "found"] == [("found", "b")]


@pytest.mark.parametrize("error", [BackendFailed("open", "", "no device"), ZeroDivisionError()])
def test_missing_device_ends_the_start(tmp_path: Path, error: Exception) -> None:
    """Nothing is loaded, and the fault is handed on, whatever its kind."""
    write_scale(tmp_path)

    def refuse(_: RuntimeConfig) -> Backend:
        raise error

    assert _start(tmp_path, refuse).events == [("found", "scale"), (type(error),)]
