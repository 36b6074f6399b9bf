"""Looking again and again: sooner after a notification, at the latest after the period."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

import pytest
from support.engine_models import FakeLoop

from hloserve.models.repository_look import Look, look_at
from hloserve.server.watcher import Notifier, Watcher, watch_files

NEVER_S = 3600.0
PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="hloserve")


class _Watched:
    """A watcher of one directory, and the looks that reach the loop."""

    def __init__(self, root: Path, notifier: Notifier | None, period_s: float) -> None:
        self.loop = FakeLoop()
        self.looks: list[Look] = []
        self.again_s: list[float | None] = []
        self.watcher = Watcher(
            [root],
            (),
            period_s=period_s,
            post=self.loop.post,
            on_look=self._on_look,
            notifier=notifier,
        )
        self.watcher.start(look_at([root]))

    def _on_look(self, look: Look) -> float | None:
        self.looks.append(look)
        return self.again_s.pop(0) if self.again_s else None

    def next_names(self) -> set[str]:
        """Wait for the next look; what it saw."""
        self.loop.run_one(PATIENCE_S)
        return set(self.looks[-1].bundles)

    def names_until(self, wanted: set[str]) -> None:
        """Take looks until one sees exactly these names."""
        while self.next_names() != wanted:
            pass

    def end(self) -> None:
        """Stop and wait."""
        self.watcher.stop()
        self.watcher.join(PATIENCE_S)


Watch: TypeAlias = Callable[..., _Watched]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """Makes a watcher of the test's directory, and ends it."""
    made: list[_Watched] = []

    def make(notifier: Notifier | None = None, period_s: float = NEVER_S) -> _Watched:
        made.append(_Watched(tmp_path, notifier, period_s))
        return made[-1]

    yield make
    for watched in made:
        watched.end()


def _bundle(root: Path, name: str) -> None:
    (root / name).mkdir()
    (root / name / "manifest.yaml").write_text("kind: model")


def test_first_look_is_at_once(watch: Watch, tmp_path: Path) -> None:
    """What changed since the start-up set was looked at is noticed."""
    _bundle(tmp_path, "a")

    assert {"a"} == watch().next_names()


def test_looks_go_on_by_the_period(watch: Watch, tmp_path: Path) -> None:
    """Without notifications, as on network file systems."""
    watched = watch(period_s=0.01)
    watched.next_names()
    _bundle(tmp_path, "a")

    watched.names_until({"a"})


def test_look_comes_when_the_loop_asks_for_it(watch: Watch) -> None:
    """To see whether a change has settled."""
    watched = watch()
    watched.again_s = [0.01, 0.01, None]

    for _ in range(3):
        watched.next_names()

    assert 3 == len(watched.looks)


def test_next_look_waits_for_the_answer_to_the_last(watch: Watch) -> None:
    """A loop that is busy does not pile them up."""
    watched = watch()
    watched.next_names()
    for _ in range(100):
        watched.watcher.look_now()
    watched.next_names()
    watched.watcher.stop()
    watched.watcher.join(PATIENCE_S)

    assert watched.loop.posts <= 3


class _Bell:
    """Notifications that the test gives."""

    def __init__(self) -> None:
        self.rings: SimpleQueue[Exception | None] = SimpleQueue()

    def __call__(self, roots: Sequence[Path], stop: threading.Event) -> Iterator[bool]:
        while not stop.is_set():
            if self.rings.empty():
                yield False
                stop.wait(0.01)
                continue
            ring = self.rings.get()
            if ring is not None:
                raise ring
            yield True


def test_notification_makes_a_look_come_at_once(watch: Watch, tmp_path: Path) -> None:
    """Long before the period is over."""
    bell = _Bell()
    watched = watch(bell)
    watched.next_names()
    _bundle(tmp_path, "a")
    watched.names_until({"a"})  # which may be the look for what happened before it listened
    _bundle(tmp_path, "b")

    bell.rings.put(None)

    watched.names_until({"a", "b"})


def test_watcher_without_notifications_goes_on_by_the_period(watch: Watch, tmp_path: Path) -> None:
    """The kernel's limit of watches is no reason to miss a change."""
    bell = _Bell()
    bell.rings.put(OSError("no space left for watches"))
    watched = watch(bell, period_s=0.01)
    _bundle(tmp_path, "a")

    watched.names_until({"a"})


@pytest.mark.parametrize("change", ["create", "rewrite", "rename", "relink"])
def test_file_system_tells_of_changes(watch: Watch, tmp_path: Path, change: str) -> None:
    """New directories, files rewritten inside, renames, and links that lead elsewhere."""
    _bundle(tmp_path, "a")
    elsewhere = tmp_path / ".store"
    elsewhere.mkdir()
    _bundle(elsewhere, "v1")
    (tmp_path / "link").symlink_to(elsewhere / "v1")
    watched = watch(watch_files)
    before = watched.looks[-1] if watched.next_names() else None
    assert before is not None

    def differs() -> bool:
        watched.next_names()
        return watched.looks[-1].bundles != before.bundles

    match change:
        case "create":
            _bundle(tmp_path, "b")
        case "rewrite":
            (tmp_path / "a" / "manifest.yaml").write_text("kind: model # changed")
        case "rename":
            (tmp_path / "a").rename(tmp_path / "b")
        case "relink":
            _bundle(elsewhere, "v2")
            (tmp_path / "new").symlink_to(elsewhere / "v2")
            os.replace(tmp_path / "new", tmp_path / "link")

    while not differs():
        pass


def test_repository_that_vanishes_is_waited_for_and_found_again(tmp_path: Path) -> None:
    """Its models stay as they were seen, and changes are seen when it is back."""
    root = tmp_path / "models"
    root.mkdir()
    _bundle(root, "a")
    watched = _Watched(root, watch_files, 0.01)
    try:
        watched.names_until({"a"})
        root.rename(tmp_path / "away")
        while not watched.looks[-1].unreadable:
            assert {"a"} == watched.next_names()
        (tmp_path / "away").rename(root)
        _bundle(root, "b")

        watched.names_until({"a", "b"})
    finally:
        watched.end()
