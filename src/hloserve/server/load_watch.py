"""When loads begin, and which of them take long.

What lives here: telling it. What does not: which bundles are loaded, and when their turn comes
(`hloserve.server.repository`); there may be a thousand that wait for a load thread.
"""

from collections.abc import Mapping
from threading import Event
from traceback import clear_frames

from hloserve.core.causes import causes
from hloserve.core.clock import Later
from hloserve.engine.backend import Executable
from hloserve.engine.dispatcher import Post
from hloserve.models.repository_look import Found
from hloserve.server.loading import BundleLoader, Loaded
from hloserve.server.repository_events import RepositoryEvents

__all__ = ["SLOW_S", "LoadWatch"]

SLOW_S = 30.0
"""A load that takes this long is told of, and again after each doubling."""


class LoadWatch:
    """Runs loads, and tells of them.

    Args:
        events: hears it.
        later: runs something on the loop thread after a while.
        post: hands something over to the loop thread.
    """

    def __init__(self, events: RepositoryEvents, later: Later, post: Post) -> None:
        self._events = events
        self._later = later
        self._post = post

    def run(
        self, name: str, loader: BundleLoader, found: Found, known: Mapping[str, Executable]
    ) -> Loaded:
        """Load a bundle now; arguments and errors are those of the loader. Load threads."""
        ended = Event()
        self._events.model_loading(name)
        self._post(self._later, SLOW_S, self._look, name, ended, SLOW_S)
        try:
            return loader(found, known)
        except Exception as error:
            _let_go(error)
            raise
        finally:
            ended.set()

    def _look(self, name: str, ended: Event, seconds: float) -> None:
        if not ended.is_set():
            self._events.model_slow(name, seconds)
            self._later(seconds, self._look, name, ended, 2 * seconds)


def _let_go(error: BaseException | None) -> None:
    """Let an error hold nothing of what the load had made: compiled programs are megabytes each.

    It lives in a cycle with the frame that caught it, until the collector comes, which is seldom.
    """
    for each in causes(error):
        clear_frames(each.__traceback__)
