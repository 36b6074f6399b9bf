"""A thread that does one thing ahead of time, the latest that was asked for.

What lives here: the thread. What does not: what it does (`hloserve.engine.residency.weight_cache`).
"""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from hloserve.core.logging import log_event

__all__ = ["Ahead"]

T = TypeVar("T")

log = logging.getLogger(__name__)


class Ahead(Generic[T]):
    """Runs a function on a thread of its own, with what was wanted last.

    Args:
        run: called on the thread; what it raises is logged, and ends nothing.
        name: of the thread, which starts when something is wanted first.
    """

    def __init__(self, run: Callable[[T], object], name: str) -> None:
        self._run = run
        self._name = name
        self._changed = threading.Condition()
        self._wanted: T | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def want(self, what: T) -> None:
        """Have it done soon, in the place of what is wanted and not yet begun. Any thread."""
        with self._changed:
            if self._is_closed:
                return
            self._wanted = what
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Begin nothing more, and wait for what runs. Idempotent. Any thread but its own."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._is_closed)
                what, self._wanted = self._wanted, None
                if self._is_closed or what is None:
                    return
            try:
                self._run(what)
            except Exception as error:  # noqa: BLE001  # the edge of a thread: logged
                log_event(log, f"{self._name}_failed", level=logging.WARNING, error=error)
