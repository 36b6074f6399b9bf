"""The models of this worker and where each stands.

What lives here: name to model, and what the repository index says. What does not: loading
(`hloserve.models.loader`) and deciding what is loaded (`hloserve.models.changes`). Loop thread
only: loaders hand their results over by a post.

Rule: what takes a model's place gives it back, so that whoever changed the registry retires it. A
model may serve under two names for a while, and is given back when it has lost the last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hloserve.core.errors import ModelNotFound, ModelNotReady
from hloserve.core.requests import ModelIndexEntry, ModelState
from hloserve.models.model import Model

__all__ = ["Registry"]


@dataclass(frozen=True, slots=True)
class _Entry:
    state: ModelState
    model: Model | None
    reason: str


class Registry:
    """Maps served names to models. Loop thread only.

    Attributes:
        is_discovering: the names of the repository are not known yet: an unknown name may still
            turn up, so whoever asks for it is told to come again.
    """

    def __init__(self) -> None:
        self.is_discovering = False
        self._entries: dict[str, _Entry] = {}
        self._is_decided = False
        self._watchers: list[Callable[[], None]] = []

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after every change."""
        self._watchers.append(watcher)

    def set_loading(self, name: str, reason: str = "loading") -> None:
        """Note that a bundle is being loaded; what serves under the name goes on.

        At start, call it for all bundles first.
        """
        entry = self._entries.get(name)
        if entry is None or entry.model is None:
            self._set(name, _Entry(ModelState.LOADING, None, reason))

    def set_ready(self, model: Model) -> Model | None:
        """Serve a model; returns the one whose place it takes, to be retired."""
        old = self._model(model.name)
        self._set(model.name, _Entry(ModelState.READY, model, ""))
        return self._if_nameless(old)

    def set_failed(self, name: str, reason: str) -> None:
        """Note why a bundle could not be loaded; what serves under the name goes on."""
        entry = self._entries.get(name)
        if entry is not None and entry.model is not None:
            self._set(name, _Entry(ModelState.READY, entry.model, f"reload failed: {reason}"))
        else:
            self._set(name, _Entry(ModelState.FAILED, None, reason))

    def set_unloaded(self, name: str, reason: str) -> Model | None:
        """Serve nothing under a name that the repository has; returns the model, to be retired."""
        old = self._model(name)
        self._set(name, _Entry(ModelState.UNLOADED, None, reason))
        return self._if_nameless(old)

    def withdraw(self, name: str, reason: str) -> Model | None:
        """Stop serving under a name until its load has ended; returns the model, to be retired."""
        old = self._model(name)
        self._set(name, _Entry(ModelState.LOADING, None, reason))
        return self._if_nameless(old)

    def adopt(self, owners: Mapping[str, str], places: Mapping[str, Path]) -> list[Model]:
        """Let names take over the models of others, all in one step.

        The others keep them too, until something else is said of them.

        Args:
            owners: new name to the name whose model it takes, as things are before the step.
            places: the bundle's directory, by new name.

        Returns:
            Models that lost their last name, to be retired.
        """
        before = {name: self._model(name) for name in owners}
        taken = {name: self._model(owner) for name, owner in owners.items()}
        for name, model in taken.items():
            if model is not None:
                renamed = model.renamed(name, places[name])
                self._set(name, _Entry(ModelState.READY, renamed, ""))
        return [m for old in before.values() if (m := self._if_nameless(old)) is not None]

    def remove(self, name: str) -> Model | None:
        """Forget a name; returns its model, to be retired, unless it serves under another one."""
        entry = self._entries.pop(name, None)
        self._tell()
        return self._if_nameless(None if entry is None else entry.model)

    def get(self, name: str) -> Model:
        """The model to serve a request with.

        Raises:
            ModelNotFound: there is no such name, or its model was unloaded.
            ModelNotReady: it is loading, or its load failed, or names are not known yet. Retryable.
        """
        entry = self._entries.get(name)
        if entry is None:
            if self.is_discovering:
                raise ModelNotReady(name, "the server is starting")
            raise ModelNotFound(name)
        if entry.model is None:
            if entry.state is ModelState.UNLOADED:
                raise ModelNotFound(name, reason=f"is {entry.reason}; load it first")
            raise ModelNotReady(name, entry.reason)
        return entry.model

    def knows(self, name: str) -> bool:
        """True for every name of the repository, in whatever state."""
        return name in self._entries

    def is_serving(self, name: str) -> bool:
        """True when requests to the name are served."""
        return self._model(name) is not None

    def models(self) -> list[Model]:
        """The models that serve, by name."""
        by_name = sorted(self._entries.items())
        return [entry.model for _, entry in by_name if entry.model is not None]

    def metas(self) -> list[Model]:
        """The meta models that serve, by name."""
        return [model for model in self.models() if model.is_meta]

    def close(self) -> None:
        """End the hook processes, whatever runs in them: nothing is served any more."""
        for model in self.models():
            if model.hook_processes is not None:
                model.hook_processes.kill()

    def index(self) -> list[ModelIndexEntry]:
        """The repository index, by name. Bundles have no versions."""
        return [
            ModelIndexEntry(name, "", entry.state, entry.reason)
            for name, entry in sorted(self._entries.items())
        ]

    @property
    def is_ready(self) -> bool:
        """True once the start-up set is decided and while at least one model serves.

        A bundle that failed does not keep the server unready, and one that is loaded later does
        not make it unready again.
        """
        return self._is_decided and any(e.model is not None for e in self._entries.values())

    def _set(self, name: str, entry: _Entry) -> None:
        self._entries[name] = entry
        if not any(entry.state is ModelState.LOADING for entry in self._entries.values()):
            self._is_decided = True
        self._tell()

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher()

    def _model(self, name: str) -> Model | None:
        entry = self._entries.get(name)
        return None if entry is None else entry.model

    def _if_nameless(self, model: Model | None) -> Model | None:
        """The model, if nothing serves it any more under any name."""
        if model is None:
            return None
        entries = self._entries.values()
        is_serving = any(e.model is not None and e.model.device is model.device for e in entries)
        return None if is_serving else model
