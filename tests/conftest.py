"""What holds for every test: nothing that it opened or started outlives it."""

import gc
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is not a fault of what is tested.
settings.register_profile(
    "hloserve", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("hloserve")

_PATIENCE_S = 5.0
_OUR_THREADS = (
    "startup", "dispatch", "hook-", "load-", "watch-", "meta-", "compute-", "prefetch",
)  # fmt: skip

_OUR_QUIETED_LOGGERS = ("hloserve.server.model_events",)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say where to find the GPU that tests marked `gpu` need."""
    parser.addoption("--platform", choices=["cuda"], help="run the tests that need a GPU of a kind")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a GPU when nobody asked for them."""
    if config.getoption("--platform") is None:
        left_out = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("gpu") is None]


@pytest.fixture(scope="session")
def gpu(request: pytest.FixtureRequest) -> str:
    """The platform of the GPU under test; skips where there is none."""
    from hloserve.core.errors import ConfigProblem
    from hloserve.engine.xla_backend import XlaBackend

    platform: str = request.config.getoption("--platform")
    try:
        XlaBackend(platform)
    except ConfigProblem as error:
        pytest.skip(f"there is no {platform} device here: {error}")
    return platform


@pytest.fixture(scope="session", autouse=True)
def ends_as_pytest_ends() -> Iterator[None]:
    """Let nothing end this process but pytest: a test's `os._exit(0)` would look like success."""
    really_exit, this_process = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != this_process:  # a child made by fork
            really_exit(status)
        raise AssertionError(f"os._exit({status}) was called in the process of the tests")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", refuse)
        yield


@pytest.fixture(autouse=True)
def leaves_the_log_as_it_was() -> Iterator[None]:
    """A server that runs in the process of a test sets the log up for the whole process."""
    loggers = [logging.getLogger(name) for name in ("", "hloserve", *_OUR_QUIETED_LOGGERS)]
    levels = [logger.level for logger in loggers]
    handlers = loggers[0].handlers[:]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    ours = [each for each in loggers[0].handlers if type(each).__module__.startswith("hloserve")]
    for handler in ours:
        if handler not in handlers:
            loggers[0].removeHandler(handler)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaves a thread running, or a file or socket open.

    What a wider fixture started is there before this one looks, so it may stay. Threads of other
    libraries are daemons with names of their own, and are not looked at.
    """
    threads, files = set(threading.enumerate()), _open_files()
    yield
    deadline = time.monotonic() + _PATIENCE_S
    for thread in set(threading.enumerate()) - threads:
        if not thread.daemon or thread.name.startswith(_OUR_THREADS):
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"the test left the thread {thread.name!r} running"
    leaked = _open_files() - files
    if leaked:  # perhaps only garbage that was not collected yet, or a socket that is closing
        gc.collect()
        pause = threading.Event()
        while leaked and time.monotonic() < deadline:
            pause.wait(0.01)
            leaked = _open_files() - files
    assert not leaked, f"the test left open: {sorted(leaked)}"


def _open_files() -> set[tuple[str, str]]:
    """Open regular files and sockets of this process: descriptor and what it leads to."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # the listing's own descriptor
            continue
        is_own = target.startswith(("/dev/", "/proc/", "pipe:", "anon_inode:"))
        if not is_own and not target.endswith("(deleted)"):
            found.add((descriptor, target))
    return found
