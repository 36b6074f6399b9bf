"""The examples of docs/client.md run as they stand."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.client_servers import Methods, serve_with_ours, streamed

from hloserve.core.dtypes import F32
from hloserve.core.requests import (
    InferResponse,
    ModelIndexEntry,
    ModelMetadata,
    ModelState,
    SharedTensor,
    SharedTensors,
    TensorMetadata,
)
from hloserve.core.tensors import Tensors
from hloserve.wire import v2_protobuf as codec
from hloserve.wire import v2_protobuf_metadata as calls

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def infer(body: bytes) -> bytes:
    """Answer as the demo's digit classifier does, always with a 3."""
    request = codec.decode_infer_request(body, 0)
    if request.shared is not None:
        return codec.encode_infer_response(infer_shared(request.shared))
    rows = request.inputs["image"].shape[0]
    assert request.inputs["image"].dtype == np.uint8
    outputs: Tensors = {
        "probabilities": np.zeros((rows, 10), np.float32),
        "digit": np.full(rows, 3, np.int32),
    }
    for name, count in (request.classes or {}).items():
        outputs[name] = np.full((rows, count), b"0.100000:3:three", object)
    chosen = {name: outputs[name] for name in request.outputs or outputs}
    return codec.encode_infer_response(InferResponse(request.model, chosen, request.id))


def infer_shared(shared: SharedTensors) -> InferResponse:
    """Say that the probabilities are where they were asked to be."""
    rows = shared.inputs["image"].shape[0]
    ((name, place),) = shared.outputs.items()
    array = np.zeros((rows, 10), np.float32)
    tensor = SharedTensor(F32, array.shape, place)
    return InferResponse("digits", {name: array}, shared={name: tensor})


METHODS: Methods = {
    "SystemSharedMemoryRegister": lambda body: b"",
    "SystemSharedMemoryUnregister": lambda body: b"",
    "ModelInfer": infer,
    "ModelMetadata": lambda body: calls.encode_model_metadata(
        ModelMetadata("digits", (), "cpu", (TensorMetadata("image", "UINT8", (-1, 8, 8)),), ())
    ),
    "RepositoryIndex": lambda body: calls.encode_repository_index(
        [ModelIndexEntry("digits", "", ModelState.READY, "")]
    ),
}


def test_the_page_has_examples() -> None:
    """The pattern finds them, so the test below tests something."""
    assert len(EXAMPLES) > 4


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_of_the_page_run(example: str) -> None:
    """A reader can paste each one; only the address differs."""
    with serve_with_ours(METHODS, streams={"ModelStreamInfer": streamed(infer)}) as address:
        exec(compile(example.replace("127.0.0.1:8001", address), str(PAGE), "exec"), {})
