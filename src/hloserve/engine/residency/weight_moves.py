"""Bringing weights to a device and taking them off it, within a budget.

What lives here: `WeightMoves`: waiting for room, loading, evicting, giving memory back. What does
not: what it is done for (`hloserve.engine.residency.weight_cache`) and who goes
(`hloserve.engine.residency.resident_set`).

Rules.
1. One lock guards all entries. It is not held while weights are read, transferred or freed.
2. Room is reserved before a load begins, and what had to go for it is freed by the same thread
   before that: memory never passes the budget meanwhile.
3. A dispatch waits for weights that others have borrowed, since they come back by themselves; it
   fails for those of other dispatches, which end only after it. New loads of load threads wait
   while a dispatch does.
4. A load that fails leaves nothing on the device, and its model as it was.
"""

import threading
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from hloserve.core.clock import Clock
from hloserve.core.errors import DeviceMemoryFull, ModelNotFound
from hloserve.engine.backend import Backend, Buffer
from hloserve.engine.residency.floors import Floor
from hloserve.engine.residency.host_weights import HostCopy
from hloserve.engine.residency.resident_set import Entry, Place, ResidentSet

__all__ = ["Freed", "WeightMoves", "Why"]

_PATIENCE_S = 60.0
"""How long a load thread waits for room that dispatches have: it comes, or the load is tried again
later."""


class Why(Enum):
    """What a load is for, which decides for whom it waits."""

    DISPATCH = auto()
    WARM_UP = auto()
    PIN = auto()
    AHEAD = auto()  # for nobody: it is not worth waiting


class Freed:
    """What left the device or the host, still to be given back outside of the lock."""

    __slots__ = ("buffers", "copy", "nbytes")

    def __init__(self, buffers: Sequence[Buffer], copy: HostCopy | None, nbytes: int) -> None:
        self.buffers, self.copy, self.nbytes = buffers, copy, nbytes


class WeightMoves:
    """Moves weights of the entries of a set.

    Args:
        backend: the device.
        entries: whose weights; guarded by `lock` from now on.
        clock: measures loading.

    Attributes:
        lock: guards everything here, but `bring` and `give_back`, which are called without it.
        is_host: the device computes in the memory of the host: its buffers are our arrays.
        waiting: threads that wait for room or for another thread's load.
        loads: that ended well.
        loaded_bytes: what they brought.
        evictions: of weights, to make room.
    """

    def __init__(self, backend: Backend, entries: ResidentSet, clock: Clock) -> None:
        self.is_host = backend.is_host
        self.lock = threading.Lock()
        self.waiting = 0
        self.loads = self.loaded_bytes = self.evictions = 0
        self._backend = backend
        self._set = entries
        self._clock = clock
        self._changed = threading.Condition(self.lock)
        self._waiting_dispatches = 0

    def bring(self, entry: Entry, why: Why) -> bool:
        """Have weights on the device, and lease or borrow them if that is what they are for.

        Returns:
            False when they are not there, because it is not worth waiting for room.

        Raises:
            WeightsProblem: they cannot be read.
            DeviceMemoryFull: there is no room, and none will come while the caller waits.
            BackendFailed: they cannot be transferred.
            ModelNotFound: the model was discarded meanwhile.

        Threading: any thread, without the lock; waits.
        """
        with self.lock:
            victims = self._wait_for_room(entry, why)
            if victims is None:
                return entry.place is Place.RESIDENT
            freed = self.evict(victims)
            entry.place = Place.LOADING
        self.give_back(freed)
        started_ns = self._clock.now_ns()
        copy: HostCopy | None = None
        buffers: Sequence[Buffer] | None = None
        try:
            copy = entry.copy or entry.source.read()
            buffers = self._to_device(copy)
        finally:
            with self.lock:
                freed = self._end_load(entry, copy, buffers)
                if entry.place is Place.RESIDENT:
                    self._count(entry, why)
                    self._set.usage.learn_load(
                        entry.model, (self._clock.now_ns() - started_ns) * 1e-9
                    )
                if self._set.is_over:
                    freed += self.evict(self._set.excess())
                self._changed.notify_all()
            self.give_back(freed)
            if entry.is_gone:
                entry.source.close()
        if entry.is_gone:
            raise ModelNotFound(entry.model.name)
        return True

    def evict(self, entries: Iterable[Entry]) -> list[Freed]:
        """Take idle weights off the device to make room. With the lock."""
        freed = [self.take_off(entry) for entry in entries]
        self.evictions += len(freed)
        return freed

    def take_off(self, entry: Entry) -> Freed:
        """Take weights off the device, and off the host unless their floor keeps them there.

        With the lock.
        """
        buffers, entry.buffers = entry.buffers, ()
        entry.place = Place.ABSENT
        copy = None
        if entry.floor is not Floor.SYSTEM or entry.is_gone:
            copy, entry.copy = entry.copy, None
        return Freed(buffers, copy, entry.nbytes)

    def replan(self) -> list[Freed]:
        """Compute the budget again, and evict down to it. With the lock."""
        self._set.replan()
        return self.evict(self._set.excess())

    def changed(self) -> None:
        """Let those who wait look again. With the lock."""
        self._changed.notify_all()

    def give_back(self, freed: Iterable[Freed]) -> int:
        """Give memory back; how many bytes of the device it was. Without the lock."""
        total = 0
        for each in freed:
            self._backend.free(each.buffers)
            if each.copy is not None:
                each.copy.release(is_unused=self.is_host)
            total += each.nbytes
        return total

    def make_room(self) -> int:
        """Take all idle weights off the device; how many bytes they were. Without the lock."""
        with self.lock:
            freed = [self.take_off(entry) for entry in self._set.idle()]
        return self.give_back(freed)

    def is_blocked(self, entry: Entry) -> bool:
        """True when its room is taken by dispatches, which end only after the one that asks."""
        return self._set.room_for(entry) is None and any(
            e.leases for e in self._set.counted if e is not entry
        )

    @property
    def is_held_up(self) -> bool:
        """True while a dispatch waits, and weights are borrowed. With the lock."""
        return bool(self._waiting_dispatches) and any(e.borrows for e in self._set.counted)

    def _wait_for_room(self, entry: Entry, why: Why) -> list[Entry] | None:
        """Wait until a load may begin: who goes for it. None when none is to begin."""
        is_urgent = why in (Why.DISPATCH, Why.PIN)
        give_up_ns = self._clock.now_ns() + round(_PATIENCE_S * 1e9)
        while not entry.is_gone:
            if entry.place is Place.RESIDENT:
                self._count(entry, why)
                return None
            if entry.place is Place.ABSENT and (is_urgent or not self._waiting_dispatches):
                victims = self._set.room_for(entry)
                if victims is not None:
                    return victims
                is_late = why is Why.WARM_UP and self._clock.now_ns() >= give_up_ns
                if is_late or (is_urgent and self.is_blocked(entry)):
                    raise DeviceMemoryFull(entry.nbytes, self._set.free_bytes)
            if why is Why.AHEAD:
                return None
            self.waiting += 1
            self._waiting_dispatches += is_urgent
            self._changed.wait(_PATIENCE_S)
            self.waiting -= 1
            self._waiting_dispatches -= is_urgent
        raise ModelNotFound(entry.model.name)

    def _count(self, entry: Entry, why: Why) -> None:
        if why is Why.DISPATCH:
            entry.leases += 1
        elif why is Why.WARM_UP:
            entry.borrows += 1

    def _to_device(self, copy: HostCopy) -> Sequence[Buffer]:
        try:
            return self._backend.to_device(copy.arrays)
        except DeviceMemoryFull:
            if not self.make_room():
                raise
            return self._backend.to_device(copy.arrays)

    def _end_load(
        self, entry: Entry, copy: HostCopy | None, buffers: Sequence[Buffer] | None
    ) -> list[Freed]:
        """Note how a load ended; a copy is there when it was read, buffers when they arrived."""
        is_new = copy is not entry.copy
        if buffers is None or entry.is_gone:
            entry.place = Place.ABSENT
            freed = [Freed(buffers or (), copy if is_new else None, 0)]
            if entry.is_gone:
                self._set.remove(entry.model)
                freed += [self.take_off(entry), *self.replan()]
            return freed
        entry.buffers, entry.place = buffers, Place.RESIDENT
        self.loads += 1
        self.loaded_bytes += entry.nbytes
        if self.is_host or entry.floor is Floor.SYSTEM:
            entry.copy = copy
        elif is_new and copy is not None:
            copy.release(is_unused=False)  # the transfer may go on
        return []
