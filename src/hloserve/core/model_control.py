"""What an operator, or a controller, sees and changes of the models on a device.

What lives here: plain values of the control service. What does not: where they come from
(`hloserve.server.control`) and bytes (`hloserve.wire.control_protobuf`). Whoever holds one owns it.
"""

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "MAX_WEIGHT",
    "WEIGHT_RANGE",
    "Compaction",
    "ControlStatus",
    "Floor",
    "ModelControlStatus",
    "is_weight",
]

MAX_WEIGHT = 1_000_000.0
"""Most that a model's share may weigh, in the settings and while the server runs."""

WEIGHT_RANGE = f"a number above 0 and up to {MAX_WEIGHT}"
"""For messages, in the words of the settings."""


def is_weight(value: float) -> bool:
    """True for what a model's share may weigh; neither infinities nor NaN."""
    return 0 < value <= MAX_WEIGHT


class Floor(Enum):
    """The least that is kept of a model's weights; values are those of the settings."""

    UNPINNED = "unpinned"
    """Nothing: weights are read from the bundle's file when they are needed."""

    SYSTEM = "system"
    """A copy in the memory of the host, so that a load does not depend on the file."""

    DEVICE = "device"
    """The weights on the device, never evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelControlStatus:
    """One model. Counters count from the first load of its name on, and never fall by themselves.

    Attributes:
        floor: the least that is kept of its weights.
        is_on_device: its weights are there, so that a request does not wait for them.
        is_on_host: a copy of them in the memory of the host is kept.
        weight_bytes: what they take on the device.
        weight: its share of the device, beside those of the others; above 0.
        queue_depth: requests that wait.
        compute_seconds: time of the device.
        requests_served: requests that got outputs. A split request counts once per part.
        dispatch_count: executions.
        rows_served: rows of those requests.
        padded_rows: rows of the programs that ran; less `rows_served`, it is padding.
        requests_expired: requests whose deadline passed in the queue.
        requests_failed: requests that the device answered with an error.
        max_batch_size: most rows of one execution; 0 for a model that is not batched.
        batch_input_name: the first input of clients that has a batch axis; empty without one.
        batch_axis: that axis, on the wire, counted from 1; 0 without one.
    """

    name: str
    floor: Floor
    is_on_device: bool
    is_on_host: bool
    weight_bytes: int
    weight: float
    queue_depth: int
    compute_seconds: float
    requests_served: int
    dispatch_count: int
    rows_served: int
    padded_rows: int
    requests_expired: int
    requests_failed: int
    max_batch_size: int
    batch_input_name: str
    batch_axis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStatus:
    """A worker's device and its models.

    Attributes:
        residency_mode: ``self_managed`` when the worker decides which weights are on the device,
            ``externally_managed`` when a controller does. Another server may have others.
        discipline: how the next model is chosen: ``fair``, ``fifo``, ``edf``.
        has_weight_cache: weights come and go under a budget; otherwise all are on the device, and
            the figures below are 0.
        max_bytes: the budget of weights that are not pinned.
        resident_bytes: what these take now.
        pinned_bytes: weights of the models whose floor is the device.
        scratch_bytes: what the programs of one model take beside weights, at most.
        loads: times that weights were brought to the device.
        loaded_bytes: what that brought.
        load_seconds: time that requests have waited for it.
        evictions: times that weights made room for others.
        hits: executions that found their weights there.
        compactions: times that the device's free memory was joined.
        models: by name.
    """

    residency_mode: str
    discipline: str
    has_weight_cache: bool
    max_bytes: int
    resident_bytes: int
    pinned_bytes: int
    scratch_bytes: int
    loads: int
    loaded_bytes: int
    load_seconds: float
    evictions: int
    hits: int
    compactions: int
    models: tuple[ModelControlStatus, ...]


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction has done.

    Attributes:
        reloaded_models: models whose weights were loaded again.
        resident_bytes: what weights that are not pinned take on the device afterwards.
    """

    reloaded_models: int
    resident_bytes: int
