"""Bringing the requests of several sub-calls to a queue in one step, so that they share batches.

What lives here: waiting until all of them are ready. What does not: who makes them
(`hloserve.server.metas`) and batches (`hloserve.engine.scheduling`). Loop thread only.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hloserve.core.errors import HloserveError
from hloserve.engine.dispatcher import Post
from hloserve.engine.scheduling.queued_request import QueuedRequest

__all__ = ["JointSubmit", "Member", "Submit"]

Submit: TypeAlias = Callable[[Sequence[QueuedRequest]], object]
"""Queues the parts of a request, as `Scheduler.submit` does."""


class Member:
    """Submits for one of the calls; call it once, or `leave`."""

    __slots__ = ("_is_done", "_joint")

    def __init__(self, joint: "JointSubmit") -> None:
        self._joint = joint
        self._is_done = False

    def __call__(self, requests: Sequence[QueuedRequest]) -> None:
        """Submit with the others."""
        self._is_done = True
        self._joint.add(requests)

    def leave(self) -> None:
        """Have nothing to submit, so that the others need not wait. Ignored after a submission."""
        if not self._is_done:
            self([])


class JointSubmit:
    """Submits when the last of its members has come.

    Args:
        submit: queues them all.
        post: runs it a moment later: the call that comes last is then waiting as well, and may be
            failed or cancelled like the others.
        members: how many there are.
    """

    def __init__(self, submit: Submit, post: Post, members: int) -> None:
        self._submit = submit
        self._post = post
        self._missing = members
        self._requests: list[QueuedRequest] = []

    def add(self, requests: Sequence[QueuedRequest]) -> None:
        """Take the requests of one member, perhaps none."""
        self._requests += requests
        self._missing -= 1
        if not self._missing:
            self._post(self._flush)

    def _flush(self) -> None:
        waiting = [request for request in self._requests if not request.is_settled]
        if not waiting:
            return
        try:
            self._submit(waiting)
        except HloserveError as error:
            for request in waiting:
                request.fail(error)
