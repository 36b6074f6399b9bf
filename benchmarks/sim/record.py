"""What a run of the simulator leaves, and what can be read from it."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from hloserve.engine.statistics import percentile

__all__ = ["Answer", "Batch", "Outcome", "Record"]


class Outcome(Enum):
    """What became of a request."""

    SERVED = "served"
    LATE = "late"
    """It ran, and ended after its deadline, when nobody wanted it any more."""
    EXPIRED = "expired"
    """It was not run, since its deadline had passed or could not be met."""
    REJECTED = "rejected"
    """Its queue was full."""


class Answer(NamedTuple):
    """What became of a request, and when; a request that did not run has not started (0)."""

    model: str
    arrived_ns: int
    started_ns: int
    ended_ns: int
    outcome: Outcome


class Batch(NamedTuple):
    """One execution; `load_ns` before it, the device waited for weights."""

    model: str
    started_ns: int
    ended_ns: int
    rows: int
    size: int
    load_ns: int


@dataclass(slots=True)
class Record:
    """All that has happened, in the order of its end.

    Attributes:
        answers: to requests.
        batches: that ran.
        leases: batches that needed weights, where there is a budget.
        hits: those that did not wait for them.
    """

    answers: list[Answer] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    leases: int = 0
    hits: int = 0

    def shares(self, from_s: float, until_s: float) -> dict[str, float]:
        """What part of the computing time between two instants each model had."""
        used_ns: Counter[str] = Counter()
        for batch in self.batches:
            begin_ns = max(batch.started_ns, round(from_s * 1e9))
            end_ns = min(batch.ended_ns, round(until_s * 1e9))
            used_ns[batch.model] += max(0, end_ns - begin_ns)
        total_ns = used_ns.total()
        return {name: each / total_ns for name, each in used_ns.items()} if total_ns else {}

    def latency_s(self, fraction: float, model: str | None = None, from_s: float = 0.0) -> float:
        """A percentile of the times from arrival to the answer, whatever that is; 0 without any.

        Args:
            fraction: 0.99 for the p99.
            model: whose; None for all.
            from_s: requests that came before this instant do not count.
        """
        samples = [
            answer.ended_ns - answer.arrived_ns
            for answer in self.answers
            if model in (None, answer.model) and answer.arrived_ns >= from_s * 1e9
        ]
        return percentile(samples, fraction) * 1e-9

    def served_fraction(self, model: str | None = None) -> float:
        """What part of the requests was answered with outputs, and in time."""
        found = [answer for answer in self.answers if model in (None, answer.model)]
        served = sum(answer.outcome is Outcome.SERVED for answer in found)
        return served / len(found) if found else 0.0

    @property
    def late_fraction(self) -> float:
        """What part of the requests ran for nothing."""
        late = sum(answer.outcome is Outcome.LATE for answer in self.answers)
        return late / len(self.answers) if self.answers else 0.0

    @property
    def load_s(self) -> float:
        """Time that the device waited for weights."""
        return sum(batch.load_ns for batch in self.batches) * 1e-9

    @property
    def compute_s(self) -> float:
        """Time that it computed."""
        return sum(batch.ended_ns - batch.started_ns for batch in self.batches) * 1e-9

    def rates(self, model: str, width_s: float, until_s: float) -> list[float]:
        """Requests served per second, in one window of time after the other."""
        counts = [0] * round(until_s / width_s)
        for answer in self.answers:
            place = int(answer.ended_ns * 1e-9 / width_s)
            if answer.model == model and answer.outcome is Outcome.SERVED and place < len(counts):
                counts[place] += 1
        return [each / width_s for each in counts]
