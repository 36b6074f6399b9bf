"""What is served of the model repositories: loads, reloads, renames and removals, done.

What lives here: carrying out what `hloserve.models.changes` decides and what clients of the
repository extension ask for. What does not: looking (`hloserve.server.watcher`), loading
(`hloserve.server.loading`, on load threads), judging what failed (`LoadFailures`) and telling
people (`RepositoryEvents`). Loop thread only.

Rules.
1. A model serves until its successor is ready, and goes on if the successor fails.
2. Nothing of a model is freed while a request holds it or a batch of it runs.
3. One load at a time per name. What changes meanwhile is found by a later look.
4. A failed bundle is tried again when its files change; one for which there was no memory, also
   after a while.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from hloserve.core.clock import Clock, Later
from hloserve.core.errors import (
    BundleNotFound,
    DeviceMemoryFull,
    ModelNotFound,
    ShuttingDown,
)
from hloserve.core.requests import ModelState
from hloserve.core.tickets import Ticket
from hloserve.engine.backend import Executable
from hloserve.engine.dispatcher import Post
from hloserve.engine.scheduling.scheduler import Scheduler
from hloserve.models.changes import Applied, Changes, Sighting, decide, observe, settled, wait_s
from hloserve.models.loader import reason_of
from hloserve.models.meta_models import dependents_of
from hloserve.models.model import Model
from hloserve.models.registry import Registry
from hloserve.models.repository_look import Found, Look
from hloserve.models.task_threads import TaskThreads
from hloserve.server.load_failures import LoadFailures
from hloserve.server.load_groups import LoadGroups
from hloserve.server.load_outcomes import run_alone, settle
from hloserve.server.load_watch import LoadWatch
from hloserve.server.loading import BundleLoader, Loaded
from hloserve.server.meta_relations import MetaRelations
from hloserve.server.repository_events import RepositoryEvents, RepositorySettings

__all__ = ["Repository"]


@dataclass(slots=True)
class _Load:
    found: Found
    waiters: list[Ticket[None]] = field(default_factory=list)
    has_made_room: bool = False
    is_unwanted: bool = False


class Repository:
    """Keeps the registry equal to the repositories.

    Args:
        registry: what serves; nobody else changes it.
        scheduler: gets and loses the models' queues.
        threads: run the loads.
        post, later: bring calls to the loop thread, soon and after a while.
        events: hears what happened.
    """

    def __init__(  # noqa: PLR0913  # it is wired once, by name
        self,
        registry: Registry,
        scheduler: Scheduler,
        clock: Clock,
        *,
        threads: TaskThreads,
        post: Post,
        later: Later,
        events: RepositoryEvents,
        settings: RepositorySettings,
    ) -> None:
        self._registry = registry
        self._scheduler = scheduler
        self._clock = clock
        self._threads = threads
        self._post = post
        self._later = later
        self._events = events
        self._settings = settings
        self._relations = MetaRelations(registry, events)
        self._groups = LoadGroups(registry)
        self._watch = LoadWatch(events, later, post)
        self._failures = LoadFailures(settings.quiet_s, is_watched=settings.is_watched)
        self._quiet_ns = round(settings.quiet_s * 1e9)
        self._gone_ns = round(max(settings.gone_s, settings.quiet_s) * 1e9)
        self.look_soon: Callable[[], object] = lambda: None
        """Called when what was not looked at during a load may have changed; set by the owner."""
        self._loader: BundleLoader | None = None
        self._applied: dict[str, Applied] = {}
        self._sightings: dict[str, Sighting] = {}
        self._loads: dict[str, _Load] = {}
        self._undecided: set[str] | None = None
        self._is_closed = False
        self.retiring = 0
        """Models that have no name any more and still answer requests."""

    def begin(self, loader: BundleLoader, bundles: Mapping[str, Found]) -> None:
        """Load the start-up set."""
        self._loader = loader
        self._undecided = set(bundles)
        for name in sorted(bundles):
            self._registry.set_loading(name)
        for name in sorted(bundles):
            self._start(name, bundles[name])
        self._decide_startup(None)

    def close(self) -> None:
        """Begin nothing more; loads that run end in nothing."""
        self._is_closed = True
        if self._loader is not None:
            self._threads.run(self._loader.rest)
        self._threads.close()

    @property
    def is_loading(self) -> bool:
        """True while a load thread works, which nothing can interrupt."""
        return bool(self._loads)

    def observed(self, look: Look) -> float | None:
        """Take note of a look, and do what has settled.

        Returns:
            Seconds after which to look again, because something has not settled; None when nothing
            waits for that.
        """
        if self._is_closed or self._loader is None:
            return None
        if not self._settings.is_followed:
            self._list(look)
            return None
        now_ns = self._clock.now_ns()
        self._sightings = observe(self._sightings, look.bundles, self._applied, now_ns)
        ready = settled(self._sightings, now_ns, self._quiet_ns) - self._loads.keys()
        removable = settled(self._sightings, now_ns, self._gone_ns) - self._loads.keys()
        self._apply(decide(self._applied, self._sightings, ready, removable))
        if any(sighting.looks == 1 and sighting.found for sighting in self._sightings.values()):
            self._threads.run(self._loader.prepare)
        unsettled = [s for name, s in self._sightings.items() if name not in self._loads]
        return wait_s(unsettled, now_ns, quiet_ns=self._quiet_ns, gone_ns=self._gone_ns)

    def _list(self, look: Look) -> None:
        """Keep the index equal to the repositories, where nothing is loaded for being there."""
        for entry in self._registry.index():
            if entry.state is ModelState.UNLOADED and entry.name not in look.bundles:
                self._registry.remove(entry.name)
        for name in look.bundles:
            if not self._registry.knows(name):
                self._registry.set_unloaded(name, "not loaded")

    def load(self, name: str, found: Found | None) -> Ticket[None]:
        """Load, or load again, because somebody asked for it.

        Args:
            name: the model's.
            found: its bundle, as it is now; None when there is none.

        Returns:
            Resolved when the model serves; failed with `NotPossibleNow` and the reason when it
            cannot be loaded.

        Raises:
            ModelNotFound: there is no such bundle.
            ShuttingDown: the server drains.
        """
        if self._is_closed or self._loader is None:
            raise ShuttingDown
        if found is None:
            raise BundleNotFound(name)
        ticket: Ticket[None] = Ticket()
        applied = self._applied.get(name)
        if name not in self._loads and applied == Applied(found, True):
            ticket.resolve(None)
            return ticket
        self._start(name, found)
        self._loads[name].waiters.append(ticket)
        return ticket

    def unload(self, name: str, *, with_dependents: bool = False) -> None:
        """Stop serving a name, because somebody asked for it; what it is asked already is answered.

        Args:
            name: the model's.
            with_dependents: so for the models that a meta model alone has use for.

        Raises:
            ModelNotFound: nothing of that name is known.
        """
        if not self._registry.knows(name):
            raise ModelNotFound(name)
        dependents = []
        if with_dependents and self._registry.is_serving(name):
            model, metas = self._registry.get(name), self._registry.metas()
            dependents = dependents_of(model, metas, self._settings.exposed_models)
        if name in self._loads:
            self._loads[name].is_unwanted = True  # it is unloaded when the load has ended
        self._applied.pop(name, None)
        was_serving = self._registry.is_serving(name)
        self._retire(self._registry.set_unloaded(name, "unloaded"))
        if was_serving:
            self._gone(name, "unloaded")
        for dependent in dependents:
            if self._registry.is_serving(dependent) or dependent in self._loads:
                self.unload(dependent)

    def _gone(self, name: str, reason: str) -> None:
        """Tell that a model does not serve any more."""
        self._events.model_removed(name, reason)
        self._relations.tell_removed(name, reason)
        self._try_again(name)

    def _try_again(self, name: str) -> None:
        """Load meta models that were refused because they call `name`, which was one."""
        for refused in self._relations.to_try_again(name):
            if refused in self._applied:
                self._start(refused, self._applied[refused].found)

    def _apply(self, changes: Changes) -> None:
        if changes.adopt:
            self._adopt(changes.adopt)
        for name in changes.remove:
            self._applied.pop(name, None)
            self._failures.forget(name)
            self._relations.forget(name)
            was_adopted = name in changes.adopt.values()
            self._retire(self._registry.remove(name))
            if not was_adopted:
                self._gone(name, "its directory is gone")
        for name, found in changes.load.items():
            self._start(name, found)
        for name in (*changes.adopt, *changes.remove, *changes.load):
            self._sightings.pop(name, None)

    def _adopt(self, owners: Mapping[str, str]) -> None:
        found = {new: self._sightings[new].found for new in owners}
        places = {new: bundle.path for new, bundle in found.items() if bundle is not None}
        for model in self._registry.adopt(owners, places):
            self._retire(model)
        for new, bundle in found.items():
            assert bundle is not None, "a rename has a target"
            self._applied[new] = Applied(bundle, True)
            model = self._registry.get(new)
            self._scheduler.renamed(model.device)
            if self._loader is not None:
                self._loader.renamed(model, self._scheduler.command)
        self._events.models_renamed(owners)
        self._relations.tell_renamed(owners)
        for new in found:
            self._refuse_callers_of(self._registry.get(new))

    def _start(self, name: str, found: Found) -> None:
        """Load a bundle beside what serves; a load of the name that runs already will do."""
        if name in self._loads or self._loader is None:
            return
        self._loads[name] = load = _Load(found)
        self._registry.set_loading(name)
        run_alone(self._load(name, load))

    async def _load(self, name: str, load: _Load) -> None:
        assert self._loader is not None, "loads begin after the device is there"
        error: Exception | None = None
        try:
            known = self._executables_of(name)
            run = self._watch.run
            loaded = await self._threads.run(run, name, self._loader, load.found, known)
            if self._registry.is_serving(name):
                await self._groups.arrive(loaded.model, self._loads)
        except Exception as raised:  # noqa: BLE001  # the edge of a load: told
            error = raised
        else:
            error = self._serve(name, loaded)
        if error is not None and self._is_memory_made(name, load, error):
            return
        del self._loads[name]
        self._groups.look(self._loads)
        if error is None:
            self._failures.forget(name)
        else:
            self._note_failure(name, load.found, error)
        if load.is_unwanted and self._registry.knows(name):
            self.unload(name)
        for ticket in load.waiters:
            settle(ticket, name, error)
        self.look_soon()
        if not self._loads and not self._is_closed:
            self._threads.run(self._loader.rest)
        self._decide_startup(name)

    def _executables_of(self, name: str) -> Mapping[str, Executable]:
        """What the model that serves has compiled, by key: a new one may have the same programs."""
        return self._registry.get(name).compiled if self._registry.is_serving(name) else {}

    def _serve(self, name: str, loaded: Loaded) -> Exception | None:
        """Put a model into service; returns why it must not serve."""
        model = loaded.model
        if self._is_closed:
            return None
        refusal = self._relations.refusal_of(model)
        if refusal is not None:
            model.free()
            return refusal
        is_reload = self._registry.is_serving(name)
        if is_reload:
            model.device.statistics.continue_from(self._registry.get(name).device.statistics)
        if not model.is_meta:
            self._scheduler.add(model.device)
        self._retire(self._registry.set_ready(model))
        self._applied[name] = Applied(loaded.found, True)
        self._events.model_loaded(model, loaded.seconds, is_reload=is_reload)
        if model.is_meta and self._undecided is None:
            self._relations.tell_missing([model])
        self._refuse_callers_of(model)
        self._try_again(name)
        return None

    def _refuse_callers_of(self, model: Model) -> None:
        """Take meta models out of service that call a model which is one now."""
        for name, problem in self._relations.misled_by(model).items():
            self._retire(self._registry.withdraw(name, "it is refused"))
            self._note_failure(name, self._applied[name].found, problem)

    def _note_failure(self, name: str, found: Found, error: Exception) -> None:
        failure = self._failures.judge(name, found, error)
        self._applied[name] = Applied(failure.found, False)
        if failure.error is None:
            self._registry.set_loading(name, failure.found.problem)
        else:
            self._registry.set_failed(name, reason_of(failure.error))
            is_serving = self._registry.is_serving(name)
            self._events.model_failed(name, failure.error, is_serving=is_serving)
        if failure.retry_s is not None:
            self._later(failure.retry_s, self._retry, name, failure.found)

    def _retry(self, name: str, found: Found) -> None:
        if not self._is_closed and self._applied.get(name) == Applied(found, False):
            self._start(name, replace(found, problem=""))

    def _is_memory_made(self, name: str, load: _Load, error: Exception) -> bool:
        """Free the old model, if that may help, and load again when it is gone."""
        if (
            not self._settings.makes_room
            or load.has_made_room
            or not isinstance(error, DeviceMemoryFull)
        ):
            return False
        old = self._registry.withdraw(name, "reloading; the device has no room for two of it")
        if old is None:
            return False
        load.has_made_room = True
        self._events.model_removed(name, "the device has no room for the old beside the new one")
        self._retire(old, lambda: run_alone(self._load(name, load)))
        return True

    def _retire(self, model: Model | None, then: Callable[[], object] | None = None) -> None:
        """Free a model that lost its last name, when nothing uses it any more."""
        if model is None:
            return
        self.retiring += 1
        freed = partial(self._post, self._free, model, then)
        model.uses.retire(lambda: self._scheduler.remove(model.device, freed))

    def _free(self, model: Model, then: Callable[[], object] | None) -> None:
        self.retiring -= 1
        model.free()
        if then is not None and not self._is_closed:
            then()

    def _decide_startup(self, name: str | None) -> None:
        if self._undecided is None:
            return
        started = self._applied.keys()
        self._undecided.discard(name or "")
        if self._undecided:
            return
        self._undecided = None
        self._relations.tell_missing(self._registry.metas())
        loaded = sum(self._registry.is_serving(each) for each in started)
        self._events.startup_done(loaded, len(started) - loaded)
