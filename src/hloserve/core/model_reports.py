"""What a server tells about its models besides metadata: configuration and statistics.

What lives here: plain values, as the V2 protocol's extensions have them. What does not: where they
come from (`hloserve.server.model_reports`) and bytes (`hloserve.wire`). Whoever holds one owns it.

Source: Triton's model configuration and statistics extensions.
"""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "BatchReport",
    "Duration",
    "InstanceKind",
    "MemoryReport",
    "ModelConfig",
    "ModelReport",
    "TensorConfig",
]

InstanceKind: TypeAlias = str
"""``KIND_CPU`` or ``KIND_GPU``; clients may see others of other servers."""


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """A tensor of a model's configuration.

    Attributes:
        datatype: V2's name, e.g. ``FP32``.
        dims: row-major, -1 for open axes; without the batch axis when the model has a maximum
            batch size.
        label_filename: of an output, the bundle's file that names its classes; empty without one.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    label_filename: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How a model is served.

    Attributes:
        platform: as in metadata.
        backend: what runs the programs.
        max_batch_size: most rows that one execution takes, 0 when requests are not coalesced
            along their first axes.
        preferred_batch_sizes: sizes that there are programs for; empty when requests are not
            coalesced.
        instance_kind: the kind of device.
        device_ordinals: which devices; empty for the CPU.
    """

    name: str
    platform: str
    backend: str
    max_batch_size: int
    inputs: tuple[TensorConfig, ...]
    outputs: tuple[TensorConfig, ...]
    preferred_batch_sizes: tuple[int, ...]
    instance_kind: InstanceKind
    device_ordinals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and how long all of it took together."""

    count: int
    ns: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The executions of one compiled batch size; every duration has their number as its count."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory that a model holds: `kind` is ``CPU`` or ``GPU``, `ordinal` which of them."""

    kind: str
    ordinal: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """The statistics of one model since it was first loaded.

    Attributes:
        version: ``1``; clients read a number.
        last_inference_ms: wall clock, since the epoch; 0 before the first request.
        inference_count: rows that were executed.
        execution_count: executions.
        success: requests answered with outputs, and their time from arrival to answer.
        fail: the others.
        queue: requests that left the queue for the device, and their time in it.
        compute_input: laying rows together and transfer in. A request of a batch counts the time
            of the whole batch, here and in the next two.
        compute_infer: execution. On an accelerator, transfer out is in it.
        compute_output: transfer out.
    """

    name: str
    version: str
    last_inference_ms: int
    inference_count: int
    execution_count: int
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    batches: tuple[BatchReport, ...]
    memory: tuple[MemoryReport, ...]
