"""What a client asks of a server's device, and tells it: the control service.

What lives here: one method per call: encode, call, decode. What does not: how a call is made
(`hloserve.client.blocking`), bytes (`hloserve.wire.control_protobuf`). Any thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from hloserve.core.errors import BadRequest
from hloserve.core.model_control import Compaction, ControlStatus, Floor
from hloserve.wire import control_protobuf as codec
from hloserve.wire.grpc_framing import Message

__all__ = ["ControlCalls"]

T = TypeVar("T")


class _Call(Protocol):
    def __call__(
        self, method: str, body: bytes = b"", model: str = "", timeout_s: float | None = None
    ) -> Message: ...


class _Read(Protocol):
    def __call__(self, decode: Callable[[Message], T], answer: Message) -> T: ...


class ControlCalls:
    """The control calls of a client: `Client.control`.

    They need the scope ``admin`` where the server has tokens, all but `status`. A call that changes
    something is made once: it is not repeated when the connection is lost.

    Example:
        >>> from hloserve import Client
        >>> with Client("localhost:8001") as client:  # doctest: +SKIP
        ...     for model in client.control.status().models:
        ...         print(model.name, model.floor.value, model.is_on_device)
    """

    def __init__(self, call: _Call, read: _Read) -> None:
        self._call = call
        self._read = read

    def status(self) -> ControlStatus:
        """The server's device, and what each model has there and has done."""
        return self._read(codec.decode_control_status, self._call("ModelControlStatus"))

    def set_residency(
        self, model: str, residency: Floor | str, *, timeout_s: float | None = None
    ) -> Floor:
        """Say what is kept of a model's weights; returns what is kept, when it is done.

        Args:
            model: served name.
            residency: ``unpinned``, ``system`` or ``device``.
            timeout_s: instead of the client's; weights may have to be read from a file. What has
                begun goes on when it is over.

        Raises:
            BadRequest: there is no such residency.
            NotPossibleNow: the server decides by itself which weights are on the device.
            ModelNotFound: nothing of that name is served there.
            Overloaded: the device has no room for them.
        """
        body = codec.encode_residency_request(model, _floor(residency))
        answer = self._call("SetModelResidency", body, model, timeout_s)
        return self._read(codec.decode_residency, answer)

    def set_weight(self, model: str, weight: float) -> None:
        """Set a model's share of the device, beside the weights of the others.

        It holds until the server ends; the discipline ``fair`` heeds it.

        Raises:
            BadRequest: the weight is no number above 0 and up to `MAX_WEIGHT`.
            ModelNotFound: nothing of that name is served there.
        """
        self._call("SetModelPolicy", codec.encode_policy_request(model, weight), model)

    def compact(self, reload: Sequence[str] = (), *, timeout_s: float | None = None) -> Compaction:
        """Take all weights that are not pinned off the device, to join its free memory.

        They come back when they are needed. Without a weight cache it does nothing.

        Args:
            reload: models whose weights are loaded again at once, in this order. Those that the
                server does not have, that are pinned or do not fit are passed over.
            timeout_s: instead of the client's.
        """
        if isinstance(reload, str):
            raise BadRequest(f"reload is the string {reload!r}; give a list of names")
        body = codec.encode_compact_request(reload)
        return self._read(codec.decode_compaction, self._call("CompactMemory", body, "", timeout_s))


def _floor(residency: Any) -> Floor:
    try:
        return Floor(residency)
    except ValueError:
        known = ", ".join(floor.value for floor in Floor)
        raise BadRequest(f"residency {residency!r} does not exist; there are {known}") from None
