"""Processes that run the hooks of one bundle, for hooks that hold the interpreter.

What lives here: starting them, asking them, and what becomes of one that dies or does not come
back. What does not: what runs in them (`hloserve.models.hook_process`) and hooks on threads
(`hloserve.models.task_threads`).

Rules.
1. A process serves one request at a time. One that dies fails that request, and is started again
   for the next one.
2. A request is answered at its deadline, whatever its hook does. The hook may go on for
   `grace_s`, since many a slow one comes back; then its process is ended.
3. A process runs the files that the bundle had when it was loaded, or none: when they have changed
   meanwhile, one that died is not started again before the bundle is reloaded.

Each process has a thread here that waits for it, with the interpreter let go.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import msgspec

from hloserve.bundle.fingerprint import Fingerprint, take_fingerprint
from hloserve.core.errors import (
    BadRequest,
    DeadlineExceeded,
    HloserveError,
    HookFailed,
    HookProblem,
    InvalidInput,
    Overloaded,
    Unavailable,
)
from hloserve.core.logging import log_event
from hloserve.core.requests import NEVER_NS
from hloserve.core.tensors import Array
from hloserve.core.tickets import Ticket
from hloserve.engine.dispatcher import Post
from hloserve.models.hook_child import HookChild
from hloserve.models.hook_frames import (
    Answer,
    Move,
    Question,
    Refusal,
    Started,
    read_tensors,
    write_tensors,
)

__all__ = ["GRACE_S", "HookProcesses"]

log = logging.getLogger(__name__)

GRACE_S = 2.0
"""How long a hook may go on after nobody waits for it any more, before its process is ended."""

_LOOK_S = 0.25
_PATIENCE_S = 1.0
_RETRY_NS = 1_000_000_000
_MAX_WAITING = 4096
_BLOCK_KEPT_BYTES = 32 << 20
_encode = msgspec.msgpack.encode
_Told = msgspec.msgpack.Decoder(Started | Answer | Refusal)


class _Job(NamedTuple):
    ticket: Ticket[list[Array]]
    role: str
    names: Sequence[str]
    arrays: Sequence[Array]
    deadline_ns: int


class HookProcesses:
    """The hook processes of one load of a bundle.

    Args:
        count: how many.
        bundle: its directory.
        name: the model's.
        post: brings results to the loop thread.
        grace_s: how long a hook may go on when nobody waits for it any more.

    Attributes:
        name: the model's, also after a rename.
        start_timeout_s: how long the hook file may run; None for as long as it likes.
    """

    def __init__(
        self, count: int, bundle: Path, name: str, post: Post, grace_s: float = GRACE_S
    ) -> None:
        self.name = name
        self.grace_s = grace_s
        self._bundle = bundle
        self._post = post
        self.start_timeout_s: float | None = None
        self._files: Fingerprint | None = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._workers = [_Worker(self, number) for number in range(count)]

    def start(self, timeout_s: float | None) -> None:
        """Start all and wait until each has run the hook file.

        Raises:
            HookProblem: one cannot; all are ended.

        Threading: a load thread.
        """
        self._files = take_fingerprint(self._bundle)
        self.start_timeout_s = timeout_s
        for worker in self._workers:
            worker.thread.start()
        for worker in self._workers:
            worker.has_started.wait()
        problems = [worker.problem for worker in self._workers if worker.problem]
        if problems:
            self.close()
            raise HookProblem(self.name, problems[0])

    def run(
        self, role: str, tensors: Mapping[str, Array], deadline_ns: int = NEVER_NS
    ) -> Ticket[list[Array]]:
        """Call a hook in one of the processes.

        Args:
            role: ``preprocess`` or ``postprocess``.
            tensors: what it gets; unchanged until the ticket is settled.
            deadline_ns: monotonic instant at which the ticket fails.

        Returns:
            Resolved with arrays in the order of the specs; or failed with `InvalidInput`,
            `HookFailed`, `DeadlineExceeded` or `Unavailable`, on the loop thread.

        Raises:
            Overloaded: too many wait already. Retryable.

        Threading: loop thread.
        """
        waiting = self._jobs.qsize()
        if waiting >= _MAX_WAITING:
            raise Overloaded(
                f"{waiting} hooks of model {self.name!r} wait for its {len(self._workers)} hook"
                " processes; try again later"
            )
        ticket: Ticket[list[Array]] = Ticket()
        self._jobs.put(_Job(ticket, role, list(tensors), list(tensors.values()), deadline_ns))
        return ticket

    def move(self, bundle: Path, name: str) -> None:
        """Follow a bundle that was renamed. Threading: loop thread."""
        self._bundle, self.name = bundle, name
        for worker in self._workers:
            worker.moves = True

    def close(self) -> None:
        """End the processes after the calls that run or wait. Does not wait. Idempotent."""
        for _ in self._workers:
            self._jobs.put(None)

    def kill(self) -> None:
        """End the processes now, whatever runs in them. Any thread."""
        for worker in self._workers:
            if (child := worker.child) is not None:
                child.kill()

    @property
    def restarts(self) -> int:
        """Processes that were started in the place of others. Any thread."""
        return sum(worker.restarts for worker in self._workers)

    @property
    def process_ids(self) -> list[int]:
        """Numbers of the processes that run. Any thread."""
        children = [worker.child for worker in self._workers]
        return [child.process.pid for child in children if child is not None]

    # What the workers' threads ask for.

    def next_job(self) -> _Job | None:
        """The next call, None when there will be none."""
        return self._jobs.get()

    def open_child(self) -> "HookChild":
        """Start a process.

        Raises:
            Unavailable: the bundle's files are not those that were loaded.
        """
        if take_fingerprint(self._bundle) != self._files:
            raise Unavailable(
                f"a hook process of model {self.name!r} ended, and the bundle's files are no longer"
                " those that were loaded; mend the bundle, or reload it"
            )
        return HookChild(self._bundle)

    def place(self) -> Move:
        """Where the bundle is now."""
        return Move(str(self._bundle), self.name)

    def deliver(self, ticket: Ticket[list[Array]], outcome: list[Array] | HloserveError) -> None:
        """Settle a ticket on the loop thread."""
        settle = ticket.fail if isinstance(outcome, HloserveError) else ticket.resolve
        try:
            self._post(settle, outcome)
        except RuntimeError:
            return  # the loop has closed: nobody waits any more


class _Worker:
    """A thread and the process that it waits for."""

    def __init__(self, pool: HookProcesses, number: int) -> None:
        self._pool = pool
        self.child: HookChild | None = None
        self.has_started = threading.Event()
        self.problem = ""
        self.moves = False
        self.restarts = 0
        self._failed_ns = 0
        name = f"hook-process-{number}"
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)

    def _work(self) -> None:
        try:
            self._start()
        except HookProblem as error:
            self.problem = "; ".join(error.findings)
        except Exception as error:  # noqa: BLE001  # the load waits for this thread
            self.problem = f"its hook process could not be started: {error!r}"
        self.has_started.set()
        while (job := self._pool.next_job()) is not None:
            if not job.ticket.is_cancelled:
                self._serve(job)
            del job  # or its arrays live on until the next one comes
        self._end()

    def _restart(self) -> HookChild:
        """Start it again; a start that has just failed is not tried for every request."""
        now_ns = time.monotonic_ns()
        if self._failed_ns and now_ns - self._failed_ns < _RETRY_NS:
            raise HookProblem(self._pool.name, self.problem)
        try:
            child = self._start()
        except HloserveError as error:
            self._failed_ns, self.problem = now_ns, str(error)
            raise
        self._failed_ns = 0
        self.restarts += 1
        return child

    def _start(self) -> HookChild:
        """Start the process and wait for its hook file.

        Raises:
            HookProblem, Unavailable: it cannot serve.
        """
        child = self._pool.open_child()
        self.child = child
        timeout_s = self._pool.start_timeout_s
        try:
            if not child.connection.poll(timeout_s):
                self._end()
                problem = f"model.py still runs after {timeout_s:g} s in a hook process"
                raise HookProblem(self._pool.name, problem)
            told = _Told.decode(child.connection.recv_bytes())
        except (EOFError, OSError):
            problem = f"its process ended while it ran: {self._end(_PATIENCE_S)}"
            raise HookProblem(self._pool.name, f"model.py: {problem}") from None
        assert isinstance(told, Started), "it is the first thing that is told"
        if told.problem:
            self._end()
            raise HookProblem(self._pool.name, told.problem)
        return child

    def _serve(self, job: _Job) -> None:
        outcome: list[Array] | HloserveError
        try:
            now_ns = time.monotonic_ns()
            if now_ns >= job.deadline_ns:
                raise DeadlineExceeded(self._pool.name, late_ns=now_ns - job.deadline_ns)
            child = self._living() or self._restart()
            question = self._ask(child, job)
            if not self._wait(child, job, question):
                return
            outcome = self._read(child, job)
        except HloserveError as error:
            outcome = error
        except (EOFError, OSError) as error:
            outcome = self._buried(job, error)
        except Exception as error:  # noqa: BLE001  # this thread must go on, whatever came
            self._end()  # who knows what it would say next
            outcome = HookFailed(self._pool.name, job.role, repr(error))
            outcome.__cause__ = error
        self._pool.deliver(job.ticket, outcome)

    def _living(self) -> HookChild | None:
        """The process, if it has not ended since its last call."""
        if self.child is not None and self.child.has_ended:
            self._log_end("", self._end())
        return self.child

    def _ask(self, child: HookChild, job: _Job) -> bytes:
        """Lay the tensors into the block, and make the question of them."""
        if self.moves:
            self.moves = False
            child.connection.send_bytes(_encode(self._pool.place()))
        try:
            stored = write_tensors(job.names, job.arrays, child.block)
        except OSError as error:
            reason = f"its inputs do not fit into memory: {error.strerror}"
            raise HookFailed(self._pool.name, job.role, reason) from error
        return _encode(Question(job.role, stored, child.block.nbytes))

    def _wait(self, child: HookChild, job: _Job, question: bytes) -> bool:
        """Ask and wait for the answer; False when the job is over and its process was ended."""
        child.connection.send_bytes(question)
        gone_ns = 0
        while True:
            now_ns = time.monotonic_ns()
            left_s = (job.deadline_ns - now_ns) / 1e9
            if child.connection.poll(_LOOK_S if gone_ns else max(0.0, min(left_s, _LOOK_S))):
                return True
            if child.has_ended and not child.connection.poll():
                raise EOFError  # though what it has started keeps the connection open
            if gone_ns:
                if now_ns - gone_ns > self._pool.grace_s * 1e9:
                    self._give_up(job)
                    return False
            elif now_ns >= job.deadline_ns:
                late = DeadlineExceeded(self._pool.name, late_ns=now_ns - job.deadline_ns)
                self._pool.deliver(job.ticket, late)
                gone_ns = now_ns
            elif job.ticket.is_cancelled:
                gone_ns = now_ns

    def _read(self, child: HookChild, job: _Job) -> list[Array] | HloserveError:
        told = _Told.decode(child.connection.recv_bytes())
        if isinstance(told, Refusal):
            if told.is_callers_fault:
                return InvalidInput(told.text)
            return HookFailed(self._pool.name, job.role, told.text)
        assert isinstance(told, Answer), "a question is answered or refused"
        child.block.follow(told.block_bytes)
        try:
            arrays = read_tensors(told.tensors, child.block)
        except BadRequest as error:  # more strings than a message may have
            return HookFailed(self._pool.name, job.role, str(error))
        child.block.shrink(_BLOCK_KEPT_BYTES)
        return arrays

    def _buried(self, job: _Job, error: Exception) -> HookFailed:
        """The process has died, or could not be started."""
        how = self._end(_PATIENCE_S) or str(error)
        self._log_end(job.role, how)
        reason = f"its process ended ({how}); the next request starts another"
        return HookFailed(self._pool.name, job.role, reason)

    def _log_end(self, role: str, how: str) -> None:
        log_event(
            log, "hook_process_ended", level=logging.ERROR, model=self._pool.name, hook=role,
            how=how,
        )  # fmt: skip

    def _give_up(self, job: _Job) -> None:
        self._end()
        log_event(
            log, "hook_did_not_return", level=logging.ERROR, model=self._pool.name, hook=job.role,
            seconds_after_the_deadline=self._pool.grace_s,
        )  # fmt: skip

    def _end(self, patience_s: float = 0.0) -> str:
        child, self.child = self.child, None
        return "" if child is None else child.end(patience_s)
