"""Programs across versions of jaxlib, run by those versions: `make test-compatibility`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compatibility import reference_model
from compatibility.old_versions import VERSIONS, OldVersion

from hloserve import load_manifest, read_bundle_weights
from hloserve.bundle.layout import find_programs
from hloserve.core.tensors import Array
from hloserve.engine.xla_backend import XlaBackend
from hloserve.export import export_jax

pytestmark = [pytest.mark.compatibility, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def backend() -> XlaBackend:
    """One CPU device for all tests of the file."""
    return XlaBackend("cpu")


@pytest.fixture(scope="module", params=VERSIONS)
def old(request: pytest.FixtureRequest) -> OldVersion:
    """Each old version, installed."""
    version = OldVersion(request.param)
    version.install()
    return version


def _run(backend: XlaBackend, program: Path, arguments: Sequence[Array]) -> list[Array]:
    executable = backend.compile(backend.read_program(program.read_bytes(), program.name), "m")
    results = backend.execute(executable, backend.to_device(arguments))
    return [np.array(value) for value in backend.to_host(results)]


def _error(expected: Sequence[Array], got: Sequence[Array]) -> float:
    """The largest difference, as a share of the largest value; types must be equal."""
    assert [(v.dtype, v.shape) for v in expected] == [(v.dtype, v.shape) for v in got]
    pairs = zip(expected, got, strict=True)
    return max(float(np.abs(a - b).max() / max(1e-30, np.abs(a).max())) for a, b in pairs)


def test_program_of_an_old_version_runs_here(
    old: OldVersion, backend: XlaBackend, tmp_path: Path
) -> None:
    """What an old version exports is loaded, compiled and right."""
    old.run("write_artifact.py", tmp_path)
    with np.load(tmp_path / "values.npz") as values:
        arguments = [values[name] for name in values.files if name.startswith("argument_")]
        expected = [values[name] for name in values.files if name.startswith("result_")]

    error = _error(expected, _run(backend, tmp_path / "program.mlir", arguments))

    print(f"written by jaxlib {old.version}, run here: error {error:.1e}")
    assert error < 1e-5


def _jax_model() -> tuple[Callable[..., Any], tuple[Array, ...]]:
    image, ids, kernel, table = reference_model.example()
    weights = [("kernel", kernel), ("table", table)]
    return lambda **o: export_jax(reference_model.predict, (image, ids), weights, **o), (image, ids)


def _torch_model() -> tuple[Callable[..., Any], tuple[Array, ...]]:
    torch = pytest.importorskip("torch")
    from hloserve.export import export_pytorch

    class Net(torch.nn.Module):  # type: ignore[name-defined,misc]  # torch is not followed
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(8)
            self.mix = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.head = torch.nn.Linear(8, 5)

        def forward(self, image: Any) -> Any:
            rows = torch.nn.functional.gelu(self.norm(self.convolution(image)))
            mixed = self.mix(rows.flatten(2).transpose(1, 2))
            logits = self.head(mixed.mean(1))
            return {"logits": logits, "best": logits.topk(2).indices}

    torch.manual_seed(0)
    image = torch.randn(2, 3, 8, 8)
    return lambda **o: export_pytorch(Net().eval(), image, **o), (image.numpy(),)


@pytest.mark.parametrize("model", [_jax_model, _torch_model])
def test_program_of_ours_runs_on_an_old_version(
    old: OldVersion,
    backend: XlaBackend,
    tmp_path: Path,
    model: Callable[[], tuple[Callable[..., Any], tuple[Array, ...]]],
) -> None:
    """A bundle's program, as exported by default, gives the same numbers there as here."""
    export, inputs = model()
    bundle = tmp_path / "m"
    export(dir=bundle, batch_sizes=[2])
    (program,) = find_programs(bundle, load_manifest(bundle))
    weights = read_bundle_weights(bundle).values()
    arguments = [*inputs, *map(np.array, weights)]
    expected = _run(backend, program.path, arguments)
    values: dict[str, Any] = {f"argument_{n:04}": value for n, value in enumerate(arguments)}
    values |= {f"like_{n}": value for n, value in enumerate(expected)}
    np.savez(tmp_path / "arguments.npz", **values)

    old.run("run_program.py", program.path, tmp_path / "arguments.npz", tmp_path / "results.npz")

    with np.load(tmp_path / "results.npz") as results:
        error = _error(expected, [results[name] for name in results.files])
    print(f"{model.__name__} written here, run by jaxlib {old.version}: error {error:.1e}")
    assert error < 1e-5
