"""Asks a server by kserve's client, as a process: `python -m support.demo_kserve http|grpc ...`.

Requests come on standard input and answers go to standard output, both as .npz (`pack` of
`support.demo_clients`, written out again here because that module imports Triton's client).
"""

import asyncio
import io
import sys
from typing import Any

import kserve
import numpy as np

_DATATYPES = {"uint8": "UINT8", "int32": "INT32", "float32": "FP32"}


def _request(model: str, inputs: dict[str, Any], *, binary: bool) -> kserve.InferRequest:
    tensors = []
    for name, array in inputs.items():
        tensor = kserve.InferInput(name, list(array.shape), _DATATYPES[array.dtype.name])
        tensor.set_data_from_numpy(array, binary_data=binary)
        tensors.append(tensor)
    return kserve.InferRequest(model_name=model, infer_inputs=tensors)


async def _ask(scheme: str, address: str, model: str, requests: list[dict[str, Any]]) -> list[Any]:
    if scheme == "grpc":
        grpc = kserve.InferenceGRPCClient(address)
        answers = [await grpc.infer(_request(model, inputs, binary=True)) for inputs in requests]
        await grpc.close()
        return answers
    rest = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
    answers = [
        await rest.infer(
            # JSON and the binary extension in turn
            f"http://{address}",
            _request(model, inputs, binary=index % 2 == 1),
            model_name=model,
        )
        for index, inputs in enumerate(requests)
    ]
    await rest.close()
    return answers


def main() -> None:
    """Read, ask, write."""
    requests: dict[int, dict[str, Any]] = {}
    with np.load(io.BytesIO(sys.stdin.buffer.read())) as flat:
        for key in flat.files:
            index, name = key.split("/", 1)
            requests.setdefault(int(index), {})[name] = flat[key]
    scheme, address, model = sys.argv[1:]
    answers = asyncio.run(_ask(scheme, address, model, list(requests.values())))
    np.savez(
        sys.stdout.buffer,
        **{
            f"{index}/{output.name}": output.as_numpy()
            for index, answer in enumerate(answers)
            for output in answer.outputs
        },
    )


if __name__ == "__main__":
    main()
