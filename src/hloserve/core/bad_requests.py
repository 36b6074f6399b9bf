"""What is wrong with a request that can never succeed: the errors that its caller can fix.

What lives here: the part of the tree of `hloserve.core.errors` under `BadRequest`. Everybody
imports it from there.
"""

from collections.abc import Sequence

from hloserve.core.error_base import Code, HloserveError

__all__ = [
    "BadRequest",
    "BodyTooLarge",
    "DuplicateTensor",
    "InvalidInput",
    "MalformedBody",
    "MissingTensor",
    "TensorMismatch",
    "TensorProblems",
    "UnknownTensor",
    "UnsupportedMedia",
]


class BadRequest(HloserveError):
    """The caller sent something that can never succeed; the message says what to change."""

    code = Code.INVALID_ARGUMENT


class TensorMismatch(BadRequest):
    """A tensor does not fit its spec.

    Attributes:
        tensor: its name, with the role: ``input 'image'``.
        what: what differs: ``dtype``, ``rank``, ``extent of axis 1 (c)``, ``byte length``...
    """

    def __init__(self, tensor: str, what: str, expected: object, got: object) -> None:
        self.tensor, self.what, self.expected, self.got = tensor, what, expected, got
        super().__init__(f"{tensor}: {what} is {got}, expected {expected}")


class UnknownTensor(BadRequest):
    """A tensor that the model does not have."""

    def __init__(self, tensor: str, known: Sequence[str]) -> None:
        self.tensor, self.known = tensor, tuple(known)
        super().__init__(
            f"{tensor} is not declared by the model; it has {', '.join(known) or 'none'}"
        )


class DuplicateTensor(BadRequest):
    """A tensor given, or asked for, twice."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor
        super().__init__(f"{tensor} appears more than once; send it once")


class MissingTensor(BadRequest):
    """A declared input that the request lacks."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor
        super().__init__(f"{tensor} is missing; the model needs it")


class TensorProblems(BadRequest):
    """Several tensors that do not fit; the message holds them all, or the first 20."""

    def __init__(self, problems: Sequence[BadRequest]) -> None:
        self.problems = tuple(problems)
        shown = "; ".join(str(problem) for problem in problems[:_MOST_PROBLEMS])
        more = len(problems) - _MOST_PROBLEMS
        super().__init__(f"{shown}; and {more} more problems" if more > 0 else shown)


_MOST_PROBLEMS = 20
"""More would be a message of megabytes, of a request that means harm."""


class MalformedBody(BadRequest):
    """Bytes that are not what they claim to be; `offset` counts from the start of the body."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        self.reason, self.offset = reason, offset
        super().__init__(reason if offset is None else f"{reason} (at byte {offset})")


class BodyTooLarge(BadRequest):
    """A message over its cap; `setting` is the configuration key that raises the cap."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, limit_bytes: int, got_bytes: int | None, setting: str) -> None:
        self.limit_bytes, self.got_bytes, self.setting = limit_bytes, got_bytes, setting
        size = "unknown size" if got_bytes is None else f"{got_bytes} bytes"
        super().__init__(
            f"message of {size}, the limit is {limit_bytes} bytes;"
            f" the server's setting is {setting}"
        )


class UnsupportedMedia(BadRequest):
    """A content type or encoding that the server does not read."""

    def __init__(self, what: str, supported: Sequence[str]) -> None:
        self.what, self.supported = what, tuple(supported)
        super().__init__(f"{what} is not supported; use {' or '.join(supported)}")


class InvalidInput(BadRequest):
    """Raise this in a hook to tell the caller that its input is not acceptable."""
