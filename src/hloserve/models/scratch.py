"""Scratch memory of meta models: one block per worker, cut into buffers for the time of a request.

What lives here: `ScratchPool`, who waits for a part of it, and cutting arrays. What does not: which
request may ask (`hloserve.models.meta_run`). `reserve` never blocks; waiting for the reservation is
a step of its own.

Rules.
1. The block is cut into equal slots; a reservation is a run of them, and no slot has two owners.
2. Reservations are served in the order of arrival, whatever their sizes: one that needs the whole
   block is not passed for ever by smaller ones.
3. Memory comes as it was left: nobody pays for zeros that are overwritten.
"""

import threading
from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hloserve.core.tensors import Array

__all__ = ["Reservation", "ScratchPool", "Wanted", "cut_arrays", "fresh_memory", "needed_bytes"]

_ALIGNMENT_BYTES = 64
"""The CPU device takes arrays at such addresses without a copy."""

Wanted = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and element type of one array."""


class Reservation:
    """A run of slots: waited for, then held, then given back.

    Attributes:
        slots: how many.
        memory: bytes of the block; empty until it is granted.

    Threading: `wait` on one thread; the rest on any.
    """

    __slots__ = ("_granted", "_pool", "_start", "memory", "slots")

    def __init__(self, pool: "ScratchPool", slots: int) -> None:
        self._pool = pool
        self.slots = slots
        self._start: int | None = None
        self._granted = threading.Event()
        self.memory: Array = np.empty(0, np.uint8)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the memory; True when it is held.

        Args:
            timeout_s: how long; None for as long as it takes, or until `cancel`. After that the
                reservation is not in the queue any more.
        """
        self._granted.wait(timeout_s)
        self.cancel()
        return self._start is not None

    def cancel(self) -> None:
        """Leave the queue; what is held already stays held. Wakes who waits."""
        self._pool.withdraw(self)
        self._granted.set()

    def release(self) -> None:
        """Give the memory back.

        Raises:
            RuntimeError: it is not held, or was given back before.
        """
        self._pool.release(self)


class ScratchPool:
    """A block of memory that requests share, one after the other. Any thread.

    Args:
        capacity_bytes: of the block; taken from the system when it is touched.
        slots: how many parts it has.

    Attributes:
        slot_bytes: size of one part.
    """

    def __init__(self, capacity_bytes: int, slots: int) -> None:
        self.slot_bytes = max(1, capacity_bytes // slots // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._is_held = [False] * slots
        self._block: Array | None = None
        self._waiting: deque[Reservation] = deque()
        self._lock = threading.Lock()

    @property
    def capacity_bytes(self) -> int:
        """What one request can have at most."""
        return self.slot_bytes * len(self._is_held)

    @property
    def used_bytes(self) -> int:
        """What is held now, in whole slots."""
        return self.slot_bytes * sum(self._is_held)

    @property
    def waiting(self) -> int:
        """Reservations that are not granted yet."""
        return len(self._waiting)

    def reserve(self, nbytes: int) -> Reservation:
        """Queue for as many slots in a row as hold `nbytes`; granted at once if it can be.

        Raises:
            ValueError: it is nothing, or more than the block.
        """
        if not 0 < nbytes <= self.capacity_bytes:
            raise ValueError(
                f"{nbytes} bytes of scratch memory were asked for; a request may have 1 to"
                f" {self.capacity_bytes} (metas.scratch_bytes)"
            )
        reservation = Reservation(self, -(-nbytes // self.slot_bytes))
        with self._lock:
            self._waiting.append(reservation)
            self._grant()
        return reservation

    def withdraw(self, reservation: Reservation) -> None:
        """Take a reservation out of the queue; ignored when it is not in it."""
        with self._lock:
            if reservation in self._waiting:
                self._waiting.remove(reservation)
                self._grant()

    def release(self, reservation: Reservation) -> None:
        """Free the slots of a reservation, and serve who waits.

        Raises:
            RuntimeError: it does not hold any.
        """
        with self._lock:
            start, reservation._start = reservation._start, None
            if start is None:
                raise RuntimeError("scratch memory was given back twice, or is not held")
            reservation.memory = reservation.memory[:0]
            self._mark(start, reservation.slots, is_held=False)
            self._grant()

    def _grant(self) -> None:
        """Serve the queue from its front, as far as there is room."""
        while self._waiting:
            first = self._waiting[0]
            start = self._find(first.slots)
            if start is None:
                return
            self._waiting.popleft()
            self._mark(start, first.slots, is_held=True)
            if self._block is None:
                self._block = fresh_memory(self.capacity_bytes)
            begin = start * self.slot_bytes
            first.memory = self._block[begin : begin + first.slots * self.slot_bytes]
            first._start = start
            first._granted.set()

    def _find(self, slots: int) -> int | None:
        run = 0
        for place, is_held in enumerate(self._is_held):
            run = 0 if is_held else run + 1
            if run == slots:
                return place - slots + 1
        return None

    def _mark(self, start: int, slots: int, *, is_held: bool) -> None:
        self._is_held[start : start + slots] = [is_held] * slots


def fresh_memory(nbytes: int) -> Array:
    """Aligned bytes of nobody else; untouched pages cost nothing."""
    memory = np.empty(nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + nbytes]


def needed_bytes(wanted: Sequence[Wanted]) -> int:
    """Room for arrays, with the gaps that alignment makes."""
    return sum(_aligned(prod(shape) * dtype.itemsize) for shape, dtype in wanted)


def cut_arrays(memory: Array, wanted: Sequence[Wanted]) -> list[Array]:
    """Cut arrays from the front of a memory, one after the other.

    Args:
        memory: aligned bytes, at least `needed_bytes` of them.
        wanted: shapes and element types.

    Returns:
        Aligned, writable, not initialised; views of `memory`.

    Raises:
        ValueError: they do not fit.
    """
    if needed_bytes(wanted) > len(memory):
        raise ValueError(f"arrays of {needed_bytes(wanted)} bytes do not fit {len(memory)} bytes")
    arrays, start = [], 0
    for shape, dtype in wanted:
        size = prod(shape) * dtype.itemsize
        arrays.append(memory[start : start + size].view(dtype).reshape(shape))
        start += _aligned(size)
    return arrays


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
