"""What is known before anything is loaded: the names and the device."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from support.engine_models import FakeLoop
from support.engine_programs import program_of
from support.server_worker import write_scale

from hloserve.config import load
from hloserve.config.schema import RuntimeConfig
from hloserve.core.errors import BackendFailed, BundleProblem, ConfigProblem
from hloserve.engine.backend import Backend
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.repository_look import Look
from hloserve.server.startup import Startup, open_backend


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="hloserve")


class _Heard:
    """Keeps what the start-up reports."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.has_ended = False

    def bundles_found(self, look: Look) -> None:
        """The names."""
        self.events.append(("found", *sorted(look.bundles)))

    def device_opened(self, backend: Backend, look: Look) -> None:
        """The device is there."""
        self.events.append(("device", backend.platform, *sorted(look.bundles)))
        self.has_ended = True

    def startup_failed(self, error: Exception) -> None:
        """The other end."""
        self.events.append((type(error),))
        self.has_ended = True


def _start(
    repository: Path,
    open_device: Callable[[RuntimeConfig], Backend] | None = None,
    *,
    is_gone: bool = False,
    **settings: Any,
) -> list[tuple[object, ...]]:
    heard, loop = _Heard(), FakeLoop()
    config = load(None, {}, {"model_dirs": [str(repository)], **settings}).config
    if is_gone:
        repository.rmdir()
    startup = Startup(
        config,
        post=loop.post,
        open_device=open_device or (lambda _: FakeBackend()),
        events=heard,
    )
    startup.start()
    while not heard.has_ended:
        loop.run_one()
    return heard.events


def test_all_names_are_known_before_the_device_is_opened(tmp_path: Path) -> None:
    """So nobody sees the server ready, or a name unknown, too early."""
    for name in ("b", "a"):
        write_scale(tmp_path, name)

    assert [("found", "a", "b"), ("device", "fake", "a", "b")] == _start(tmp_path)


def test_only_the_wanted_bundles_are_found(tmp_path: Path) -> None:
    """`models_include` limits the set."""
    for name in ("a", "b"):
        write_scale(tmp_path, name)

    assert ("found", "b") == _start(tmp_path, models_include=["b"])[0]


def test_repository_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    """It is told at once; one that vanishes later is waited for."""
    (tmp_path / "repository").mkdir()

    assert [(BundleProblem,)] == _start(tmp_path / "repository", is_gone=True)


@pytest.mark.parametrize("error", [BackendFailed("open", "", "no device"), ZeroDivisionError()])
def test_missing_device_ends_the_start(tmp_path: Path, error: Exception) -> None:
    """Nothing is loaded, and the fault is handed on, whatever its kind."""
    write_scale(tmp_path)

    def refuse(_: RuntimeConfig) -> Backend:
        raise error

    assert [("found", "scale"), (type(error),)] == _start(tmp_path, refuse)


@pytest.mark.xla
@pytest.mark.parametrize(("in_flight", "expected"), [("auto", False), (1, False), (2, True)])
def test_cpu_device_runs_ahead_when_several_dispatches_are_wanted(
    in_flight: int | Literal["auto"], *, expected: bool
) -> None:
    """Without a wish it executes when it is called, which is quicker for small models."""
    backend = open_backend(RuntimeConfig(dispatches_in_flight=in_flight))

    assert (backend.platform, backend.runs_ahead) == ("cpu", expected)


@pytest.mark.xla
@pytest.mark.parametrize(
    ("config", "at"),
    [
        (RuntimeConfig(backend="cuda", numerics="tf32"), "runtime.numerics"),
        (RuntimeConfig(compile_options={"xla_none": 1}), "runtime.compile_options"),
    ],
    ids=["tf32", "option"],
)
def test_settings_that_the_device_cannot_honour_end_the_start(
    config: RuntimeConfig, at: str
) -> None:
    """The CPU in place of a GPU has no TF32 either, and nothing is ignored in silence."""
    with pytest.raises(ConfigProblem) as caught:
        open_backend(config)

    assert at == caught.value.at


@pytest.mark.xla
def test_compile_settings_reach_the_device(caplog: pytest.LogCaptureFixture) -> None:
    """Rewrites are off with one setting; a cache without a directory stays off, with a warning."""
    caplog.set_level(logging.WARNING, logger="hloserve")
    convolution = program_of(
        """module @m { func.func public @main(%x: tensor<1x2x3xf32>, %k: tensor<2x2x1xf32>)
          -> tensor<1x2x3xf32> {
          %y = stablehlo.convolution(%x, %k)
            dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {}
            {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
            : (tensor<1x2x3xf32>, tensor<2x2x1xf32>) -> tensor<1x2x3xf32>
          return %y : tensor<1x2x3xf32> } }"""
    )

    on = open_backend(RuntimeConfig())
    off = open_backend(RuntimeConfig(program_rewrites=False, autotune_cache=True))

    assert {"pointwise convolution": 1} == on.compile(convolution, "m").notes.rewrites
    assert {} == off.compile(convolution, "m").notes.rewrites
    assert "autotune_cache_off" in caplog.text
