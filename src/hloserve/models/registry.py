"""The models of this worker and where each stands.

What lives here: name to model, and what the repository index says. What does not: loading
(`hloserve.models.loader`). Loop thread only: loaders hand their results over by a post.
"""

from dataclasses import dataclass

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

    def set_loading(self, name: str) -> None:
        """Note that a bundle is being loaded. At start, call it for all of them first."""
        self._set(name, _Entry(ModelState.LOADING, None, "loading"))

    def set_ready(self, model: Model) -> None:
        """Serve a model."""
        self._set(model.name, _Entry(ModelState.READY, model, ""))

    def set_failed(self, name: str, reason: str) -> None:
        """Note why a bundle could not be loaded."""
        self._set(name, _Entry(ModelState.FAILED, None, reason))

    def remove(self, name: str) -> Model | None:
        """Forget a name; returns its model, which the caller frees once it is idle."""
        entry = self._entries.pop(name, None)
        return None if entry is None else entry.model

    def get(self, name: str) -> Model:
        """The model to serve a request with.

        Raises:
            ModelNotFound: there is no such name.
            ModelNotReady: it is loading, or its load failed, or names are not known yet. Retryable.
        """
        entry = self._entries.get(name)
        if entry is None:
            if self.is_discovering:
                raise ModelNotReady(name, "the server is starting")
            raise ModelNotFound(name)
        if entry.model is None:
            raise ModelNotReady(name, entry.reason)
        return entry.model

    def knows(self, name: str) -> bool:
        """True for every name of the repository, in whatever state."""
        return name in self._entries

    def models(self) -> list[Model]:
        """The models that serve, by name."""
        by_name = sorted(self._entries.items())
        return [entry.model for _, entry in by_name if entry.model is not None]

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
        return self._is_decided and any(
            entry.state is ModelState.READY for entry in self._entries.values()
        )

    def _set(self, name: str, entry: _Entry) -> None:
        self._entries[name] = entry
        if not any(entry.state is ModelState.LOADING for entry in self._entries.values()):
            self._is_decided = True
