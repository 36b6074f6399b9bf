"""Errors of a server that cannot answer now, though it or another one may later.

What lives here: `Unavailable` and its kinds. What does not: the tree of all errors, which is also
the place to import these from: `hloserve.core.errors`. Any thread.
"""

from hloserve.core.error_base import Code, HloserveError

__all__ = [
    "DeviceLost",
    "ModelNotReady",
    "ShuttingDown",
    "Unavailable",
    "WeightsNotResident",
    "WeightsUnreadable",
]


class Unavailable(HloserveError):
    """Not now, but perhaps in a moment or on another server. Retryable."""

    code = Code.UNAVAILABLE
    retryable = True


class ShuttingDown(Unavailable):
    """The server is draining."""

    def __init__(self) -> None:
        super().__init__("server is shutting down")


class DeviceLost(Unavailable):
    """The device fails whatever it is asked, or hangs; the worker ends, to be started again."""

    def __init__(self, reason: str) -> None:
        self.reason = reason  # for the log: callers need not know what a driver says
        super().__init__("the device is lost, and this server ends; ask another one")


class ModelNotReady(Unavailable):
    """The model is known but loading, or its load failed."""

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason
        super().__init__(f"model {model!r} is not ready: {reason}")


class WeightsNotResident(Unavailable):
    """The model is here, its weights are not on the device, and only a controller brings them."""

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"weights of model {model!r} are not on the device, and are not loaded for a request"
            " (runtime.residency_mode: external); ask another worker, or pin it: hloserve pin"
        )


class WeightsUnreadable(Unavailable):
    """The weights of a loaded model cannot be read again; the cause is chained."""

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason
        super().__init__(f"weights of model {model!r} cannot be read again: {reason}")
