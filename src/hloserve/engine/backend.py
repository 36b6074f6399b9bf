"""The seam between the engine and whatever runs programs.

What lives here: what the engine asks of a device. What does not: the implementations
(`hloserve.engine.xla_backend` for PJRT, `hloserve.engine.fake_backend` for tests); one contract
suite covers both. Loading calls `read_program`, `compile` and, for weights, `to_device` from
loader threads; once a model serves, whoever runs the dispatch calls the rest.

Rules.
1. Foreign exceptions do not cross: what a method raises is one of our own types.
2. A buffer belongs to its backend, and to the caller until it is given to `free`.
3. `to_device` may alias an aligned host array, so whoever made the array keeps it untouched until
   the buffer is freed. What `to_host` returns never aliases an argument of the execution.
4. A device executes in the order of `execute`, one at a time. On one that runs ahead (`runs_ahead`)
   transfers of later dispatches go on meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hloserve.core.tensors import Array
from hloserve.engine.programs.notes import ProgramNotes
from hloserve.engine.programs.signature import Signature, TensorType

__all__ = [
    "ALIGNMENT_BYTES",
    "Backend",
    "Buffer",
    "Executable",
    "MemoryStats",
    "Program",
    "ProgramReader",
]

ALIGNMENT_BYTES = 64
"""Host memory at multiples of this goes to the CPU device without a copy; XLA's own constant."""

Buffer: TypeAlias = object
"""Device memory; only the backend that made it looks inside."""


class Program(Protocol):
    """A program that was read, not yet compiled."""

    @property
    def signature(self) -> Signature:
        """Argument and result types as written; extents may be open."""
        ...


class Executable(Protocol):
    """A compiled program."""

    @property
    def signature(self) -> Signature:
        """Argument and result types of what was compiled."""
        ...

    @property
    def notes(self) -> ProgramNotes:
        """What was done to the program before; kept by `serialise`."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """What the allocator of the device says of itself; None where it says nothing."""

    in_use_bytes: int
    limit_bytes: int | None = None
    peak_in_use_bytes: int | None = None
    pool_bytes: int | None = None


class ProgramReader(Protocol):
    """The part of a backend that needs no device: reading programs, and fixing their extents."""

    def read_program(self, artifact: bytes, source: str) -> Program:
        """Parse a program.

        Args:
            artifact: the bytes of a program file.
            source: the file's name, for error texts.

        Raises:
            ProgramProblem: the bytes are not a program this backend reads.

        Threading: any thread.
        """
        ...

    def specialise(self, program: Program, inputs: Sequence[TensorType]) -> Program:
        """Fix the open extents of a program's arguments; the program itself stays as it is.

        Args:
            program: one of this backend's.
            inputs: a static type per argument, of the program's element types and ranks.

        Raises:
            ProgramProblem: the program does not allow these extents.

        Threading: any thread.
        """
        ...


class Backend(ProgramReader, Protocol):
    """One device."""

    @property
    def platform(self) -> str:
        """Short name of the kind of device: ``cpu``, ``cuda``, ``fake``."""
        ...

    @property
    def device_kind(self) -> str:
        """What the vendor calls the device."""
        ...

    @property
    def runs_ahead(self) -> bool:
        """True when `to_device` and `execute` return before they are done.

        The next batch can be prepared meanwhile. What fails then is told by `to_host`.
        """
        ...

    @property
    def is_host(self) -> bool:
        """True when it computes in the memory of the host: an aligned array is its own buffer.

        So the CPU does, and whatever executes when it is called.
        """
        return self.platform == "cpu" or not self.runs_ahead

    def compile(self, program: Program, model: str) -> Executable:
        """Compile for this device; may take minutes, with the GIL released.

        Raises:
            BackendFailed: the compiler refused it; the cause is chained.
            ProgramProblem: it cannot be had in the precision that the operator wants.

        Threading: any thread.
        """
        ...

    def cache_key(self, program: Program) -> str:
        """Name what `compile` makes of a program: equal keys, equal machine code.

        It depends on the program and on all that changes the result: the compiler and its version,
        its options and flags, the device, the processor.

        Args:
            program: of static types.

        Returns:
            Lower-case hexadecimal digits: part of a file name.

        Threading: any thread.
        """
        ...

    def serialise(self, executable: Executable) -> bytes | None:
        """Write an executable down for `restore`; None when the device cannot.

        One that was restored is written down as well as one that was compiled.

        Threading: any thread.
        """
        ...

    def restore(self, payload: bytes, program: Program, model: str) -> Executable:
        """Make an executable of what `serialise` wrote for the same key.

        Raises:
            BackendFailed: it cannot; the cause is chained.

        Threading: any thread.
        """
        ...

    def to_device(self, arrays: Sequence[Array]) -> list[Buffer]:
        """Put host arrays on the device, one buffer each, in order.

        Args:
            arrays: C-contiguous; untouched until their buffers are freed. On CPU, one that is
                aligned to `ALIGNMENT_BYTES` is not copied; another one is, in the background.

        Raises:
            DeviceMemoryFull: no room. Retryable.
            BackendFailed: the transfer failed; the cause is chained.
        """
        ...

    def execute(self, executable: Executable, arguments: Sequence[Buffer]) -> Sequence[Buffer]:
        """Run a program; may return before it is done.

        Raises:
            DeviceMemoryFull: no room for the results. Retryable.
            BackendFailed: wrong arguments, or the run failed; the cause is chained.
        """
        ...

    def begin_to_host(self, buffers: Sequence[Buffer]) -> None:
        """Bring buffers to the host as soon as they are computed, for a `to_host` that comes.

        Never waits, never raises. On a device that does not run ahead it does nothing.
        """
        ...

    def to_host(self, buffers: Sequence[Buffer]) -> list[Array]:
        """Wait for buffers and give their content.

        Returns:
            One array per buffer, C-contiguous; may be a read-only view of device memory. It stays
            valid after its buffer is freed, for as long as the array is referenced.

        Raises:
            DeviceMemoryFull: no room for what the run makes. Retryable.
            BackendFailed: the run that makes a buffer failed; the cause is chained.
        """
        ...

    def free(self, buffers: Sequence[Buffer]) -> None:
        """Give buffers back; a second time is ignored."""
        ...

    def pin(self, memory: Array) -> bool:
        """Lock host memory in place, so that transfers read it without an intermediate copy.

        Args:
            memory: contiguous; kept until `unpin`.

        Returns:
            False when this device has no use for it, or the system refuses: transfers work, slower.
        """
        ...

    def unpin(self, memory: Array) -> None:
        """Undo `pin`, before the memory is given up; no transfer reads it any more."""
        ...

    def memory(self) -> MemoryStats | None:
        """What the allocator reports; None when the device reports nothing. Any thread."""
        ...
