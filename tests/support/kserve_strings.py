"""Sends strings by kserve's client, as a process: `python -m support.kserve_strings HTTP GRPC`.

It is a process of its own because kserve registers the same protobuf names as Triton's client.
Prints what came back, over REST and over gRPC, as JSON lists of hex strings.
"""

import asyncio
import sys
from typing import Any

import kserve
import numpy as np

STRINGS = [["Bär".encode(), b""], [b"a\0", b"plain"]]


def _request() -> kserve.InferRequest:
    tensor = kserve.InferInput("text", [2, 2], "BYTES")
    tensor.set_data_from_numpy(np.array(STRINGS, object), binary_data=True)
    return kserve.InferRequest(model_name="text", infer_inputs=[tensor])


async def _ask(http: str, grpc: str) -> list[Any]:
    rest = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
    by_rest = await rest.infer(f"http://{http}", _request(), model_name="text")
    await rest.close()
    rpc = kserve.InferenceGRPCClient(grpc)
    by_rpc = await rpc.infer(_request())
    await rpc.close()
    return [by_rest.outputs[0].as_numpy(), by_rpc.outputs[0].as_numpy()]


def _hex(value: object) -> str:
    return (value.encode() if isinstance(value, str) else bytes(value)).hex()  # type: ignore[call-overload]


if __name__ == "__main__":
    answers = asyncio.run(_ask(*sys.argv[1:]))
    print([[_hex(value) for value in answer.reshape(-1).tolist()] for answer in answers])  # noqa: T201
