"""From what callers give to a request.

What lives here: checks of what annotations cannot promise. What does not: tensors
(`hloserve.client.arrays`, `hloserve.client.shared_memory`) and bytes (`hloserve.wire`). Pure
functions; any thread.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hloserve.client.shared_memory import SharedArray, plain_arrays, shared_tensors
from hloserve.core.errors import BadRequest
from hloserve.core.requests import InferRequest, Parameter

__all__ = ["build_request", "check_size"]


def build_request(
    model: str,
    inputs: Mapping[str, npt.ArrayLike | SharedArray],
    *,
    outputs: Sequence[str] | None,
    into: Mapping[str, SharedArray],
    classes: Mapping[str, int] | None,
    request_id: str,
    parameters: Mapping[str, Parameter | np.generic] | None,
) -> InferRequest:
    """Make a request of the arguments of `Client.infer`.

    Raises:
        BadRequest: an argument is of another type than it must be.
    """
    request = InferRequest(
        model,
        plain_arrays(inputs),
        id=request_id,
        outputs=() if outputs is None else _names(outputs),
        parameters={} if parameters is None else _parameters(parameters),
    )
    request.classes = None if classes is None else _classes(classes, into)
    request.shared = shared_tensors(inputs, into)
    special = dict.fromkeys((*into, *(request.classes or ())))
    request.outputs += tuple(name for name in special if name not in request.outputs)
    return request


def check_size(body: bytes, limit_bytes: int) -> None:
    """Refuse a request that is over the client's own limit.

    Raises:
        BadRequest: it is.
    """
    if len(body) > limit_bytes:
        raise BadRequest(
            f"the request of {len(body)} bytes is over this client's limit of {limit_bytes} bytes;"
            " raise max_message_bytes, or send fewer rows at a time"
        )


def _names(outputs: Sequence[str]) -> tuple[str, ...]:
    if isinstance(outputs, str):
        raise BadRequest(f"outputs is the string {outputs!r}; give a list of names")
    return tuple(outputs)


def _classes(given: Mapping[str, int], into: Mapping[str, SharedArray]) -> dict[str, int]:
    classes: dict[str, int] = {}
    for name, count in given.items():
        plain = count.item() if isinstance(count, np.generic) else count
        if type(plain) is not int or plain < 1:
            raise BadRequest(f"output {name!r}: classes is {count!r}; it must be 1 or more")
        if name in into:
            raise BadRequest(
                f"output {name!r} is in classes and in into; classes are strings, which come in the"
                " answer"
            )
        classes[name] = plain
    return classes


def _parameters(given: Mapping[str, Parameter | np.generic]) -> dict[str, Parameter]:
    """Check what annotations cannot promise; numpy scalars become Python's."""
    parameters: dict[str, Parameter] = {}
    for key, value in given.items():
        plain = value.item() if isinstance(value, np.generic) else value
        if not isinstance(plain, bool | int | float | str):
            raise BadRequest(
                f"parameter {key!r} is a {type(plain).__name__}; it must be a bool, an int, a float"
                " or a str"
            )
        parameters[key] = plain
    return parameters
