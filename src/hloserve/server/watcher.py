"""Looking at the model repositories again and again.

What lives here: when to look: after a notification of the file system, after a pause that somebody
asked for, and at the latest after a period. What does not: what a look leads to
(`hloserve.server.repository`).

Rules.
1. Looks happen on a thread of their own and go to the loop one at a time: the next begins after the
   loop has answered the last.
2. Notifications only make a look come sooner. They are lost on network file systems and when the
   kernel's limits are reached, so the period stays.
3. Looking takes at most a small share of a core, however many bundles there are and however often
   they change.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from hloserve.bundle.fingerprint import CACHE_DIRECTORY, TEMPORARY_MARK
from hloserve.config.schema import WorkerConfig
from hloserve.core.logging import log_event
from hloserve.engine.dispatcher import Post
from hloserve.models.repository_look import Look, look_at
from hloserve.server.startup import repository_roots

__all__ = ["Notifier", "Watcher", "build_watcher", "watch_files"]

log = logging.getLogger(__name__)

_SHORTEST_PAUSE_S = 0.1
_MOST_SHARE = 0.05
"""Of one core, for looking while bundles change all the time."""

_HEARTBEAT_MS = 500
"""How often a notifier says that nothing has happened."""


class Notifier(Protocol):
    """Tells of changes below some directories, until it is told to stop."""

    def __call__(self, roots: Sequence[Path], stop: threading.Event) -> Iterator[bool]:
        """Yield now and then, true when something has changed; the first time when it listens.

        Raises:
            OSError: there are no notifications.
        """
        ...


def watch_files(roots: Sequence[Path], stop: threading.Event) -> Iterator[bool]:
    """Notifications of the operating system, through watchfiles.

    Raises:
        OSError: the kernel's limit of watches is reached, or a root is missing.
    """
    import watchfiles  # here, so that only a server that watches pays for it

    def counts(change: object, path: str) -> bool:
        name = os.path.basename(path)
        return TEMPORARY_MARK not in name and f"/{CACHE_DIRECTORY}/" not in path

    batches = watchfiles.watch(
        *roots,
        watch_filter=counts,
        stop_event=stop,
        debounce=50,
        step=20,
        rust_timeout=_HEARTBEAT_MS,
        yield_on_timeout=True,
        raise_interrupt=False,
        ignore_permission_denied=True,
    )
    for batch in batches:
        yield bool(batch)


OnLook: TypeAlias = Callable[[Look], float | None]
"""Takes note of a look, on the loop thread; returns when to look again, None for the period."""


class Watcher:
    """Looks at repositories until it is stopped.

    Args:
        roots: absolute.
        include: when not empty, the only names to look at.
        period_s: longest pause between two looks.
        post: brings looks to the loop thread.
        on_look: takes them there.
        notifier: tells of changes; None polls only.
    """

    def __init__(  # it is wired once, by name
        self,
        roots: Sequence[Path],
        include: Sequence[str],
        *,
        period_s: float,
        post: Post,
        on_look: OnLook,
        notifier: Notifier | None = watch_files,
    ) -> None:
        self._roots = roots
        self._include = include
        self._period_s = period_s
        self._post = post
        self._on_look = on_look
        self._notifier = notifier
        self._look: Look | None = None
        self._condition = threading.Condition()
        self._is_wanted = False
        self._is_answered = True
        self._wait_s: float | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, look: Look) -> None:
        """Begin, knowing what was seen last. Once."""
        self._look = look
        self._is_wanted = True  # what changed since that look was noticed by nobody
        self._add_thread("watch-look", self._look_until_stopped)
        if self._notifier is not None:
            self._add_thread("watch-events", self._listen_until_stopped)

    def look_now(self) -> None:
        """Look as soon as possible. Any thread."""
        with self._condition:
            self._is_wanted = True
            self._condition.notify_all()

    def stop(self) -> None:
        """End; does not wait. Any thread."""
        self._stop.set()
        with self._condition:
            self._condition.notify_all()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the threads to end; `timeout_s` bounds the wait for each."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _add_thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _look_until_stopped(self) -> None:
        while self._wait():
            started = time.thread_time()  # and not what others took of the core meanwhile
            try:
                look = look_at(self._roots, self._include, self._look)
            except Exception as error:  # noqa: BLE001  # a fault of one look is not the end
                log_event(log, "look_failed", level=logging.ERROR, error=error)
                self._answer(None)
            else:
                self._tell_of_roots(look)
                self._look = look
                with suppress(RuntimeError):  # the loop has closed
                    self._post(self._ask, look)
            took = time.thread_time() - started
            self._stop.wait(max(_SHORTEST_PAUSE_S, took / _MOST_SHARE))

    def _wait(self) -> bool:
        """Wait for the time of the next look; False when there is none."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_answered or self._stop.is_set())
            pause_s = self._period_s if self._wait_s is None else min(self._wait_s, self._period_s)
            self._condition.wait_for(lambda: self._is_wanted or self._stop.is_set(), pause_s)
            self._is_wanted = self._is_answered = False
        return not self._stop.is_set()

    def _ask(self, look: Look) -> None:
        """Hand a look over. Loop thread."""
        wait_s: float | None = None
        try:
            wait_s = self._on_look(look)
        finally:
            self._answer(wait_s)

    def _answer(self, wait_s: float | None) -> None:
        with self._condition:
            self._wait_s, self._is_answered = wait_s, True
            self._condition.notify_all()

    def _tell_of_roots(self, look: Look) -> None:
        before = {} if self._look is None else self._look.unreadable
        for root, reason in look.unreadable.items():
            if root not in before:
                log_event(
                    log, "repository_unreadable", level=logging.WARNING, repository=str(root),
                    reason=reason, hint="its models stay as they are until it can be read again",
                )  # fmt: skip
        for root in before.keys() - look.unreadable.keys():
            log_event(log, "repository_back", repository=str(root))

    def _listen_until_stopped(self) -> None:
        assert self._notifier is not None, "there is a thread for it"
        while not self._stop.is_set():
            try:
                self._listen(self._notifier)
            except Exception as error:  # noqa: BLE001  # whatever a library raises: polling remains
                log_event(
                    log, "no_notifications", level=logging.WARNING, reason=str(error),
                    hint=f"changes are found by looking every {self._period_s:g} s",
                )  # fmt: skip
                self._stop.wait(max(self._period_s, 60.0))
            self._stop.wait(1.0)

    def _listen(self, notifier: Notifier) -> None:
        """Listen until a repository, or what a link in it leads to, is another directory.

        A watch does not follow such a change.
        """
        places = {root: _identity(root) for root in self._roots}
        there = [root for root, identity in places.items() if identity is not None]
        links = _links_in(there)
        is_first = True
        for has_changed in notifier(there, self._stop) if there else ():
            if has_changed or is_first:  # what happened before it listened, it did not tell
                self.look_now()
            is_first = False
            if any(_identity(root) != identity for root, identity in places.items()):
                return
            if has_changed and _links_in(there) != links:
                return  # what they lead to is watched since they were there


def _identity(root: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(root)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _links_in(roots: Sequence[Path]) -> set[tuple[str, str]]:
    """The links among the bundles of repositories, and where they lead."""
    found = set()
    for root in roots:
        with suppress(OSError), os.scandir(root) as entries:
            found |= {(e.path, os.path.realpath(e.path)) for e in entries if e.is_symlink()}
    return found


def build_watcher(config: WorkerConfig, post: Post, on_look: OnLook) -> Watcher:
    """The watcher of a worker's repositories, not yet started."""
    return Watcher(
        repository_roots(config),
        config.models_include,
        period_s=config.model_poll_seconds,
        post=post,
        on_look=on_look,
    )
