"""Messages about regions of shared memory in JSON, on the server's side.

What lives here: the body of register, and the answer of status. What does not: tensors in regions
(`hloserve.wire.v2_shared_memory`), and HTTP. Stateless; any thread.

Source: Triton's system shared memory extension, REST.
"""

from collections.abc import Iterable

import msgspec

from hloserve.core.errors import MalformedBody
from hloserve.core.requests import RegionStatus
from hloserve.wire.tensor_bytes import ByteString

__all__ = ["RegisterBody", "decode_register", "encode_status"]


class RegisterBody(msgspec.Struct):
    """``{"key": "/x", "offset": 0, "byte_size": 64}``."""

    key: str
    byte_size: int
    offset: int = 0


_decoder = msgspec.json.Decoder(RegisterBody)
_encode = msgspec.json.Encoder().encode


def decode_register(body: ByteString) -> RegisterBody:
    """Read the body of a register request.

    Raises:
        MalformedBody: it is none.
    """
    try:
        return _decoder.decode(bytes(body))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MalformedBody(f"register request: {error}") from error


def encode_status(regions: Iterable[RegionStatus]) -> bytes:
    """Write the regions as an array; what is not of the protocol comes last in each."""
    return _encode(
        [
            {
                "name": region.name,
                "key": region.key,
                "offset": region.offset,
                "byte_size": region.byte_size,
                "owner_uid": region.owner_uid,
                "requests": region.requests,
                "age_s": region.age_s,
            }
            for region in regions
        ]
    )
