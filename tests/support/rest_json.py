"""Short ways to V2 JSON requests, for the tests of the codec."""

import json
from typing import Any

from hloserve.core.requests import NEVER_NS, InferRequest
from hloserve.core.tensors import Array
from hloserve.wire.v2_json import OutputForms, decode_infer_request


def tensor(data: Any, shape: Any, datatype: str = "FP32", name: str = "x") -> dict[str, Any]:
    """One input; `data` may be text that is put into the JSON as it is."""
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def body_of(*inputs: Any, **members: Any) -> bytes:
    """A request's JSON; NaN and infinities are written bare."""
    return json.dumps({"inputs": list(inputs), **members}, ensure_ascii=False).encode()


def decode(
    body: bytes | memoryview,
    header_length: str | None = None,
    now_ns: int = 0,
    deadline_ns: int = NEVER_NS,
) -> tuple[InferRequest, OutputForms]:
    """Decode a request to model ``m``."""
    return decode_infer_request("m", "", body, header_length, now_ns, deadline_ns)


def decode_one(data: Any, shape: Any, datatype: str = "FP32") -> Array:
    """Decode a request with one input and return its array."""
    request, _ = decode(body_of(tensor(data, shape, datatype)))
    return request.inputs["x"]


def binary_body(*parts: tuple[dict[str, Any], bytes], **members: Any) -> tuple[bytes, str]:
    """A request with binary tensors, and its header length."""
    text = body_of(*(declared for declared, _ in parts), **members)
    return text + b"".join(data for _, data in parts), str(len(text))


def binary_tensor(
    data: bytes, shape: Any, datatype: str = "FP32", name: str = "x", size: Any = None
) -> tuple[dict[str, Any], bytes]:
    """One binary input; `size` overrides what is announced."""
    announced = len(data) if size is None else size
    parameters = {"binary_data_size": announced}
    return {
        "name": name,
        "shape": shape,
        "datatype": datatype,
        "parameters": parameters,
    }, data
