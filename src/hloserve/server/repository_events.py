"""What a repository is told at its making, and whom it tells.

What lives here: the settings and the seams of `hloserve.server.repository`. Immutable; what is
called is called on the loop thread, but for the beginning of a load.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hloserve.models.model import Model

__all__ = ["RepositoryEvents", "RepositorySettings"]


class RepositoryEvents(Protocol):
    """Hears what became of bundles; the log, metrics and progress do.

    Threading: loop thread, except where a method says otherwise.
    """

    def model_loading(self, name: str) -> None:
        """A load begins. Threading: a load thread, so that it is told before anything runs."""
        ...

    def model_slow(self, name: str, seconds: float) -> None:
        """A load has taken this long already, and goes on."""
        ...

    def model_loaded(self, model: Model, seconds: float, *, is_reload: bool) -> None:
        """A model serves from now on; its load took so long."""
        ...

    def model_failed(self, name: str, error: Exception, *, is_serving: bool) -> None:
        """A bundle could not be loaded; the model before it may go on."""
        ...

    def models_renamed(self, owners: Mapping[str, str]) -> None:
        """Models serve under other names, all since the same instant: new name to old name."""
        ...

    def model_removed(self, name: str, reason: str) -> None:
        """Nothing serves under a name any more."""
        ...

    def sub_model_missing(self, meta: str, model: str, reason: str) -> None:
        """A meta model that serves calls a model that does not, or will not for long."""
        ...

    def startup_done(self, loaded: int, failed: int) -> None:
        """The start-up set is decided."""
        ...


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """How a repository behaves.

    Attributes:
        quiet_s: how long a change must have been left alone before it counts.
        gone_s: how long a bundle must have been gone before its model goes.
        is_watched: looks go on after the start, so that every change is found by one.
        is_followed: what the looks find is done; else new names are listed only.
        makes_room: a reload for which there is no memory beside the old model takes the old one's,
            at the price that the name does not serve meanwhile.
        exposed_models: models that clients call although meta models call them; ``*`` for all.
    """

    quiet_s: float
    gone_s: float
    is_watched: bool
    is_followed: bool
    makes_room: bool
    exposed_models: tuple[str, ...] = ()
