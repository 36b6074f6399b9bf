"""Weights within a budget, of a device that is not there.

What lives here: the ways to choose who goes: that of the server, the least recently used, and one
that knows the future. What does not: when weights are needed (`benchmarks.sim.device`, or a list of
uses). The server's way is its own code: `ResidentSet` with its budget and `Usage`.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol, cast

from typing_extensions import override

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.budget import MemoryLimits
from hloserve.engine.residency.floors import Floor
from hloserve.engine.residency.host_weights import WeightsSource
from hloserve.engine.residency.resident_set import Entry, Place, ResidentSet

__all__ = ["Foreseeing", "LoadTime", "Lru", "Memory", "Ours", "Replay", "replay"]


@dataclass(frozen=True, slots=True)
class LoadTime:
    """What a load takes: a constant, and bytes at a bandwidth."""

    constant_s: float
    bytes_per_s: float

    def seconds(self, nbytes: int) -> float:
        """Of a load of so many bytes."""
        return self.constant_s + nbytes / self.bytes_per_s


class Memory(Protocol):
    """Holds weights, by the names of models."""

    def is_resident(self, name: str) -> bool:
        """True when the weights are there."""
        ...

    def use(self, name: str) -> None:
        """Note that a batch of the model is about to run."""
        ...

    def bring(self, name: str, kept: str | None = None) -> bool:
        """Have weights there that are not, and take away others for them.

        Args:
            name: whose.
            kept: of the model that runs, which stays.

        Returns:
            False when they do not fit beside what stays, and nothing has changed.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Bytes:
    """All that the choice asks of weights: how many they are."""

    nbytes: int


class Ours(Memory):
    """The server's way.

    Args:
        sizes_bytes: weights by model.
        budget_bytes: for all of them.
        load_time: what the server has seen loads take.

    Attributes:
        is_awaited: says whether requests wait for a model; nobody does unless it is set.
    """

    def __init__(
        self,
        sizes_bytes: Mapping[str, int],
        budget_bytes: int,
        load_time: LoadTime,
    ) -> None:
        self.is_awaited: Callable[[str], bool] = lambda _: False
        limits = MemoryLimits(cap_bytes=budget_bytes)
        self._set = ResidentSet(limits, lambda model: self.is_awaited(model.name))
        self._load_time = load_time
        self._entries: dict[str, Entry] = {}
        for name, nbytes in sizes_bytes.items():
            source = cast("WeightsSource", _Bytes(nbytes))
            entry = Entry(DeviceModel(name, (), (), {}), source, Floor.UNPINNED)
            self._entries[name] = entry
            self._set.add(entry)

    @property
    def resident_bytes(self) -> int:
        """What the budget counts."""
        return self._set.counted_bytes

    @override
    def is_resident(self, name: str) -> bool:
        return self._entries[name].place is Place.RESIDENT

    @override
    def use(self, name: str) -> None:
        self._set.usage.use(self._entries[name].model)

    @override
    def bring(self, name: str, kept: str | None = None) -> bool:
        entry = self._entries[name]
        stays = self._entries[kept] if kept is not None else None
        if stays is not None:
            stays.leases += 1
        victims = self._set.room_for(entry)
        if stays is not None:
            stays.leases -= 1
        if victims is None:
            return False
        for victim in victims:
            victim.place = Place.ABSENT
        entry.place = Place.RESIDENT
        self._set.usage.learn_load(entry.model, self._load_time.seconds(entry.nbytes))
        return True


class Lru(Memory):
    """Whose last use is longest ago goes first."""

    def __init__(self, sizes_bytes: Mapping[str, int], budget_bytes: int) -> None:
        self._sizes = sizes_bytes
        self._budget_bytes = budget_bytes
        self._resident: OrderedDict[str, None] = OrderedDict()
        self._taken_bytes = 0

    @override
    def is_resident(self, name: str) -> bool:
        return name in self._resident

    @override
    def use(self, name: str) -> None:
        if name in self._resident:
            self._resident.move_to_end(name)

    @override
    def bring(self, name: str, kept: str | None = None) -> bool:
        needed_bytes = self._taken_bytes + self._sizes[name] - self._budget_bytes
        victims = []
        for other in self._order():
            if needed_bytes <= 0:
                break
            if other != kept:
                victims.append(other)
                needed_bytes -= self._sizes[other]
        if needed_bytes > 0 and kept in self._resident:
            return False
        for victim in victims:
            del self._resident[victim]
            self._taken_bytes -= self._sizes[victim]
        self._resident[name] = None
        self._taken_bytes += self._sizes[name]
        return True

    def _order(self) -> Sequence[str]:
        """Who is there, in the order in which they go."""
        return list(self._resident)


class Foreseeing(Lru):
    """Who is not needed for longest goes first, a larger one before a smaller one that is as far.

    With weights of equal sizes nothing has more hits (Belady 1966). With mixed sizes the optimum is
    not known to be computable in reasonable time; there this is a good guess and no bound.

    Args:
        sizes_bytes: weights by model.
        budget_bytes: for all of them.
        uses: all that will come.
    """

    def __init__(
        self, sizes_bytes: Mapping[str, int], budget_bytes: int, uses: Sequence[str]
    ) -> None:
        super().__init__(sizes_bytes, budget_bytes)
        self._now = 0
        self._to_come: dict[str, deque[int]] = defaultdict(deque)
        for place, name in enumerate(uses):
            self._to_come[name].append(place)

    @override
    def use(self, name: str) -> None:
        assert self._to_come[name].popleft() == self._now, "not what was foreseen"
        self._now += 1

    @override
    def _order(self) -> Sequence[str]:
        return sorted(self._resident, key=self._distance, reverse=True)

    def _distance(self, name: str) -> float:
        to_come = self._to_come[name]
        return (to_come[0] - self._now + 1) * self._sizes[name] if to_come else inf


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a list of uses."""

    hit_fraction: float
    load_s: float


def replay(
    memory: Memory, uses: Sequence[str], sizes_bytes: Mapping[str, int], load_time: LoadTime
) -> Replay:
    """Use models one after the other, and load what is not there."""
    hits, load_s = 0, 0.0
    for name in uses:
        memory.use(name)
        if memory.is_resident(name):
            hits += 1
        else:
            memory.bring(name)
            load_s += load_time.seconds(sizes_bytes[name])
    return Replay(hits / len(uses), load_s)
