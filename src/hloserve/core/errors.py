"""Every error that a user can meet, in one tree.

::

    HloserveError
    ├─ BadRequest            INVALID_ARGUMENT     the caller can fix it
    │   ├─ TensorMismatch    (tensor, what, expected, got)
    │   ├─ UnknownTensor     (tensor, known)
    │   ├─ DuplicateTensor   (tensor)
    │   ├─ MissingTensor     (tensor)
    │   ├─ TensorProblems    (problems)           several of these
    │   ├─ MalformedBody     (reason, offset)
    │   ├─ BodyTooLarge      (limit_bytes, got_bytes, setting)
    │   ├─ UnsupportedMedia  (what, supported)
    │   └─ InvalidInput      (message)            raised by hooks
    ├─ Unauthenticated       UNAUTHENTICATED      (reason, has_token)  no token, or not one of ours
    ├─ PermissionDenied      PERMISSION_DENIED    (scope, name)        the token may not do this
    ├─ ModelNotFound         NOT_FOUND            (model)
    │   └─ BundleNotFound                         (model)              to be loaded on request
    ├─ NotImplementedYet     UNIMPLEMENTED        (what)
    ├─ NotPossibleNow        FAILED_PRECONDITION  the caller must do something else first
    │   ├─ RegionNotRegistered (region)           register it, and send the request again
    │   └─ RegionCutShort    (region)             its object was made shorter
    ├─ Overloaded            RESOURCE_EXHAUSTED, retryable
    │   ├─ QueueFull         (model, depth)
    │   ├─ TooManyInFlight   (limit)
    │   └─ DeviceMemoryFull  (needed_bytes, free_bytes)
    ├─ DeadlineExceeded      DEADLINE_EXCEEDED    (model, late_ns)
    ├─ Cancelled             CANCELLED            (model)
    ├─ Unavailable           UNAVAILABLE, retryable
    │   ├─ ShuttingDown
    │   ├─ DeviceLost        (reason)             the worker ends, and is started again
    │   ├─ ModelNotReady     (model, reason)
    │   ├─ WeightsNotResident (model)             a controller decides what is on the device
    │   └─ WeightsUnreadable (model, reason)      they changed on disk, or cannot be read
    ├─ BundleProblem         INTERNAL             (bundle, findings)   load time
    │   ├─ ManifestProblem   ├─ WeightsProblem   ├─ ProgramProblem   └─ HookProblem
    ├─ ExportProblem         INTERNAL             (model, findings)    nothing was written
    │   └─ ProofFailed                            the program does not compute what the model does
    ├─ ConfigProblem         INTERNAL             (source, at, reason) exit status 2
    ├─ HookFailed            INTERNAL             (model, hook)        cause kept
    ├─ SubCallFailed         as its cause         (meta, model)        inside of a meta model
    ├─ BackendFailed         INTERNAL             (operation, model)   cause kept
    ├─ MissingExtra          FAILED_PRECONDITION  (extra, purpose)     a library is not installed
    └─ UntestedVersion       FAILED_PRECONDITION  (library, found, tested)

Rules: decide by type, never by message text; fields are attributes and the message is built from
them; `retryable` only when the same call may succeed unchanged. Statuses are not here:
`hloserve.wire.status` maps `Code` to gRPC and HTTP. Those that a caller can fix
are defined in `hloserve.core.bad_requests`, those of files and settings in
`hloserve.core.problems`, those of a server that cannot answer now in
`hloserve.core.unavailable`; they are imported from here like the others.
"""

from hloserve.core.bad_requests import (
    BadRequest,
    BodyTooLarge,
    DuplicateTensor,
    InvalidInput,
    MalformedBody,
    MissingTensor,
    TensorMismatch,
    TensorProblems,
    UnknownTensor,
    UnsupportedMedia,
)
from hloserve.core.error_base import Code, HloserveError
from hloserve.core.problems import (
    BundleProblem,
    ConfigProblem,
    ExportProblem,
    HookProblem,
    ManifestProblem,
    MissingExtra,
    ProgramProblem,
    ProofFailed,
    UntestedVersion,
    WeightsProblem,
)
from hloserve.core.unavailable import (
    DeviceLost,
    ModelNotReady,
    ShuttingDown,
    Unavailable,
    WeightsNotResident,
    WeightsUnreadable,
)

__all__ = [
    "BackendFailed",
    "BadRequest",
    "BodyTooLarge",
    "BundleNotFound",
    "BundleProblem",
    "Cancelled",
    "Code",
    "ConfigProblem",
    "DeadlineExceeded",
    "DeviceLost",
    "DeviceMemoryFull",
    "DuplicateTensor",
    "ExportProblem",
    "HloserveError",
    "HookFailed",
    "HookProblem",
    "InvalidInput",
    "MalformedBody",
    "ManifestProblem",
    "MissingExtra",
    "MissingTensor",
    "ModelNotFound",
    "ModelNotReady",
    "NotImplementedYet",
    "NotPossibleNow",
    "Overloaded",
    "PermissionDenied",
    "ProgramProblem",
    "ProofFailed",
    "QueueFull",
    "RegionCutShort",
    "RegionNotRegistered",
    "ShuttingDown",
    "SubCallFailed",
    "TensorMismatch",
    "TensorProblems",
    "TooManyInFlight",
    "Unauthenticated",
    "Unavailable",
    "UnknownTensor",
    "UnsupportedMedia",
    "UntestedVersion",
    "WeightsNotResident",
    "WeightsProblem",
    "WeightsUnreadable",
]


class Unauthenticated(HloserveError):
    """The call needs a token and has none, or has one that this server does not know."""

    code = Code.UNAUTHENTICATED

    def __init__(self, reason: str, *, has_token: bool) -> None:
        self.reason, self.has_token = reason, has_token
        super().__init__(f"{reason}; send the header `authorization: Bearer TOKEN`")


class PermissionDenied(HloserveError):
    """The token is known, and may not do this."""

    code = Code.PERMISSION_DENIED

    def __init__(self, scope: str, name: str) -> None:
        self.scope, self.name = scope, name
        super().__init__(f"token {name!r} has not the scope {scope!r}, which this call needs")


class ModelNotFound(HloserveError):
    """No model of that name (or version) is served here."""

    code = Code.NOT_FOUND

    def __init__(self, model: str, version: str = "", reason: str = "") -> None:
        self.model, self.version = model, version
        which = f" version {version!r}" if version else ""
        reason = reason or "is not served here; the repository index lists the models"
        super().__init__(f"model {model!r}{which} {reason}")


class BundleNotFound(ModelNotFound):
    """No model repository of the server has a bundle of that name."""

    def __init__(self, model: str) -> None:
        super().__init__(model, reason="cannot be loaded: no repository has a bundle of that name")


class NotImplementedYet(HloserveError):
    """A part of the protocol, or a kind of model, that this server does not have."""

    code = Code.UNIMPLEMENTED

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} is not implemented by this server")


class NotPossibleNow(HloserveError):
    """The caller must do something else first; the message says what."""

    code = Code.FAILED_PRECONDITION


class RegionNotRegistered(NotPossibleNow):
    """A tensor in shared memory that the server was not told of, or no longer is."""

    def __init__(self, region: str) -> None:
        self.region = region
        super().__init__(
            f"unregistered shared memory region {region!r}; register it, and send the request again"
        )


class RegionCutShort(NotPossibleNow):
    """A registered region of shared memory whose object was made shorter, or has no room."""

    def __init__(self, region: str) -> None:
        self.region = region
        super().__init__(
            f"shared memory region {region!r} has lost its memory: its object was made shorter"
            " after it was registered, or was never filled and /dev/shm is full; register it again"
        )


class Overloaded(HloserveError):
    """The server has more work than it takes on. Retryable, after a pause."""

    code = Code.RESOURCE_EXHAUSTED
    retryable = True


class QueueFull(Overloaded):
    """The model's queue is at its cap."""

    def __init__(self, model: str, depth: int) -> None:
        self.model, self.depth = model, depth
        super().__init__(f"queue of model {model!r} is full ({depth} requests); try again later")


class TooManyInFlight(Overloaded):
    """The server's cap of concurrent inference requests is reached."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"{limit} inference requests are in flight, the limit"
            " (endpoints.max_concurrent_requests); try again later"
        )


class DeviceMemoryFull(Overloaded):
    """The device cannot hold what the call needs."""

    def __init__(self, needed_bytes: int, free_bytes: int | None) -> None:
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes
        free = "" if free_bytes is None else f", {free_bytes} are free"
        super().__init__(f"device memory is full: {needed_bytes} bytes are needed{free}")


class DeadlineExceeded(HloserveError):
    """The deadline passed before the answer was ready."""

    code = Code.DEADLINE_EXCEEDED

    def __init__(self, model: str, late_ns: int = 0) -> None:
        self.model, self.late_ns = model, late_ns
        what = "passed" if late_ns >= 0 else "would have passed"
        super().__init__(
            f"deadline of the request to model {model!r} {what} before it was answered"
        )


class Cancelled(HloserveError):
    """The caller went away. Never sent; it ends the request inside the server."""

    code = Code.CANCELLED

    def __init__(self, model: str = "") -> None:
        self.model = model
        super().__init__("the caller cancelled the request")


class HookFailed(HloserveError):
    """A hook raised, or returned something that does not fit; the cause is chained."""

    def __init__(self, model: str, hook: str, reason: str) -> None:
        self.model, self.hook, self.reason = model, hook, reason
        super().__init__(f"{hook} hook of model {model!r} failed: {reason}")


class SubCallFailed(HloserveError):
    """A meta model's call of another model failed; the cause is chained.

    Its code is the cause's, with two exceptions: a model that is not there is FAILED_PRECONDITION,
    since the caller did not ask for it, and inputs that do not fit are INTERNAL, since the caller
    did not make them. What a sub-model's hook refuses by `InvalidInput` is the caller's.
    """

    def __init__(self, meta: str, model: str, cause: HloserveError, place: str = "") -> None:
        self.meta, self.model = meta, model
        self.retryable = cause.retryable
        self.code = cause.code
        if isinstance(cause, ModelNotFound):
            self.code = Code.FAILED_PRECONDITION
        elif isinstance(cause, BadRequest) and not isinstance(cause, InvalidInput):
            self.code = Code.INTERNAL
        super().__init__(f"meta {meta!r}: call to {model!r}{place}: {cause}")
        self.__cause__ = cause


class BackendFailed(HloserveError):
    """The device or the compiler failed; the cause is chained."""

    def __init__(self, operation: str, model: str, reason: str) -> None:
        self.operation, self.model, self.reason = operation, model, reason
        of_model = f" of model {model!r}" if model else ""
        super().__init__(f"{operation}{of_model} failed: {reason}")
