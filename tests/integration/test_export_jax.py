"""JAX functions, exported, checked, served, and compared through a client."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.server_process import running_server

from hloserve import Client
from hloserve.engine.xla_backend import XlaBackend
from hloserve.export import export_jax
from hloserve.models.bundle_check import check_bundle

pytestmark = [pytest.mark.xla, pytest.mark.integration]

_RANDOM = np.random.default_rng(0)
_EMBED = _RANDOM.normal(size=(11, 6)).astype(np.float32)
_WEIGHTS = {
    "embed": _EMBED,
    "head": _EMBED,  # tied
    "scale": np.linspace(0.5, 2, 6).astype(jnp.bfloat16),
    "shift": np.array([1, 2, 3], np.int64),
    "spare": np.ones((3, 2), np.float16),
}
_SIZES = (1, 4, 8)


def _predict(ids: Any, image: Any, w: Any) -> dict[str, Any]:
    """Two inputs, a dict of outputs, tied and unused weights, three dtypes."""
    x = w["embed"][ids].mean(axis=1) * w["scale"].astype(jnp.float32)
    x = jnp.tanh(x + image.reshape(image.shape[0], -1)[:, :6])
    return {"logits": x @ w["head"].T, "next": ids[:, :3] + w["shift"]}


def _inputs(rows: int) -> dict[str, Any]:
    random = np.random.default_rng(rows)
    return {
        "ids": random.integers(0, 11, (rows, 5)),
        "image": random.normal(size=(rows, 2, 4)).astype(np.float32),
    }


def test_exported_functions_are_served_as_they_compute(tmp_path: Path) -> None:
    """Fixed and dynamic bundles pass every check, and clients get what the function gives."""
    repository = tmp_path / "models"
    example = _inputs(8)
    export_jax(_predict, example, _WEIGHTS, dir=repository / "fixed", batch_sizes=_SIZES)
    export_jax(
        _predict,
        example,
        _WEIGHTS,
        dir=repository / "open",
        batch_sizes="dynamic",
        dynamic_sizes=_SIZES,
    )

    for name in ("fixed", "open"):
        report = check_bundle(repository / name, open_backend=lambda: XlaBackend("cpu"))
        assert [] == report.findings
    with (
        running_server(tmp_path, "serve", str(repository)) as server,
        Client(server.grpc) as client,
        jax.enable_x64(True),
    ):
        for rows in _SIZES:
            inputs = _inputs(rows)
            wanted = _predict(inputs["ids"], inputs["image"], jax.tree.map(jnp.asarray, _WEIGHTS))
            for name in ("fixed", "open"):
                got = client.infer(name, inputs)
                np.testing.assert_allclose(got["logits"], wanted["logits"], rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(got["next"], wanted["next"])
                assert np.int64 == got["next"].dtype
