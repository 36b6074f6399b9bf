"""What a failed load means, and when the bundle is tried again.

What lives here: decisions over errors, and how often each bundle has been tried. What does not:
loads, and what is done about their failures (`hloserve.server.repository`). Loop thread.

Rules.
1. A bundle that changed while it was read has not failed: it is looked at again.
2. A bundle that failed is tried again after a pause when the same files may load another time:
   there was no memory, or the machine was at fault. The pauses grow until it loads.
3. Every other bundle waits until its files change.
"""

import errno
from dataclasses import dataclass, replace

from hloserve.core.causes import causes
from hloserve.core.errors import BackendFailed, HloserveError
from hloserve.models.repository_look import Found
from hloserve.server.loading import BundleChanged

__all__ = ["RETRY_S", "Failure", "LoadFailures"]

RETRY_S = (5.0, 15.0, 60.0, 300.0)
"""Pauses between tries of a bundle for which there was no memory; the last one repeats."""

_PASSING = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ENOSPC}


@dataclass(frozen=True, slots=True)
class Failure:
    """What is made of a load that ended without a model.

    Attributes:
        found: the state that was tried, as later looks are compared with it.
        error: what to tell; None when the bundle only changed, which `found` says.
        retry_s: seconds until it is tried again; None to wait for a change of its files.
    """

    found: Found
    error: HloserveError | None
    retry_s: float | None


class LoadFailures:
    """Judges failures, by what they are and by how many there were.

    Args:
        quiet_s: how long a change must have been left alone before it counts.
        is_watched: looks go on after the start, so that every change is found by one.
    """

    def __init__(self, quiet_s: float, *, is_watched: bool) -> None:
        self._quiet_s = quiet_s
        self._is_watched = is_watched
        self._tries: dict[str, int] = {}

    def judge(self, name: str, found: Found, error: Exception) -> Failure:
        """Say what a failure means; it counts as one more try of the name.

        Args:
            name: the model's.
            found: the state that was tried.
            error: what the load raised; what is none of ours becomes `BackendFailed`.
        """
        if isinstance(error, BundleChanged):
            # Whatever it has become is a difference to this, also nothing.
            changed = replace(found, problem=str(error))
            return Failure(changed, None, None if self._is_watched else self._quiet_s)
        if not isinstance(error, HloserveError):
            error = BackendFailed("load", name, f"{type(error).__name__}: {error}")
        if not (error.retryable or _may_pass(error)):
            return Failure(found, error, None)
        tries = self._tries.get(name, 0)
        self._tries[name] = tries + 1
        return Failure(found, error, RETRY_S[min(tries, len(RETRY_S) - 1)])

    def forget(self, name: str) -> None:
        """Begin with the first pause again: the name has been loaded, or is gone."""
        self._tries.pop(name, None)


def _may_pass(error: BaseException | None) -> bool:
    """True for a fault of the machine that no change of the bundle mends: its retry may succeed."""
    return any(
        isinstance(each, OSError) and each.errno in _PASSING
        for each in causes(error, with_contexts=False)
    )
