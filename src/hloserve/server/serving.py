"""One worker process, from its start to its end.

What lives here: the log, the event loop and the end of the process. What does not: the worker that
runs in it (`hloserve.server.worker`). Called by the commands, on the main thread.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import uvloop

from hloserve.config.loading import LoadedConfig
from hloserve.config.resolving import resolve_log_format
from hloserve.core.logging import configure
from hloserve.engine.programs.program_probe import ProgramProbe
from hloserve.server.listeners import Addresses
from hloserve.server.listening import allow_many_connections
from hloserve.server.startup import BackendFactory, open_backend
from hloserve.server.worker import Worker

__all__ = ["serve"]


def serve(
    loaded: LoadedConfig,
    *,
    ports_file: Path | None = None,
    show_progress: bool | None = None,
    on_ready: Callable[[Addresses], None] | None = None,
    open_device: BackendFactory = open_backend,
    pages: Mapping[str, Path] | None = None,
) -> int:
    """Run a worker until it is told to stop.

    Args:
        loaded: checked settings with their sources.
        ports_file: written once all ports listen.
        show_progress: draw loading on standard error; None for when it is a terminal.
        on_ready: called on the loop thread when the start-up set is decided and a model serves.
        open_device: makes the backend; tests hand in a fake one.
        pages: static HTML pages of the REST port, by path.

    Returns:
        The exit status.

    Raises:
        ConfigProblem: a port cannot be bound, or the ports file cannot be written.

    Threading: the main thread, because it takes signals.
    """
    allow_many_connections()
    is_terminal = sys.stderr.isatty()
    configure(
        resolve_log_format(loaded.config.logging, is_terminal=is_terminal).value,
        loaded.config.logging.level,
        erases_line=is_terminal,
    )
    progress = is_terminal if show_progress is None else show_progress
    if progress:
        # What is drawn of the start need not be logged as well.
        logging.getLogger("hloserve.server.model_events").setLevel(logging.CRITICAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status, is_busy = runner.run(
            _run(loaded, ports_file, progress, on_ready, open_device, pages or {})
        )
    if is_busy:
        # Neither compiling nor executing can be interrupted, or bears the interpreter's being torn
        # down under it.
        sys.stdout.flush()
        logging.shutdown()
        os._exit(status)
    return status


async def _run(
    loaded: LoadedConfig,
    ports_file: Path | None,
    show_progress: bool,
    on_ready: Callable[[Addresses], None] | None,
    open_device: BackendFactory,
    pages: Mapping[str, Path],
) -> tuple[int, bool]:
    def decided() -> None:
        if on_ready is not None and worker.is_ready:
            on_ready(addresses)

    worker = Worker(loaded, pages, on_decided=decided)
    worker.stop_on_signals()
    addresses = await worker.listen(ports_file)
    sys.stdout.write(addresses.describe())
    sys.stdout.flush()
    worker.load(open_device, show_progress=show_progress, probe=ProgramProbe())
    await worker.wait_stopped()
    return await worker.drain(), worker.is_busy
