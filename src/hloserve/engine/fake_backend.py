"""A device made of NumPy, for tests and for workers without XLA.

What lives here: `FakeBackend`, its programs, and the `Gate` that holds executions. What does not:
anything that users meet. Like the CPU device it uses an aligned host array in place, so it shows
when staging memory is written too early. Threading as in `hloserve.engine.backend`.

A program is a JSON text::

    {"function": "scale", "inputs": ["tensor<4x3xf32>", "tensor<3xf32>"], "outputs": ["tensor<4x3xf32>"]}

`inputs` are the executable inputs, then the weights. An open extent, ``?``, fits any.
"""  # noqa: E501  # a program is one line

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from typing_extensions import override

from hloserve.core.errors import BackendFailed, DeviceMemoryFull, ProgramProblem
from hloserve.core.tensors import Array
from hloserve.engine.backend import (
    ALIGNMENT_BYTES,
    Backend,
    Buffer,
    Executable,
    MemoryStats,
    Program,
)
from hloserve.engine.programs.signature import Signature, TensorType, parse_tensor_type

__all__ = ["FUNCTIONS", "FakeBackend", "FakeBuffer", "FakeProgram", "Function", "Gate"]

Function: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
"""What a program computes: arguments to results, weights last."""


def _boom(arguments: Sequence[Array]) -> Sequence[Array]:
    raise RuntimeError("boom")


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "identity": lambda arguments: list(arguments),
        "first": lambda arguments: [arguments[0]],
        "scale": lambda arguments: [arguments[0] * arguments[1]],
        "affine": lambda arguments: [arguments[0] * arguments[1] + arguments[2]],
        "add": lambda arguments: [arguments[0] + arguments[1]],
        "total": lambda arguments: [arguments[0].sum(dtype=arguments[0].dtype)],
        "row_sum": lambda arguments: [
            arguments[0].reshape(len(arguments[0]), -1).sum(axis=1, dtype=arguments[0].dtype)
        ],
        "boom": _boom,
    }
)


class Gate:
    """Holds executions until they are let through; open when it is made.

    A test closes it, submits, waits for an arrival, looks, and opens it: overlap and coalescing
    without a sleep.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = True
        self._arrivals = 0

    def close(self) -> None:
        """Hold every execution from now on."""
        with self._changed:
            self._is_open = False

    def open(self) -> None:
        """Let all through, now and later."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def pass_through(self) -> None:
        """Arrive, and wait until the gate is open."""
        with self._changed:
            self._arrivals += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open)

    @property
    def arrivals(self) -> int:
        """Executions that have arrived since the gate was made."""
        return self._arrivals

    def wait_for_arrivals(self, count: int, timeout_s: float = 10.0) -> None:
        """Wait until `count` executions have arrived since the gate was made.

        Raises:
            TimeoutError: they have not.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._arrivals >= count, timeout_s):
                raise TimeoutError(f"{self._arrivals} of {count} executions arrived")


@dataclass(frozen=True, slots=True)
class FakeProgram:
    """A program and, since there is nothing to compile, an executable as well."""

    signature: Signature
    function: str


class FakeBuffer:
    """An array that pretends to be on a device."""

    __slots__ = ("array", "is_freed")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.is_freed = False


class FakeBackend(Backend):
    """A device that computes with NumPy, slow, short of memory or broken as it is told.

    Args:
        functions: what programs may name, beside `FUNCTIONS`.
        fail_when: an execution whose arguments it accepts raises.
        limit_bytes: memory of the device; None for no limit.

    Attributes:
        gate: holds executions.
        compiled: names of the models that `compile` was called for, in order.
        executed: shape of the first argument of each execution, in order.
        limit_bytes: memory of the device from now on; None for no limit.
    """

    def __init__(
        self,
        functions: Mapping[str, Function] | None = None,
        *,
        fail_when: Callable[[Sequence[Array]], bool] | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        self.gate = Gate()
        self.fail_when = fail_when
        self.compiled: list[str] = []
        self.executed: list[tuple[int, ...]] = []
        self._functions = {**FUNCTIONS, **(functions or {})}
        self.limit_bytes = limit_bytes
        self._in_use_bytes = 0
        self._peak_bytes = 0
        self._memory_lock = threading.Lock()

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
        try:
            text = json.loads(artifact)
            function = text["function"]
            inputs = tuple(parse_tensor_type(t) for t in text["inputs"])
            outputs = tuple(parse_tensor_type(t) for t in text["outputs"])
        except (ValueError, TypeError, KeyError) as error:
            raise ProgramProblem(source, f"not a program of the fake backend: {error!r}") from error
        if function not in self._functions:
            raise ProgramProblem(source, f"function {function!r} is not known")
        return FakeProgram(Signature(inputs, outputs), function)

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
        self._reserve(sum(array.nbytes for array in arrays))
        return [
            FakeBuffer(array if array.ctypes.data % ALIGNMENT_BYTES == 0 else array.copy())
            for array in arrays
        ]

    @override
    def execute(self, executable: Executable, arguments: Sequence[Buffer]) -> Sequence[Buffer]:
        assert isinstance(executable, FakeProgram), "an executable of another backend"
        arrays = [_content(buffer) for buffer in arguments]
        self.executed.append(arrays[0].shape if arrays else ())
        self.gate.pass_through()
        _check(executable.function, "argument", executable.signature.inputs, arrays)
        try:
            if self.fail_when is not None and self.fail_when(arrays):
                raise RuntimeError("told to fail")
            results = self._functions[executable.function](arrays)
        except Exception as error:
            raise BackendFailed("execution", executable.function, str(error)) from error
        owned = [np.array(result, order="C", copy=True) for result in results]
        self._reserve(sum(array.nbytes for array in owned))
        return [FakeBuffer(array) for array in owned]

    @override
    def to_host(self, buffers: Sequence[Buffer]) -> list[Array]:
        views = [_content(buffer).view() for buffer in buffers]
        for view in views:
            view.flags.writeable = False
        return views

    @override
    def free(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            assert isinstance(buffer, FakeBuffer), "a buffer of another backend"
            if not buffer.is_freed:
                buffer.is_freed = True
                with self._memory_lock:
                    self._in_use_bytes -= buffer.array.nbytes

    @override
    def memory(self) -> MemoryStats | None:
        if self.limit_bytes is None:
            return None
        with self._memory_lock:
            return MemoryStats(
                in_use_bytes=self._in_use_bytes,
                limit_bytes=self.limit_bytes,
                peak_in_use_bytes=self._peak_bytes,
            )

    @property
    def in_use_bytes(self) -> int:
        """Bytes of the buffers that are not freed."""
        return self._in_use_bytes

    def _reserve(self, needed_bytes: int) -> None:
        with self._memory_lock:
            if self.limit_bytes is not None:
                free_bytes = self.limit_bytes - self._in_use_bytes
                if needed_bytes > free_bytes:
                    raise DeviceMemoryFull(needed_bytes, free_bytes)
            self._in_use_bytes += needed_bytes
            self._peak_bytes = max(self._peak_bytes, self._in_use_bytes)


def _content(buffer: Buffer) -> Array:
    assert isinstance(buffer, FakeBuffer), "a buffer of another backend"
    if buffer.is_freed:
        raise BackendFailed("execution", "", "a buffer was used after it was freed")
    return buffer.array


def _check(function: str, role: str, types: Sequence[TensorType], arrays: Sequence[Array]) -> None:
    """Refuse arguments that are not of the program's types, as a compiler's runtime does."""
    if len(types) != len(arrays):
        raise BackendFailed(
            "execution", function, f"{len(arrays)} {role}s were given, it takes {len(types)}"
        )
    for place, (want, have) in enumerate(zip(types, arrays, strict=True)):
        fits = len(want.shape) == have.ndim and all(
            extent is None or extent == got
            for extent, got in zip(want.shape, have.shape, strict=True)
        )
        if not fits or have.dtype != want.dtype.numpy:
            got = f"{have.dtype}{list(have.shape)}"
            raise BackendFailed("execution", function, f"{role} {place} is {got}, it takes {want}")
