"""The weights of all models of a device: where each stands, and what there is room for.

What lives here: entries, their states, and the choice of what goes. What does not: loading and
freeing, locks and threads (`hloserve.engine.residency.weight_cache`, which guards all of this with
its lock). No effects on the device.

Rules.
1. Weights that are leased, borrowed, pinned or being loaded are not chosen to go.
2. What is on the device or on its way there, the pinned aside, is at most the budget. Two
   exceptions: weights larger than the budget, which are then alone, and leased ones under which
   the budget shrank, which go when they are given back.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from hloserve.core.logging import log_event
from hloserve.engine.backend import Buffer
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.budget import Budget, MemoryLimits, plan_budget
from hloserve.engine.residency.eviction import Usage
from hloserve.engine.residency.floors import Floor
from hloserve.engine.residency.host_weights import HostCopy, WeightsSource

__all__ = ["Entry", "Place", "ResidentSet"]

log = logging.getLogger(__name__)


class Place(Enum):
    """Where weights are."""

    ABSENT = auto()
    LOADING = auto()
    RESIDENT = auto()


@dataclass(eq=False, slots=True)
class Entry:
    """The weights of one model.

    Attributes:
        floor: the least that is kept of them.
        place: on the device or not.
        buffers: on the device, in argument order.
        copy: in the memory of the host; those that a device computes in, too.
        leases: of dispatches.
        borrows: of runs before the model serves.
        scratch_bytes: what its programs were seen to take beside weights.
        is_gone: the model was discarded.
        may_exceed: it is larger than the budget, and is loaded all the same, alone.
    """

    model: DeviceModel
    source: WeightsSource
    floor: Floor
    place: Place = Place.ABSENT
    buffers: Sequence[Buffer] = ()
    copy: HostCopy | None = None
    leases: int = 0
    borrows: int = 0
    scratch_bytes: int = 0
    is_gone: bool = False
    may_exceed: bool = False

    @property
    def nbytes(self) -> int:
        """What the weights take."""
        return self.source.nbytes

    @property
    def is_pinned(self) -> bool:
        """Never evicted, and not counted in the budget."""
        return self.floor is Floor.DEVICE

    @property
    def is_idle(self) -> bool:
        """It may be evicted."""
        return (
            self.place is Place.RESIDENT
            and not self.leases
            and not self.borrows
            and not self.is_pinned
        )


@dataclass
class ResidentSet:
    """All entries of a device.

    Attributes:
        limits: what the operator allows.
        is_awaited: says whether requests wait for a model. Any thread.
        entries: by model.
        budget: what follows of the limits and of the entries.
        is_over: more is on the device than the budget, because it was leased when that shrank.
    """

    limits: MemoryLimits
    is_awaited: Callable[[DeviceModel], bool]
    entries: dict[DeviceModel, Entry] = field(default_factory=dict)
    usage: Usage[DeviceModel] = field(default_factory=Usage)
    budget: Budget = field(init=False)
    is_over: bool = False

    def __post_init__(self) -> None:
        self.budget = plan_budget(self.limits, 0, 0)

    def add(self, entry: Entry) -> None:
        """Take in the weights of a model that is loaded."""
        self.entries[entry.model] = entry
        self.usage.add(entry.model, entry.nbytes)

    def remove(self, model: DeviceModel) -> Entry | None:
        """Forget a model; None when it is not here."""
        entry = self.entries.pop(model, None)
        if entry is not None:
            self.usage.remove(model)
        return entry

    @property
    def counted(self) -> list[Entry]:
        """What the budget counts: on the device or on its way, and not pinned."""
        return [e for e in self.entries.values() if e.place is not Place.ABSENT and not e.is_pinned]

    @property
    def counted_bytes(self) -> int:
        """How much that is."""
        return sum(entry.nbytes for entry in self.counted)

    @property
    def on_device_bytes(self) -> int:
        """Weights on the device or on their way, pinned or not."""
        entries = list(self.entries.values())  # in one step: others may add to them
        return sum(entry.nbytes for entry in entries if entry.place is not Place.ABSENT)

    @property
    def pinned_bytes(self) -> int:
        """Weights of all pinned models, loaded or not."""
        return sum(entry.nbytes for entry in self.entries.values() if entry.is_pinned)

    @property
    def max_scratch_bytes(self) -> int:
        """What one model was seen to take beside weights, at most."""
        return max((entry.scratch_bytes for entry in self.entries.values()), default=0)

    @property
    def free_bytes(self) -> int:
        """What of the budget is not taken by weights that must stay."""
        kept = sum(entry.nbytes for entry in self.counted if not entry.is_idle)
        return max(0, self.budget.on_demand_bytes - kept)

    def replan(self) -> None:
        """Compute the budget again: entries, floors or scratch have changed."""
        before = self.budget
        now = plan_budget(self.limits, self.max_scratch_bytes, self.pinned_bytes)
        if now == before:
            return
        self.budget = now
        is_useless = not now.on_demand_bytes and any(
            not entry.is_pinned and entry.nbytes for entry in self.entries.values()
        )
        is_bad = now.is_over_committed or is_useless
        log_event(
            log, "weight_budget", level=logging.WARNING if is_bad else logging.INFO,
            pool_bytes=now.pool_bytes, pinned_bytes=self.pinned_bytes,
            on_demand_bytes=now.on_demand_bytes, scratch_bytes=self.max_scratch_bytes,
            hint="pinned models take all of it: unpin some, or raise it" if is_bad else None,
        )  # fmt: skip

    def excess(self) -> list[Entry]:
        """Who has to go, of those that may, for what is here to be within the budget.

        Weights that are larger than the budget may stay while they are alone.
        """
        counted = self.counted
        over = sum(entry.nbytes for entry in counted) - self.budget.on_demand_bytes
        if over <= 0:
            self.is_over = False
            return []
        if len(counted) == 1 and counted[0].may_exceed:
            self.is_over = False
            return []
        victims = self._pick(self.idle(), over)
        self.is_over = over > sum(entry.nbytes for entry in victims)
        return victims

    def room_for(self, entry: Entry) -> list[Entry] | None:
        """Who has to go so that a model can come; None when those that may are not enough."""
        if entry.is_pinned or not entry.nbytes:
            return []
        counted = self.counted
        over = sum(e.nbytes for e in counted) + entry.nbytes - self.budget.on_demand_bytes
        idle = self.idle()
        victims = self._pick(idle, over)
        if sum(e.nbytes for e in victims) >= over:
            entry.may_exceed = False
            return victims
        if not all(e.is_idle for e in counted):
            return None
        if not entry.may_exceed:
            entry.may_exceed = True
            log_event(
                log, "weights_larger_than_budget", level=logging.WARNING, model=entry.model.name,
                weight_bytes=entry.nbytes, budget_bytes=self.budget.on_demand_bytes,
                hint="they are loaded all the same, with no others beside them",
            )  # fmt: skip
        return idle

    def idle(self) -> list[Entry]:
        """All who may go."""
        return [entry for entry in self.entries.values() if entry.is_idle and entry.nbytes]

    def _pick(self, entries: Iterable[Entry], needed_bytes: int) -> list[Entry]:
        models = [entry.model for entry in entries]
        victims = self.usage.pick_victims(models, needed_bytes, self.is_awaited)
        return [self.entries[model] for model in victims]
