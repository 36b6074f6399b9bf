"""Weights of more models than a device can hold: loaded when they are needed, evicted for others.

What lives here: `WeightCache`: leases of dispatches, models that come and go, and what an operator
sees and changes. What does not: moving weights (`hloserve.engine.residency.weight_moves`), who goes
(`hloserve.engine.residency.resident_set`), where weights come from
(`hloserve.engine.residency.host_weights`), how many bytes there are
(`hloserve.engine.residency.budget`).

Rule: a dispatch leases, a load thread borrows. Weights that are leased or borrowed stay.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from typing_extensions import override

from hloserve.bundle.weights import WeightsFile
from hloserve.core.clock import Clock
from hloserve.core.errors import (
    HloserveError,
    ModelNotFound,
    WeightsNotResident,
    WeightsProblem,
    WeightsUnreadable,
)
from hloserve.engine.backend import Backend, Buffer
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.budget import MemoryLimits
from hloserve.engine.residency.floors import (
    Floor,
    ModelResidency,
    ResidencyMode,
    ResidencyStatus,
)
from hloserve.engine.residency.host_weights import HostStore, PrivateStore, WeightsSource
from hloserve.engine.residency.placement import DeviceWeights
from hloserve.engine.residency.prefetching import Ahead
from hloserve.engine.residency.resident_set import Entry, Place, ResidentSet
from hloserve.engine.residency.weight_moves import Freed, WeightMoves, Why

__all__ = ["WeightCache"]


class WeightCache(DeviceWeights):
    """Has the weights that are needed on a device, within a budget.

    Args:
        backend: the device.
        limits: what the operator allows of its memory.
        clock: measures loading.
        is_external: a controller decides what is on the device, by floors.
        is_awaited: says whether requests wait for a model. Any thread.
        store: keeps copies in the memory of the host; None for memory of this process.
        compaction_interval: loads after which all idle weights are taken off; 0 for never.
    """

    def __init__(
        self,
        backend: Backend,
        limits: MemoryLimits,
        clock: Clock,
        *,
        is_external: bool = False,
        is_awaited: Callable[[DeviceModel], bool] = lambda _: False,
        store: HostStore | None = None,
        compaction_interval: int = 0,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._is_external = is_external
        self._store = store or PrivateStore()
        self._compaction_interval = compaction_interval
        self._set = ResidentSet(limits, is_awaited)
        self._entries = self._set.entries
        self._moves = WeightMoves(backend, self._set, clock)
        self._lock = self._moves.lock
        self._probing = threading.Lock()  # one model's scratch is measured at a time
        self._ahead: Ahead[Entry] = Ahead(self._load_ahead, "prefetch")
        self._default_floor = Floor.UNPINNED if self._moves.is_host else Floor.SYSTEM
        self._hits = self._compactions = self._wait_ns = self._loads_at_compaction = 0

    # Leases of dispatches.

    # Who asks about a model without having leased it may find that it was discarded just now.

    @override
    def is_resident(self, model: DeviceModel) -> bool:
        entry = self._entries.get(model)
        return entry is None or entry.place is Place.RESIDENT

    @override
    def fits(self, model: DeviceModel) -> bool:
        entry = self._entries.get(model)
        if entry is None or entry.place is not Place.ABSENT:
            return True
        with self._lock:
            return not self._moves.is_blocked(entry)

    @override
    def lease(self, model: DeviceModel) -> Sequence[Buffer]:
        entry = self._entries[model]
        with self._lock:
            self._set.usage.use(model)
            if entry.place is Place.RESIDENT:
                entry.leases += 1
                self._hits += 1
                return entry.buffers
        return self._lease_absent(entry)

    def _lease_absent(self, entry: Entry) -> Sequence[Buffer]:
        if self._is_external and not entry.is_pinned:
            raise WeightsNotResident(entry.model.name)
        started_ns = self._clock.now_ns()
        try:
            self._moves.bring(entry, Why.DISPATCH)
        except WeightsProblem as problem:
            reason = "; ".join(problem.findings)
            raise WeightsUnreadable(entry.model.name, reason) from problem
        finally:
            self._wait_ns += self._clock.now_ns() - started_ns
        return entry.buffers

    @property
    @override
    def is_held_up(self) -> bool:
        with self._lock:
            return self._moves.is_held_up

    @override
    def release(self, model: DeviceModel) -> None:
        entry = self._entries[model]
        moves = self._moves
        with self._lock:
            entry.leases -= 1
            if entry.leases or not (
                moves.waiting or self._set.is_over or self._compaction_interval
            ):
                return
            freed = moves.evict(self._set.excess()) if self._set.is_over else []
            if self._is_compaction_due():
                freed += self._compact()
            moves.changed()
        moves.give_back(freed)

    @override
    def prefetch(self, model: DeviceModel) -> None:
        entry = self._entries.get(model)
        if entry is None or entry.place is not Place.ABSENT:
            return
        if entry.is_pinned or not self._is_external:
            self._ahead.want(entry)

    def _load_ahead(self, entry: Entry) -> None:
        with suppress(HloserveError):  # the lease tries again, and tells
            self._moves.bring(entry, Why.AHEAD)

    @override
    def make_room(self) -> int:
        with self._lock:
            freed = self._compact()
        return self._moves.give_back(freed)

    # Models come, warm up and go.

    @property
    @override
    def measures_scratch(self) -> bool:
        return self._backend.memory() is not None

    @override
    def admit(self, model: DeviceModel, weights: WeightsFile, floor: Floor | None = None) -> None:
        floor = floor or self._default_floor
        try:
            source = WeightsSource(model.name, weights, self._store)
        except BaseException:
            weights.close()
            raise
        entry = Entry(model, source, floor)
        with self._lock:
            self._set.add(entry)
            freed = self._moves.replan()
        self._moves.give_back(freed)
        try:
            if floor is Floor.SYSTEM:
                entry.copy = source.read()
            if floor is Floor.DEVICE or not source.nbytes:
                self._moves.bring(entry, Why.PIN)
        except BaseException:
            self.discard(model)
            raise

    @override
    @contextmanager
    def borrow(self, model: DeviceModel) -> Iterator[Sequence[Buffer]]:
        entry = self._entries[model]
        self._moves.bring(entry, Why.WARM_UP)
        try:
            with self._measured(entry):
                yield entry.buffers
        finally:
            with self._lock:
                entry.borrows -= 1
                freed = self._moves.evict(self._set.excess()) if self._set.is_over else []
                if self._is_external and entry.is_idle and entry.nbytes:
                    freed.append(self._moves.take_off(entry))
                self._moves.changed()
            self._moves.give_back(freed)

    @contextmanager
    def _measured(self, entry: Entry) -> Iterator[None]:
        """Note what runs take beside weights, as far as the device's peak shows it.

        The peak only rises. When it does not, the runs took no more than others did before them.
        Weights that came meanwhile, for dispatches, are not scratch.
        """
        if not self.measures_scratch:
            yield
            return
        with self._probing:
            before, weights_before = self._backend.memory(), self._set.on_device_bytes
            yield
            after, weights_after = self._backend.memory(), self._set.on_device_bytes
        if before is None or after is None or after.peak_in_use_bytes is None:
            return
        if after.peak_in_use_bytes <= (before.peak_in_use_bytes or 0):
            return
        scratch = after.peak_in_use_bytes - before.in_use_bytes
        scratch -= max(0, weights_after - weights_before)
        with self._lock:
            entry.scratch_bytes = max(entry.scratch_bytes, scratch)
            freed = self._moves.replan()
        self._moves.give_back(freed)

    @override
    def renamed(self, model: DeviceModel, floor: Floor | None) -> None:
        if not self._is_external and model in self._entries:  # else a controller has set it
            self.set_floor(model, floor or self._default_floor)

    @override
    def is_servable(self, model: DeviceModel) -> bool:
        entry = self._entries.get(model)
        if entry is None or not self._is_external:
            return True
        return entry.is_pinned or entry.place is Place.RESIDENT

    @override
    def discard(self, model: DeviceModel) -> None:
        with self._lock:
            entry = self._entries.get(model)
            if entry is None or entry.is_gone:
                return
            assert not entry.leases, f"weights of model {model.name!r} are leased"
            entry.is_gone = True
            self._moves.changed()
            if entry.place is Place.LOADING:
                return  # whoever loads it does the rest
            self._set.remove(model)
            freed = [self._moves.take_off(entry), *self._moves.replan()]
        self._moves.give_back(freed)
        entry.source.close()

    @override
    def close(self) -> None:
        self._ahead.close()
        with self._lock:
            entries = list(self._entries.values())
            copies = [entry.copy for entry in entries if entry.copy is not None]
            sources = [entry.source for entry in entries if entry.place is not Place.LOADING]
            for entry in entries:
                entry.copy = None
        for copy in copies:
            copy.release(is_unused=False)
        for source in sources:
            source.close()
        self._store.close()

    # What an operator sees and changes.

    @override
    def status(self) -> ResidencyStatus:
        with self._lock:
            return ResidencyStatus(
                mode=ResidencyMode.EXTERNAL if self._is_external else ResidencyMode.SELF_MANAGED,
                max_bytes=self._set.budget.on_demand_bytes,
                pool_bytes=self._set.budget.pool_bytes,
                resident_bytes=self._set.counted_bytes,
                pinned_bytes=self._set.pinned_bytes,
                scratch_bytes=self._set.max_scratch_bytes,
                loads=self._moves.loads,
                evictions=self._moves.evictions,
                hits=self._hits,
                load_ns=self._wait_ns,
                loaded_bytes=self._moves.loaded_bytes,
                compactions=self._compactions,
                models={
                    model: ModelResidency(
                        floor=entry.floor,
                        weight_bytes=entry.nbytes,
                        is_on_device=entry.place is Place.RESIDENT,
                        is_on_host=entry.copy is not None,
                    )
                    for model, entry in self._entries.items()
                },
            )

    @override
    def set_floor(self, model: DeviceModel, floor: Floor) -> None:
        entry = self._entries.get(model)
        if entry is None:
            raise ModelNotFound(model.name)
        was = entry.floor
        if floor is was:
            return
        copy = entry.source.read() if floor is Floor.SYSTEM and entry.copy is None else None
        with self._lock:
            entry.floor = floor
            if entry.copy is None:
                entry.copy, copy = copy, None
            freed = self._moves.replan()
            if self._is_external and was is Floor.DEVICE and entry.is_idle:
                freed.append(self._moves.take_off(entry))
            is_in_use = self._moves.is_host and entry.place is not Place.ABSENT
            if floor is not Floor.SYSTEM and not is_in_use:
                freed.append(Freed((), entry.copy, 0))
                entry.copy = None
        if copy is not None:  # a load that ended meanwhile has brought one
            copy.release(is_unused=True)
        self._moves.give_back(freed)
        if floor is not Floor.DEVICE:
            return
        try:
            self._moves.bring(entry, Why.PIN)
        except BaseException:
            self.set_floor(model, was)
            raise

    @override
    def compact(self, reload: Sequence[DeviceModel]) -> int:
        with self._lock:
            freed = self._compact()
        self._moves.give_back(freed)
        if self._is_external:
            return 0
        return sum(self._reload(model) for model in reload)

    def _reload(self, model: DeviceModel) -> bool:
        with self._lock:
            entry = self._entries.get(model)
            if entry is None or entry.place is not Place.ABSENT or entry.is_pinned:
                return False
            if self._set.counted_bytes + entry.nbytes > self._set.budget.on_demand_bytes:
                return False
        try:
            return self._moves.bring(entry, Why.AHEAD)
        except HloserveError:
            return False  # its next request is told

    def _compact(self) -> list[Freed]:
        """Take all idle weights off the device. With the lock."""
        self._compactions += 1
        self._loads_at_compaction = self._moves.loads
        return [self._moves.take_off(entry) for entry in self._set.idle()]

    def _is_compaction_due(self) -> bool:
        interval = self._compaction_interval
        return bool(interval) and self._moves.loads - self._loads_at_compaction >= interval
