"""A repository on the fake device without sockets or threads of a loop: the test is the loop."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from support.engine_models import FakeLoop
from typing_extensions import override

from hloserve.config import load
from hloserve.core.clock import ManualClock
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.discipline import Fifo
from hloserve.engine.scheduling.scheduler import Scheduler
from hloserve.models.model import Model
from hloserve.models.progress import NoProgress
from hloserve.models.registry import Registry
from hloserve.models.repository_look import Look, look_at
from hloserve.models.task_threads import TaskThreads
from hloserve.server.load_watch import SLOW_S
from hloserve.server.loading import BundleLoader
from hloserve.server.repository import Repository
from hloserve.server.repository_events import RepositoryEvents, RepositorySettings

QUIET_S = 1.0


class Heard(RepositoryEvents):
    """Keeps what the repository tells, as words."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.loading: list[str] = []

    @override
    def model_loading(self, name: str) -> None:
        self.loading.append(name)

    @override
    def model_slow(self, name: str, seconds: float) -> None:
        self.events.append(f"slow {name} {seconds:g}")

    @override
    def model_loaded(self, model: Model, seconds: float, *, is_reload: bool) -> None:
        self.events.append(f"{'reloaded' if is_reload else 'loaded'} {model.name}")

    @override
    def model_failed(self, name: str, error: Exception, *, is_serving: bool) -> None:
        self.events.append(f"failed {name}{', old one serves' if is_serving else ''}")

    @override
    def models_renamed(self, owners: Mapping[str, str]) -> None:
        self.events.extend(f"renamed {old} to {new}" for new, old in sorted(owners.items()))

    @override
    def model_removed(self, name: str, reason: str) -> None:
        self.events.append(f"removed {name}")

    @override
    def sub_model_missing(self, meta: str, model: str, reason: str) -> None:
        self.events.append(f"{meta} lacks {model}: {reason}")

    @override
    def startup_done(self, loaded: int, failed: int) -> None:
        self.events.append(f"started {loaded}, failed {failed}")

    def take(self) -> list[str]:
        """What was told since the last time."""
        events, self.events = self.events, []
        return events


class RepositoryUnderTest:
    """A repository whose looks, loads and pauses happen when the test says so."""

    def __init__(self, root: Path, backend: FakeBackend, settings: RepositorySettings) -> None:
        self.root = root
        self.backend = backend
        self.loop = FakeLoop()
        self.clock = ManualClock()
        self.registry = Registry()
        self.scheduler = Scheduler(self.clock, Fifo(), 1024)
        self.heard = Heard()
        self.pauses: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []
        self.slow_pauses: list[Callable[[], object]] = []
        self.repository = Repository(
            self.registry,
            self.scheduler,
            self.clock,
            threads=TaskThreads(2, self.loop.post, name="load"),
            post=self.loop.post,
            later=self._pause,
            events=self.heard,
            settings=settings,
        )
        self.loader = BundleLoader(
            backend, load(None, {}, {"model_dirs": [str(root)]}).config, NoProgress()
        )

    def _pause(self, delay: float, callback: Callable[..., object], *arguments: Any) -> None:
        if delay == SLOW_S:
            self.slow_pauses.append(partial(callback, *arguments))
        else:
            self.pauses.append((delay, callback, arguments))

    def begin(self) -> list[str]:
        """Load what is there; what was told."""
        self.repository.begin(self.loader, look_at([self.root]).bundles)
        return self.settle()

    def look(self) -> float | None:
        """Look once, a second after the last time."""
        self.clock.advance(seconds=QUIET_S)
        return self.repository.observed(look_at([self.root]))

    def see(self) -> list[str]:
        """Look until what has changed has settled, and do it; what was told."""
        self.look()
        self.look()
        return self.settle()

    def settle(self) -> list[str]:
        """Run the loop until nothing loads and nothing retires; what was told."""
        while self.repository.is_loading or self.repository.retiring:
            self.loop.run_one()
        return self.heard.take()

    def wait(self) -> float:
        """Let the pause end that something waits for; how long it was."""
        delay, callback, arguments = self.pauses.pop(0)
        callback(*arguments)
        return delay

    def index(self) -> dict[str, tuple[str, str]]:
        """State and reason by name, as the repository index has them."""
        return {e.name: (e.state.index_text, e.reason) for e in self.registry.index()}

    def seen(self) -> Look:
        """What a look sees now."""
        return look_at([self.root])


@contextmanager
def repository_under_test(
    root: Path, backend: FakeBackend | None = None, **settings: Any
) -> Iterator[RepositoryUnderTest]:
    """Such a repository, closed and emptied at the end."""
    defaults = {
        "quiet_s": QUIET_S,
        "gone_s": QUIET_S,
        "is_watched": True,
        "is_followed": True,
        "makes_room": False,
    }
    made = RepositoryUnderTest(
        root, backend or FakeBackend(), RepositorySettings(**{**defaults, **settings})
    )
    try:
        yield made
    finally:
        made.repository.close()
        for model in made.registry.models():
            model.free()
