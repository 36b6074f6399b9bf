"""Every kind of fault that the format names, in a bundle of real programs, next to a good one.

Each is refused with a message from which its author can mend it; the good bundle loads all the
same.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from support.faulty_bundles import FAULTS
from support.models_bundles import (
    ROWS4,
    WEIGHTS,
    affine,
    affine_text,
    replace_in,
    write_affine,
)

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.errors import HloserveError
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.loader import load_model, reason_of

pytestmark = pytest.mark.xla


@pytest.fixture(scope="module")
def backend() -> XlaBackend:
    """One CPU device for all tests of the file."""
    return XlaBackend("cpu")


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_bundle_is_refused_and_its_neighbour_serves(
    tmp_path: Path, backend: XlaBackend, fault: str
) -> None:
    """The message names the file or the key, what was expected and what is there."""
    damage, says = FAULTS[fault]
    broken = write_affine(tmp_path)
    damage(broken)
    with pytest.raises(HloserveError) as raised:
        load_model(broken, backend)
    reason = reason_of(raised.value)
    assert re.search(says, reason), reason
    assert str(tmp_path) not in reason
    assert len(reason) < 2000


def test_good_neighbour_loads(tmp_path: Path, backend: XlaBackend) -> None:
    """What the faulty ones were made of is in order, and computes."""
    model = load_model(write_affine(tmp_path), backend)
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    executable = model.device.executables[()][4]
    results = backend.execute(executable, [*backend.to_device([x]), *model.device.weights])
    np.testing.assert_allclose(backend.to_host(results)[0], affine(x), rtol=1e-5)
    model.free()


def test_too_many_files_for_a_model_without_batch_axis(tmp_path: Path, backend: XlaBackend) -> None:
    """Two sizes with nothing that could be a batch."""
    bundle = write_affine(tmp_path)
    replace_in(bundle / "manifest.yaml", '"an", dims: {a: 4}', '"ac", dims: {a: 4, c: 4}')
    with pytest.raises(HloserveError, match="no executable input has a batch axis"):
        load_model(bundle, backend)


def test_one_of_two_symbolic_files_is_specialised(tmp_path: Path, backend: XlaBackend) -> None:
    """A symbolic program under a sized name is fixed to that size."""
    bundle = write_affine(tmp_path)
    (bundle / "model.b4.mlir").write_text(affine_text("?"))
    model = load_model(bundle, backend)
    assert model.device.executables[()][4].signature.inputs[0].shape == (4, 4)
    model.free()


def test_symbolic_program_serves_every_listed_size(tmp_path: Path, backend: XlaBackend) -> None:
    """One file, several sizes, the same numbers."""
    bundle = write_bundle(
        tmp_path / "m", "m", [ROWS4], [IOSpec("y", "f32", (1, 3), batch_axis=0)],
        {0: affine_text("?")}, WEIGHTS,
    )  # fmt: skip
    replace_in(bundle / "manifest.yaml", "compiled_batch_sizes: []", "compiled_batch_sizes: [1, 8]")
    model = load_model(bundle, backend)
    for size, executable in model.device.executables[()].items():
        x = np.full((size, 4), size, np.float32)
        arguments = [*backend.to_device([x]), *model.device.weights]
        (y,) = backend.to_host(backend.execute(executable, arguments))
        np.testing.assert_allclose(y, affine(x), rtol=1e-6)
    model.free()


@pytest.mark.parametrize("layout", ["xla", "legacy"])
def test_64_bit_weights_and_inputs_are_exact(
    tmp_path: Path, backend: XlaBackend, layout: str
) -> None:
    """2**40 survives the way from file and request to the answer."""
    text = """module {
      func.func @main(%x: tensor<1x2xi64>, %w: tensor<1x2xi64>) -> tensor<1x2xi64> {
        %0 = stablehlo.add %x, %w : tensor<1x2xi64>
        return %0 : tensor<1x2xi64> } }"""
    ids = [IOSpec(name, "i64", (1, 2), batch_axis=0) for name in ("x", "y")]
    weights = {"w": np.array([[2**40, -(2**40)]], np.int64)}
    bundle = write_bundle(
        tmp_path / "m", "m", ids[:1], ids[1:], {1: text}, weights,
        layout=layout,  # type: ignore[arg-type]  # a literal
    )  # fmt: skip
    model = load_model(bundle, backend)
    x = np.array([[2**41, 1]], np.int64)
    arguments = [*backend.to_device([x]), *model.device.weights]
    (y,) = backend.to_host(backend.execute(model.device.executables[()][1], arguments))
    assert y.tolist() == [[2**41 + 2**40, 1 - 2**40]]
    model.free()


def test_weights_lie_in_the_arena(tmp_path: Path, backend: XlaBackend) -> None:
    """From the file to the device without a second copy."""
    model = load_model(write_affine(tmp_path), backend)
    arrays = backend.to_host(model.device.weights)
    for array, expected in zip(arrays, WEIGHTS.values(), strict=True):
        assert np.array_equal(array, expected)
    addresses = [array.ctypes.data for array in arrays]
    assert addresses[1] - addresses[0] == 64
    model.free()
