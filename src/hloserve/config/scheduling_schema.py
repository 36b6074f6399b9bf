"""The settings of what runs next on the device.

What lives here: the section `scheduler` of the settings. What does not: the other sections
(`hloserve.config.schema`). Immutable; any thread.
"""

from typing import Annotated, Literal

from msgspec import Meta

from hloserve.config.schema_types import (
    BatchSize,
    Fraction,
    PositiveSeconds,
    Reading,
    Seconds,
    Section,
    meta,
)
from hloserve.core.model_control import MAX_WEIGHT

__all__ = ["ModelSchedulerConfig", "SchedulerConfig"]


class ModelSchedulerConfig(Section, frozen=True, kw_only=True):
    """How the requests of one model are scheduled."""

    max_batch_size: BatchSize | None = None
    """Most rows to coalesce into one batch of this model. Unset means the largest compiled size."""

    weight: Annotated[float, Meta(gt=0, le=MAX_WEIGHT)] = 1.0
    """For `fair`: this model's share of the device, relative to the other models that have work. It
    can be changed while the server runs."""

    max_queue_delay_seconds: Seconds = 0.0
    """How long a batch of this model that is not full waits for more requests, counted from its
    oldest; other models are served meanwhile. It waits for no more than half of the time that a
    deadline in it leaves. For accelerators, where a full batch takes hardly longer than a single
    row; 0 waits for nothing."""

    residency: (
        Annotated[
            Literal["unpinned", "system", "device"],
            meta(Reading(aliases=(("pinned_system", "system"), ("pinned_device", "device")))),
        ]
        | None
    ) = None
    """The least to keep of this model's weights, where there is a budget: nothing (`unpinned`), a
    copy in the memory of the host (`system`), or the weights on the device (`device`), which are
    then never evicted and count before the budget. Unset means `system` on an accelerator, and on
    the CPU, where such a copy would be all that an eviction gives back, `unpinned`."""

    batch_sizes: Annotated[tuple[BatchSize, ...], Meta(min_length=1, max_length=256)] | None = None
    """Batch sizes to compile: some of those that the bundle has programs for, or any that the
    program allows when its batch axis is open. Unset means those that the bundle lists."""


class SchedulerConfig(Section, frozen=True, kw_only=True):
    """The queues in front of the device."""

    discipline: Literal["fair", "fifo", "edf"] = "fair"
    """How the next model is chosen. `fair` gives each model the share of the device that its weight
    says. `fifo` serves the model whose oldest request waits longest. `edf` serves the one with the
    soonest deadline, and does not run requests that would end too late. Within a model, requests
    are served in their order in any case."""

    fair_formula: Literal["corrected", "original"] = "corrected"
    """How `fair` weighs models: `corrected`, or `original` as ReactantServer.jl does, where idle
    models keep their shares and models that used too much are preferred if they are dear."""

    ema_halflife_seconds: PositiveSeconds = 30.0
    """For `fair`: computing time that is so old counts half."""

    recency_penalty_cap: Fraction = 0.25
    """For `fair`: how far a model can count as ahead of its share or behind it, as a part of the
    device. Smaller values let cheap batches go first more often."""

    coalescing_discount: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """For `fair`: by which part a batch that serves several requests counts as cheaper."""

    batch_planning: Literal["min_cost", "full"] = "min_cost"
    """How many of the waiting requests go into a batch. `full` fills the largest program that they
    fill, and leaves the others for the next batch. `min_cost` takes these along in a larger, padded
    program when that is known to take less time per row."""

    max_queue_depth: Annotated[int, Meta(gt=0, le=2**31 - 1)] = 1024
    """Most requests that wait for one model; one more is answered RESOURCE_EXHAUSTED (429)."""

    compaction_interval: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """After this many loads of weights onto an accelerator, take all that are not pinned off it, so
    that its free memory is in one piece again. 0 does so only when something found no room."""

    models: dict[str, ModelSchedulerConfig] = {}  # noqa: RUF012  # a struct copies it
    """Settings for single models, by served name. Names that no bundle has when the start is done
    are logged once (`settings_without_model`): misspelt ones, and those of bundles that come later.
    """
