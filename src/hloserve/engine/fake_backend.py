"""A device made of NumPy, for tests and for workers without XLA.

What lives here: `FakeBackend` and the `Gate` that holds executions. What does not:
its programs (`hloserve.engine.fake_programs`), its memory (`hloserve.engine.fake_memory`), and
anything that users meet. Like the CPU device it
uses an aligned host array in place, so it shows when staging memory is written too early. With
`runs_ahead` it executes on a thread of its own, in order, and reads the arguments only then, as an
accelerator does. Threading as in `hloserve.engine.backend`.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue

import numpy as np
from typing_extensions import override

from hloserve.core.errors import BackendFailed, HloserveError
from hloserve.core.tensors import Array
from hloserve.engine.backend import (
    ALIGNMENT_BYTES,
    Backend,
    Buffer,
    Executable,
    MemoryStats,
    Program,
)
from hloserve.engine.fake_memory import FakeBlock, FakeMemory
from hloserve.engine.fake_programs import (
    FUNCTIONS,
    FakeProgram,
    Function,
    check_arguments,
    read_fake_program,
)
from hloserve.engine.programs.signature import Signature, TensorType

__all__ = ["FakeBackend", "FakeBuffer", "Gate"]


class Gate:
    """Holds those who pass until they are let through; open when it is made.

    A test closes it, submits, waits for an arrival, looks, and opens it: overlap and coalescing
    without a sleep.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = True
        self._allowed = 0
        self._arrivals = 0

    def close(self) -> None:
        """Hold everybody from now on."""
        with self._changed:
            self._is_open, self._allowed = False, 0

    def open(self) -> None:
        """Let all through, now and later."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def let_through(self, count: int = 1) -> None:
        """Let that many through a closed gate, now or when they come."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def pass_through(self) -> None:
        """Arrive, and wait until the gate is open."""
        with self._changed:
            self._arrivals += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open or self._allowed)
            if not self._is_open:
                self._allowed -= 1

    @property
    def arrivals(self) -> int:
        """Who has arrived since the gate was made."""
        return self._arrivals

    def wait_for_arrivals(self, count: int, timeout_s: float = 10.0) -> None:
        """Wait until `count` have arrived since the gate was made.

        Raises:
            TimeoutError: they have not.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._arrivals >= count, timeout_s):
                raise TimeoutError(f"{self._arrivals} of {count} have arrived")


class FakeBuffer:
    """An array that pretends to be on a device.

    Attributes:
        array: its content; None while the run that makes it has not ended, or when it failed.
        run: makes it; None for what came from the host.
        block: the memory that it takes; None while it takes none.
        is_freed: it was given back.
    """

    __slots__ = ("array", "block", "is_freed", "run")

    def __init__(
        self, array: Array | None, block: FakeBlock | None = None, run: "_Run | None" = None
    ) -> None:
        self.array = array
        self.block = block
        self.run = run
        self.is_freed = False


class _Run:
    """An execution: what it reads and what it makes."""

    __slots__ = ("arguments", "ended", "error", "executable", "is_fetched", "results")

    def __init__(self, executable: FakeProgram, arguments: Sequence[FakeBuffer]) -> None:
        self.executable = executable
        self.arguments = arguments
        self.results = [FakeBuffer(None, run=self) for _ in executable.signature.outputs]
        self.ended = threading.Event()
        self.error: HloserveError | None = None
        self.is_fetched = False


class FakeBackend(Backend):
    """A device that computes with NumPy, slow, short of memory, broken or dead as it is told.

    Args:
        functions: what programs may name, beside `FUNCTIONS`.
        fail_when: an execution whose arguments it accepts raises.
        limit_bytes: memory of the device; None for no limit.
        is_contiguous: memory is had in one piece or not at all; see `FakeMemory`.
        runs_ahead: execute on a thread of its own, in order; `close` ends it.

    Attributes:
        gate: holds executions when they begin.
        transfer_gate: holds transfers to the device when they begin.
        compiled: names of the models that `compile` was called for, in order.
        executed: shape of the first argument of each execution, in order.
        most_in_flight: most executions that had been asked for and not been fetched, at any time.
        pinned: memory that was pinned and not unpinned.
        is_lost: from now on everything fails.
    """

    def __init__(
        self,
        functions: Mapping[str, Function] | None = None,
        *,
        fail_when: Callable[[Sequence[Array]], bool] | None = None,
        limit_bytes: int | None = None,
        is_contiguous: bool = False,
        runs_ahead: bool = False,
    ) -> None:
        self.gate = Gate()
        self.transfer_gate = Gate()
        self.fail_when = fail_when
        self.compiled: list[str] = []
        self.executed: list[tuple[int, ...]] = []
        self.most_in_flight = 0
        self.pinned: list[Array] = []
        self.is_lost = False
        self._functions = {**FUNCTIONS, **(functions or {})}
        self._memory = FakeMemory(limit_bytes, is_contiguous=is_contiguous)
        self._in_flight = 0
        self._lock = threading.Lock()
        self._runs: SimpleQueue[_Run | None] | None = None
        self._thread: threading.Thread | None = None
        if runs_ahead:
            self._runs = SimpleQueue()
            self._thread = threading.Thread(target=self._serve, name="fake-device", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread of a device that runs ahead, after what it was asked for."""
        if self._runs is not None and self._thread is not None:
            self._runs.put(None)
            self._thread.join()
            self._thread = None

    @property
    def limit_bytes(self) -> int | None:
        """Memory of the device; None for no limit. It may be set."""
        return self._memory.limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int | None) -> None:
        self._memory.limit_bytes = limit_bytes

    @property
    @override
    def runs_ahead(self) -> bool:
        return self._runs is not None

    @property
    @override
    def platform(self) -> str:
        return "fake"

    @property
    @override
    def device_kind(self) -> str:
        return "NumPy"

    @override
    def read_program(self, artifact: bytes, source: str) -> FakeProgram:
        return read_fake_program(artifact, source, self._functions)

    @override
    def specialise(self, program: Program, inputs: Sequence[TensorType]) -> FakeProgram:
        assert isinstance(program, FakeProgram), "a program of another backend"
        return FakeProgram(Signature(tuple(inputs), program.signature.outputs), program.function)

    @override
    def compile(self, program: Program, model: str) -> Executable:
        assert isinstance(program, FakeProgram), "a program of another backend"
        self.compiled.append(model)
        return program

    @override
    def cache_key(self, program: Program) -> str:
        assert isinstance(program, FakeProgram), "a program of another backend"
        return hashlib.sha256(f"{program.function} {program.signature}".encode()).hexdigest()

    @override
    def serialise(self, executable: Executable) -> bytes | None:
        assert isinstance(executable, FakeProgram), "an executable of another backend"
        return executable.function.encode()

    @override
    def restore(self, payload: bytes, program: Program, model: str) -> Executable:
        assert isinstance(program, FakeProgram), "a program of another backend"
        if payload != program.function.encode():
            raise BackendFailed("restoring", model, "the payload is of another program")
        return program

    @override
    def to_device(self, arrays: Sequence[Array]) -> list[Buffer]:
        self._check_alive("transfer to the device")
        self.transfer_gate.pass_through()
        buffers: list[Buffer] = []
        try:
            for array in arrays:
                block = self._memory.reserve(array.nbytes)
                is_aligned = array.ctypes.data % ALIGNMENT_BYTES == 0
                buffers.append(FakeBuffer(array if is_aligned else array.copy(), block))
        except HloserveError:
            self.free(buffers)
            raise
        return buffers

    @override
    def execute(self, executable: Executable, arguments: Sequence[Buffer]) -> Sequence[Buffer]:
        assert isinstance(executable, FakeProgram), "an executable of another backend"
        self._check_alive("execution")
        run = _Run(executable, [_usable(buffer) for buffer in arguments])
        with self._lock:
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        if self._runs is not None:
            self._runs.put(run)
            return run.results
        self._execute(run)
        if run.error is not None:
            self._fetched(run)
            raise run.error
        return run.results

    def _serve(self) -> None:
        """Execute in order what was asked for. Threading: the device's."""
        assert self._runs is not None, "only a device that runs ahead has a thread"
        while (run := self._runs.get()) is not None:
            self._execute(run)

    def _execute(self, run: _Run) -> None:
        try:
            self._compute(run)
        except HloserveError as error:
            run.error = error
        finally:
            run.arguments = ()  # what was freed meanwhile goes now
            run.ended.set()

    def _compute(self, run: _Run) -> None:
        function = run.executable.function
        arrays = [_content(buffer) for buffer in run.arguments]
        self.executed.append(arrays[0].shape if arrays else ())
        self.gate.pass_through()
        self._check_alive("execution")
        check_arguments(run.executable, arrays)
        try:
            if self.fail_when is not None and self.fail_when(arrays):
                raise RuntimeError("told to fail")
            results = self._functions[function](arrays)
        except Exception as error:
            raise BackendFailed("execution", function, str(error)) from error
        owned = [np.array(result, order="C", copy=True) for result in results]
        made = [FakeBuffer(array, self._memory.reserve(array.nbytes), run) for array in owned]
        with self._lock:
            freed = [buffer for buffer in run.results if buffer.is_freed]
            for buffer, new in zip(run.results, made, strict=True):
                buffer.array, buffer.block = new.array, new.block
        self._release(freed)  # given back while they were made

    @override
    def begin_to_host(self, buffers: Sequence[Buffer]) -> None:
        pass

    @override
    def to_host(self, buffers: Sequence[Buffer]) -> list[Array]:
        try:
            views = [_content(_usable(buffer)).view() for buffer in buffers]
        finally:
            for buffer in buffers:
                assert isinstance(buffer, FakeBuffer), "a buffer of another backend"
                if buffer.run is not None:
                    self._fetched(buffer.run)
        for view in views:
            view.flags.writeable = False
        return views

    def _fetched(self, run: _Run) -> None:
        """Count an execution as ended, once."""
        with self._lock:
            self._in_flight -= not run.is_fetched
            run.is_fetched = True

    @override
    def free(self, buffers: Sequence[Buffer]) -> None:
        with self._lock:
            fresh = [b for b in buffers if isinstance(b, FakeBuffer) and not b.is_freed]
            for buffer in fresh:
                buffer.is_freed = True
        self._release(fresh)

    def _release(self, buffers: Sequence[FakeBuffer]) -> None:
        for buffer in buffers:
            with self._lock:
                block, buffer.block = buffer.block, None
            if block is not None:
                self._memory.release(block)

    @override
    def pin(self, memory: Array) -> bool:
        self.pinned.append(memory)
        return True

    @override
    def unpin(self, memory: Array) -> None:
        self.pinned = [other for other in self.pinned if other is not memory]

    @override
    def memory(self) -> MemoryStats | None:
        if self.limit_bytes is None:
            return None
        return MemoryStats(
            in_use_bytes=self._memory.in_use_bytes,
            limit_bytes=self.limit_bytes,
            peak_in_use_bytes=self._memory.peak_bytes,
        )

    @property
    def in_use_bytes(self) -> int:
        """Bytes of the buffers that are not freed."""
        return self._memory.in_use_bytes

    @property
    def largest_free_bytes(self) -> int | None:
        """The largest array that fits now; None without a limit."""
        return self._memory.largest_free_bytes

    def _check_alive(self, operation: str) -> None:
        if self.is_lost:
            raise BackendFailed(operation, "", "the device is lost")


def _usable(buffer: Buffer) -> FakeBuffer:
    assert isinstance(buffer, FakeBuffer), "a buffer of another backend"
    if buffer.is_freed:
        raise BackendFailed("execution", "", "a buffer was used after it was freed")
    return buffer


def _content(buffer: FakeBuffer) -> Array:
    """The array of a buffer, waited for; raises what its run failed with."""
    if buffer.run is not None:
        buffer.run.ended.wait()
        if buffer.run.error is not None:
            raise buffer.run.error
    assert buffer.array is not None, "an ended run has made its arrays"
    return buffer.array
