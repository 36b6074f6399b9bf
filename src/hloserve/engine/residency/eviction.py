"""Which weights make room for others: a decision, no effects.

What lives here: `Usage`, which remembers who was used and says who goes first. What does not: what
is resident and who may go at all (`hloserve.engine.residency.weight_cache`), devices and clocks: it
is replayed with names and sizes in `benchmarks`. One thread at a time.

The choice. What a resident model is worth is the loading that it saves per byte that it takes: how
often it is used, times what a load of it takes, by its size. How often is a sum over three horizons
of 10, 100 and 1,000 uses, which forgets as a power of the age does: what is used now and then
stays ahead of what was used once just now, and what was popular yesterday is forgotten. A model
that requests wait for goes after all others, since it would be loaded again at once.

Against the least recently used first, over 50 models and room for a fifth of their bytes: requests
by Zipf's law find their weights in 60% of cases, not 51%; where only recency counts, they are about
as good (89.6% and 90.7%). `docs/decisions/22-residency.md` has the table.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

__all__ = ["LOAD_BYTES_PER_S", "LOAD_OVERHEAD_S", "Usage"]

Key = TypeVar("Key", bound=Hashable)

HORIZONS = (10.0, 100.0, 1000.0)
"""Uses, of whichever model, after which a use counts half."""

LOAD_BYTES_PER_S = 2e9
LOAD_OVERHEAD_S = 1e-3
"""What a load is taken to cost before one was seen."""

_SEEN_SHARE = 0.3
"""Of a load that was seen in what the next one is taken to cost."""


_Rates = tuple[float, float, float]


def _decay(age: int) -> _Rates:
    short, middle, long = HORIZONS
    return 0.5 ** (age / short), 0.5 ** (age / middle), 0.5 ** (age / long)


_KNOWN_DECAYS = [_decay(age) for age in range(512)]
"""A use is noted for every dispatch, and raising to a power is most of it."""

_STEP = tuple(1 / horizon for horizon in HORIZONS)


class _Record:
    __slots__ = ("load_s", "rates", "size_bytes", "used_at")

    def __init__(self, size_bytes: int, load_s: float, now: int) -> None:
        self.size_bytes = size_bytes
        self.load_s = load_s
        self.rates: _Rates = (0.0, 0.0, 0.0)
        self.used_at = now


class Usage(Generic[Key]):
    """How models are used, and what follows for those that are resident."""

    def __init__(self) -> None:
        self._records: dict[Key, _Record] = {}
        self._now = 0  # in uses

    def add(self, key: Key, size_bytes: int, load_s: float | None = None) -> None:
        """Get to know a model, resident or not.

        Args:
            key: names it.
            size_bytes: of its weights.
            load_s: what a load takes; None for a guess by its size.
        """
        if load_s is None:
            load_s = LOAD_OVERHEAD_S + size_bytes / LOAD_BYTES_PER_S
        self._records[key] = _Record(size_bytes, load_s, self._now)

    def remove(self, key: Key) -> None:
        """Forget a model."""
        del self._records[key]

    def use(self, key: Key) -> None:
        """Note that a model is used now."""
        self._now = now = self._now + 1
        record = self._records[key]
        age = now - record.used_at
        record.used_at = now
        first, second, third = record.rates
        short, middle, long = _KNOWN_DECAYS[age] if age < len(_KNOWN_DECAYS) else _decay(age)
        record.rates = (
            first * short + _STEP[0],
            second * middle + _STEP[1],
            third * long + _STEP[2],
        )

    def learn_load(self, key: Key, seconds: float) -> None:
        """Note what a load took."""
        record = self._records[key]
        record.load_s += _SEEN_SHARE * (seconds - record.load_s)

    def value(self, key: Key) -> float:
        """Seconds of loading that a model saves per use and byte, as it was used until now."""
        record = self._records[key]
        if not record.size_bytes:
            return float("inf")
        age = self._now - record.used_at
        pairs = zip(record.rates, _decay(age), strict=True)
        rate = sum(each * decay for each, decay in pairs)
        return rate * record.load_s / record.size_bytes

    def pick_victims(
        self,
        candidates: Iterable[Key],
        needed_bytes: int,
        is_awaited: Callable[[Key], bool] = lambda _: False,
    ) -> list[Key]:
        """Choose who goes to make room.

        Args:
            candidates: resident models that may go.
            needed_bytes: what is to become free.
            is_awaited: says whether requests wait for a model.

        Returns:
            No more models than it takes, least worth first; all candidates when even they are too
            small.
        """
        if needed_bytes <= 0:
            return []
        order = sorted(
            (key for key in candidates if self._records[key].size_bytes),
            key=lambda key: (is_awaited(key), self.value(key), self._records[key].used_at),
        )
        victims, freed = [], 0
        for key in order:
            if freed >= needed_bytes:
                break
            victims.append(key)
            freed += self._records[key].size_bytes
        for key in reversed(victims.copy()):  # whoever came last may have made another needless
            size = self._records[key].size_bytes
            if freed - size >= needed_bytes:
                victims.remove(key)
                freed -= size
        return victims
