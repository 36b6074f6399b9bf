"""Ask a running server as many rows as each batch size has, and compare with the source model.

What lives here: three clients behind one signature, and the table of errors that the examples of
exporters print. What does not: the models.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tritonclient.grpc
import tritonclient.http

import hloserve
from hloserve.core.dtypes import BYTES, by_numpy

__all__ = ["TOLERANCE", "Arrays", "ask_triton", "compare_served", "parse_addresses"]

TOLERANCE = 1e-4

Arrays: TypeAlias = Mapping[str, Any]
"""By the name of the tensor; rows along the first axis."""

Ask: TypeAlias = Callable[[Arrays], Arrays]


def parse_addresses(description: str) -> argparse.Namespace:
    """Read ``--http`` and ``--grpc`` from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--http", default="127.0.0.1:8000", metavar="HOST:PORT")
    parser.add_argument("--grpc", default="127.0.0.1:8001", metavar="HOST:PORT")
    parser.add_argument("checkpoint", type=Path, help="what make_bundle kept of the source model")
    return parser.parse_args()


def compare_served(
    model: str,
    source: Callable[[Arrays], Arrays],
    rows: Arrays,
    sizes: Sequence[int],
    *,
    http: str,
    grpc: str,
) -> None:
    """Print the largest error by client and size.

    Args:
        model: its name in the server.
        source: the model itself, from inputs to outputs.
        rows: inputs, at least as many rows as the largest size.
        sizes: rows per request.
        http: address of the server's REST.
        grpc: address of its gRPC.

    Raises:
        SystemExit: an error is above 1e-4.
    """
    worst = 0.0
    with (
        hloserve.Client(grpc) as own,
        tritonclient.grpc.InferenceServerClient(grpc) as over_grpc,
        tritonclient.http.InferenceServerClient(http) as over_http,
    ):
        asks: dict[str, Ask] = {
            "hloserve.Client": lambda inputs: own.infer(model, dict(inputs)),
            "tritonclient.grpc": ask_triton(tritonclient.grpc, over_grpc, model),
            "tritonclient.http": ask_triton(tritonclient.http, over_http, model),
        }
        for size in sizes:
            inputs = {name: array[:size] for name, array in rows.items()}
            expected = source(inputs)
            for client, ask in asks.items():
                error = _largest_error(ask(inputs), expected)
                print(f"  {client:18} {size:3} rows  {error:.1e}")
                worst = max(worst, error)
    if not worst <= TOLERANCE:
        raise SystemExit(f"{worst:.1e} is more than {TOLERANCE:.0e}")


def _largest_error(got: Arrays, expected: Arrays) -> float:
    if got.keys() != expected.keys():
        raise SystemExit(f"outputs are {sorted(got)}, expected {sorted(expected)}")
    return max(
        float(np.max(np.abs(np.asarray(got[name], np.float64) - np.asarray(wanted, np.float64))))
        for name, wanted in expected.items()
    )


def ask_triton(module: Any, client: Any, model: str) -> Ask:
    """How to ask a model by Triton's client; `module` is its `tritonclient.http` or `.grpc`.

    Arrays of objects are strings, `BYTES` of the protocol.
    """

    def ask(inputs: Arrays) -> Arrays:
        tensors = []
        for name, array in inputs.items():
            datatype = BYTES if array.dtype == object else by_numpy(array.dtype)
            tensor = module.InferInput(name, array.shape, datatype.kserve)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        result = client.infer(model, tensors)
        response = result.get_response()
        if isinstance(response, dict):  # HTTP's; gRPC's is a message
            names = [output["name"] for output in response["outputs"]]
        else:
            names = [output.name for output in response.outputs]
        return {name: result.as_numpy(name) for name in names}

    return ask
