"""Every client that must work unchanged, behind one signature.

What lives here: `CLIENTS`, from a name to a function that asks a server. What does not: servers
(`support.server_process`) and what the answers should be. kserve's client runs in a process of its
own (`support.demo_kserve`): it registers the same protobuf names as Triton's, so one process can
import only one of them.
"""

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from support.server_process import ServerProcess

import hloserve
from hloserve.core.dtypes import by_kserve, by_numpy

__all__ = ["CLIENTS", "Arrays", "Client", "pack", "unpack"]

Arrays: TypeAlias = dict[str, Any]
"""Arrays by tensor name, in order."""

Client: TypeAlias = Callable[[ServerProcess, str, Sequence[Arrays]], list[Arrays]]
"""Asks a model of a server once per item, one after the other, on one connection."""


def _hloserve(server: ServerProcess, model: str, requests: Sequence[Arrays]) -> list[Arrays]:
    with hloserve.Client(server.grpc) as client:
        return [dict(client.infer(model, inputs)) for inputs in requests]


def _triton_inputs(module: Any, inputs: Arrays) -> list[Any]:
    tensors = []
    for name, array in inputs.items():
        tensor = module.InferInput(name, array.shape, by_numpy(array.dtype).kserve)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def _triton_outputs(result: Any) -> Arrays:
    response = result.get_response()
    if isinstance(response, dict):  # HTTP's; gRPC's is a message
        names = [output["name"] for output in response["outputs"]]
    else:
        names = [output.name for output in response.outputs]
    return {name: result.as_numpy(name) for name in names}


def _triton(
    module: Any, scheme: str, server: ServerProcess, model: str, requests: Sequence[Arrays]
) -> list[Arrays]:
    with module.InferenceServerClient(getattr(server, scheme)) as client:
        return [
            _triton_outputs(client.infer(model, _triton_inputs(module, inputs)))
            for inputs in requests
        ]


def _triton_aio(
    module: Any, scheme: str, server: ServerProcess, model: str, requests: Sequence[Arrays]
) -> list[Arrays]:
    async def ask() -> list[Arrays]:
        async with module.InferenceServerClient(getattr(server, scheme)) as client:
            return [
                _triton_outputs(await client.infer(model, _triton_inputs(module, inputs)))
                for inputs in requests
            ]

    return asyncio.run(ask())


def _kserve(
    scheme: str, server: ServerProcess, model: str, requests: Sequence[Arrays]
) -> list[Arrays]:
    done = subprocess.run(
        [sys.executable, "-m", "support.demo_kserve", scheme, getattr(server, scheme), model],
        input=pack(requests),
        stdout=subprocess.PIPE,
        check=True,
        timeout=50,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    return unpack(done.stdout)


def _curl(server: ServerProcess, model: str, requests: Sequence[Arrays]) -> list[Arrays]:
    return [_curl_once(server, model, inputs) for inputs in requests]


def _curl_once(server: ServerProcess, model: str, inputs: Arrays) -> Arrays:
    tensors = [
        {
            "name": name,
            "datatype": by_numpy(array.dtype).kserve,
            "shape": array.shape,
            "data": array.ravel().tolist(),
        }
        for name, array in inputs.items()
    ]
    done = subprocess.run(
        ["curl", "-sS", f"http://{server.http}/v2/models/{model}/infer", "-d", "@-"],
        input=json.dumps({"inputs": tensors}).encode(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=30,
    )
    return {
        output["name"]: np.array(output["data"], by_kserve(output["datatype"]).numpy).reshape(
            output["shape"]
        )
        for output in json.loads(done.stdout)["outputs"]
    }


def pack(items: Sequence[Arrays]) -> bytes:
    """Dicts of arrays as the bytes of one .npz file."""
    flat = {f"{index}/{name}": a for index, item in enumerate(items) for name, a in item.items()}
    packed = io.BytesIO()
    np.savez(packed, **flat)
    return packed.getvalue()


def unpack(packed: bytes) -> list[Arrays]:
    """The inverse of `pack`."""
    items: list[Arrays] = []
    with np.load(io.BytesIO(packed)) as flat:
        for key in flat.files:
            index, name = key.split("/", 1)
            if int(index) == len(items):
                items.append({})
            items[-1][name] = flat[key]
    return items


CLIENTS: Mapping[str, Client] = {
    "hloserve": _hloserve,
    "tritonclient.grpc": partial(_triton, tritonclient.grpc, "grpc"),
    "tritonclient.grpc.aio": partial(_triton_aio, tritonclient.grpc.aio, "grpc"),
    "tritonclient.http": partial(_triton, tritonclient.http, "http"),
    "tritonclient.http.aio": partial(_triton_aio, tritonclient.http.aio, "http"),
    "kserve.grpc": partial(_kserve, "grpc"),
    "kserve.rest": partial(_kserve, "http"),
    "curl": _curl,
}
