"""What one call carries, whatever transport it came by.

What lives here: the data a codec decodes to and encodes from. What does not: bytes (`wire`), and
the handling (`server.inference`). Plain data; whoever holds one owns it.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from hloserve.core.dtypes import DType
from hloserve.core.tensors import Tensors

__all__ = [
    "DEFAULT_PRIORITY",
    "LOWEST_PRIORITY",
    "NEVER_NS",
    "InferRequest",
    "InferResponse",
    "ModelIndexEntry",
    "ModelMetadata",
    "ModelState",
    "Parameter",
    "Placement",
    "RegionStatus",
    "ServerMetadata",
    "SharedTensor",
    "SharedTensors",
    "TensorMetadata",
]

NEVER_NS = 2**63 - 1
"""The deadline of a request that has none."""

DEFAULT_PRIORITY = 10
"""Of a request that names none, or 0."""

LOWEST_PRIORITY = 100
"""The highest is 1."""

Parameter: TypeAlias = bool | int | float | str


class Placement(NamedTuple):
    """Which part of a registered region of shared memory holds a tensor's bytes.

    Source: system shared memory extension of V2.
    """

    region: str
    offset: int
    byte_size: int


class SharedTensor(NamedTuple):
    """A tensor that a message announces, and whose bytes lie elsewhere."""

    dtype: DType
    shape: tuple[int, ...]
    placement: Placement


@dataclass(slots=True)
class SharedTensors:
    """What of a request lies, or shall lie, in shared memory: inputs, and places for outputs."""

    inputs: dict[str, SharedTensor] = field(default_factory=dict)
    outputs: dict[str, Placement] = field(default_factory=dict)


@dataclass(slots=True)
class InferRequest:
    """One inference call.

    Attributes:
        model: served name; not empty.
        inputs: client-facing inputs in numpy order. Arrays may be read-only views of the message.
        id: echoed in the response; may be empty.
        version: requested model version; empty when the caller named none.
        outputs: names of the outputs to return, in that order; empty means all.
        deadline_ns: monotonic instant of this process, `NEVER_NS` when there is none.
        parameters: request parameters that no codec consumed.
        priority: within the model's queue; smaller ones go first.
        classes: how many of the highest classes to return instead of an output, by output; None
            when no output is to be classified.
        shared: tensors in shared memory; its inputs are not in `inputs`. None when there are none.

    Source: V2 protocol, "Inference Request".
    """

    model: str
    inputs: Tensors
    id: str = ""
    version: str = ""
    outputs: tuple[str, ...] = ()
    deadline_ns: int = NEVER_NS
    parameters: dict[str, Parameter] = field(default_factory=dict)
    priority: int = DEFAULT_PRIORITY
    classes: dict[str, int] | None = None
    shared: SharedTensors | None = None


@dataclass(slots=True)
class InferResponse:
    """One inference answer.

    Attributes:
        outputs: in the order to send. Arrays may be views of device memory: encode them at once.
        shared: outputs whose bytes are in shared memory. A server's `outputs` has them as well, for
            their order; what a client decodes has not. None when there are none.

    Source: V2 protocol, "Inference Response".
    """

    model: str
    outputs: Tensors
    id: str = ""
    version: str = ""
    shared: dict[str, SharedTensor] | None = None


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """A tensor as V2 metadata shows it; `shape` is row-major with -1 for open axes."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Source: V2 protocol, "Model Metadata".

    Attributes:
        batch_sizes: sizes that batches are run at, ascending; empty without a batch axis. The
            protocol has no such field; its readers skip ours.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    batch_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """Source: V2 protocol, "Server Metadata"."""

    name: str
    version: str
    extensions: tuple[str, ...]


class ModelState(Enum):
    """Where a model of the repository stands."""

    LOADING = "LOADING"
    READY = "READY"
    FAILED = "FAILED"
    UNLOADED = "UNLOADED"

    @property
    def index_text(self) -> str:
        """What the repository index calls it: published clients know three states."""
        return self.value if self in (ModelState.LOADING, ModelState.READY) else "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class ModelIndexEntry:
    """One line of the repository index; `reason` says why a model is not READY."""

    name: str
    version: str
    state: ModelState
    reason: str


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """One registered region of shared memory.

    Attributes:
        key: name of the object that it is a part of.
        offset: where the region begins in the object, in bytes.
        byte_size: its length.
        owner_uid: the user that the object belongs to. Like the next two it is not of the
            protocol, whose readers skip it.
        requests: how many requests use it now.
        age_s: seconds since it was registered.

    Source: system shared memory extension, "Status".
    """

    name: str
    key: str
    offset: int
    byte_size: int
    owner_uid: int = 0
    requests: int = 0
    age_s: float = 0.0
