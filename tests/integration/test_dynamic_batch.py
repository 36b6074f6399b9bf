"""A real server whose operator names the batch sizes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax import ShapeDtypeStruct, export, jit
from support.models_bundles import OUT3, ROWS4, WEIGHTS, affine, write_affine
from support.server_process import running_server

from hloserve import Client
from hloserve.bundle import write_bundle

pytestmark = [pytest.mark.xla, pytest.mark.integration]


def _write_symbolic(root: Path, name: str, sizes: tuple[int, ...], *constraints: str) -> None:
    (batch,) = export.symbolic_shape("b", constraints=constraints)
    kinds = [ShapeDtypeStruct(shape, "float32") for shape in ((batch, 4), (4, 3), (3,))]

    def function(x: Any, w: Any, b: Any) -> Any:
        return x @ w + b

    exported = export.export(jit(function), platforms=["cpu"])(*kinds)
    write_bundle(root / name, name, [ROWS4], [OUT3], {0: exported}, WEIGHTS, dynamic_sizes=sizes)


def test_server_compiles_what_its_operator_names(tmp_path: Path) -> None:
    """Clients get the right rows at every size; a size that cannot be is told, others serve."""
    repository = tmp_path / "models"
    _write_symbolic(repository, "as_listed", (1, 4))
    _write_symbolic(repository, "as_wanted", (1, 4))
    _write_symbolic(repository, "ruled_out", (2, 4), "b >= 2")
    write_affine(repository, "chosen", sizes=(1, 2, 8))
    write_affine(repository, "missing", sizes=(1, 2, 8))
    node_file = tmp_path / "node.yaml"
    node_file.write_text(
        "scheduler:\n  models:\n    as_wanted: {batch_sizes: [5, 2]}\n"
        "    ruled_out: {batch_sizes: [1]}\n    chosen: {batch_sizes: [2]}\n"
        "    missing: {batch_sizes: [3]}\n"
    )

    with (
        running_server(tmp_path, "serve", str(repository), "--config", str(node_file)) as server,
        Client(server.grpc) as client,
    ):
        loaded = {e["model"]: e["sizes"] for e in server.log if e["event"] == "model_loaded"}
        assert {"as_listed": [1, 4], "as_wanted": [2, 5], "chosen": [2]} == loaded
        for model, sizes in loaded.items():
            metadata = client.model_metadata(model)
            assert ((-1, 4), tuple(sizes)) == (metadata.inputs[0].shape, metadata.batch_sizes)
            for count in range(1, max(sizes) + 1):
                x = np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)
                y = client.infer(model, {"x": x})["y"]
                np.testing.assert_allclose(y, affine(x), rtol=1e-5, atol=1e-6)
        reasons = {entry.name: entry.reason for entry in client.repository_index()}
        assert "model.mlir at batch size 1: cannot be specialised" in reasons["ruled_out"]
        assert "b >= 2" in reasons["ruled_out"]
        assert "asks for 3, but the bundle's programs are for 1, 2, 8" in reasons["missing"]
