"""What one call carries, whatever transport it came by.

What lives here: the data a codec decodes to and encodes from. What does not: bytes (`wire`), and
the handling (`server.inference`). Plain data; whoever holds one owns it.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from hloserve.core.tensors import Tensors

__all__ = [
    "NEVER_NS",
    "InferRequest",
    "InferResponse",
    "ModelIndexEntry",
    "ModelMetadata",
    "ModelState",
    "Parameter",
    "ServerMetadata",
    "TensorMetadata",
]

NEVER_NS = 2**63 - 1
"""The deadline of a request that has none."""

Parameter: TypeAlias = bool | int | float | str


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

    Source: V2 protocol, "Inference Request".
    """

    model: str
    inputs: Tensors
    id: str = ""
    version: str = ""
    outputs: tuple[str, ...] = ()
    deadline_ns: int = NEVER_NS
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(slots=True)
class InferResponse:
    """One inference answer.

    Attributes:
        outputs: in the order to send. Arrays may be views of device memory: encode them at once.

    Source: V2 protocol, "Inference Response".
    """

    model: str
    outputs: Tensors
    id: str = ""
    version: str = ""


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
