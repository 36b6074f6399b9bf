"""Asks by kserve's client, as a process: `python -m support.kserve_calls HTTP GRPC TOKEN...`.

It is a process of its own because kserve registers the same protobuf names as Triton's client.
Prints, as JSON: the bytes of each datatype's rows that came back over REST and over gRPC, in hex;
what the calls about the server and a model told; and the texts of the errors.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import grpc.aio
import kserve
import numpy as np

from hloserve.core.dtypes import by_token


def _request(model: str, datatype: str, array: Any) -> kserve.InferRequest:
    tensor = kserve.InferInput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=True)
    return kserve.InferRequest(model_name=model, infer_inputs=[tensor])


async def _problem(call: Awaitable[Any]) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    except Exception as error:  # noqa: BLE001  # whatever kserve makes of an HTTP status
        return str(error)
    return "none"


async def _ask(http: str, address: str, tokens: list[str]) -> dict[str, Any]:
    base = f"http://{http}"
    rest = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
    rpc = kserve.InferenceGRPCClient(address)
    told: dict[str, Any] = {"datatypes": {}}
    for token in tokens:
        dtype = by_token(token)
        request = _request(token, dtype.kserve or "", np.array([[1, 0, 1]]).astype(dtype.numpy))
        answers = [await rest.infer(base, request, model_name=token), await rpc.infer(request)]
        told["datatypes"][token] = [a.outputs[0].as_numpy().tobytes().hex() for a in answers]
    told["ready"] = [
        await rest.is_server_live(base),
        await rest.is_server_ready(base),
        await rest.is_model_ready(base, "f32"),
        await rest.is_model_ready(base, "nothing"),
        await rpc.is_server_live(),
        await rpc.is_server_ready(),
        await rpc.is_model_ready("f32"),
        await rpc.is_model_ready("nothing"),
    ]
    small = np.zeros((1, 2), np.float32)
    told["errors"] = [
        await _problem(rest.infer(base, _request("f32", "FP32", small), model_name="f32")),
        await _problem(rpc.infer(_request("f32", "FP32", small))),
        await _problem(rest.infer(base, _request("nothing", "FP32", small), model_name="nothing")),
        await _problem(rpc.infer(_request("nothing", "FP32", small))),
    ]
    await rest.close()
    await rpc.close()
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_ask(sys.argv[1], sys.argv[2], sys.argv[3:]))))  # noqa: T201
