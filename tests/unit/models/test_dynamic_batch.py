"""Which batch sizes a model is compiled for: the bundle's, or those that the operator names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax import ShapeDtypeStruct, export, jit
from support.models_bundles import (
    OUT3,
    ROWS4,
    WEIGHTS,
    affine,
    affine_text,
    replace_in,
    write_affine,
)

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.errors import ProgramProblem
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.loader import LoadOptions, load_model

pytestmark = pytest.mark.xla


@pytest.fixture(scope="module")
def backend() -> XlaBackend:
    """One CPU device for all tests of the file."""
    return XlaBackend("cpu")


def _write(root: Path, program: Any = None, **more: Any) -> Path:
    arguments: dict[str, Any] = {
        "executable_inputs": [ROWS4],
        "executable_outputs": [OUT3],
        "modules": {0: affine_text("?") if program is None else program},
        "weights": WEIGHTS,
        "dynamic_sizes": (1, 8),
    }
    return write_bundle(root / "m", "m", **(arguments | more))


def _sizes(bundle: Path, backend: XlaBackend, wanted: Sequence[int] | None) -> tuple[int, ...]:
    """Load, compare every size with the source, and tell the sizes."""
    model = load_model(bundle, backend, LoadOptions(batch_sizes=wanted))
    executables = model.device.executables[()]
    for size, executable in executables.items():
        x = np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)
        arguments = [*backend.to_device([x]), *model.device.weights]
        (y,) = backend.to_host(backend.execute(executable, arguments))
        np.testing.assert_allclose(y, affine(x), rtol=1e-5, atol=1e-6)
    model.free()
    return tuple(executables)


def _findings(
    bundle: Path, backend: XlaBackend, wanted: Sequence[int] | None = None
) -> Sequence[str]:
    with pytest.raises(ProgramProblem) as caught:
        load_model(bundle, backend, LoadOptions(batch_sizes=wanted))
    return caught.value.findings


@pytest.mark.parametrize(
    ("wanted", "sizes"), [(None, (1, 8)), ((3,), (3,)), ((64, 2, 2), (2, 64)), ((8,), (8,))]
)
def test_dynamic_bundle_serves_the_operators_sizes(
    tmp_path: Path, backend: XlaBackend, wanted: Sequence[int] | None, sizes: tuple[int, ...]
) -> None:
    """Any size will do; without a setting those of the manifest are compiled."""
    assert sizes == _sizes(_write(tmp_path), backend, wanted)


def test_symbolic_program_of_an_older_bundle_takes_any_size_too(
    tmp_path: Path, backend: XlaBackend
) -> None:
    """Format 2.1 has such programs, without saying so; also without a list of sizes."""
    bundle = _write(tmp_path, dynamic_sizes=None)

    assert (2, 5) == _sizes(bundle, backend, (5, 2))
    (finding,) = _findings(bundle, backend)
    assert (
        "list the sizes to compile, such as [1, 8, 32], there or in scheduler.models.m" in finding
    )


def test_operator_chooses_among_fixed_sizes(tmp_path: Path, backend: XlaBackend) -> None:
    """What is not chosen is not compiled."""
    assert (1, 4) == _sizes(write_affine(tmp_path, sizes=(1, 2, 4)), backend, (4, 1))


def test_size_without_a_program_is_refused(tmp_path: Path, backend: XlaBackend) -> None:
    """The message lists what there is."""
    (finding,) = _findings(write_affine(tmp_path, sizes=(1, 2, 4)), backend, (4, 16, 3))

    assert finding == (
        "scheduler.models.affine.batch_sizes asks for 3, 16, but the bundle's programs are for"
        " 1, 2, 4; choose among these, or export it with a dynamic batch"
    )


def test_single_program_of_one_size_has_that_size(tmp_path: Path, backend: XlaBackend) -> None:
    """The size of `model.mlir` is in its types."""
    bundle = _write(tmp_path, affine_text(4), dynamic_sizes=None)

    assert (4,) == _sizes(bundle, backend, (4,))
    (finding,) = _findings(bundle, backend, (1, 4))
    assert "asks for 1, but the bundle's programs are for 4;" in finding


def test_sizes_for_a_model_without_batch_axis_are_refused(
    tmp_path: Path, backend: XlaBackend
) -> None:
    """There is nothing to choose."""
    bundle = write_bundle(
        tmp_path / "m", "m", [IOSpec("x", "f32", (4, 4))], [IOSpec("y", "f32", (4, 3))],
        {0: affine_text(4)}, WEIGHTS,
    )  # fmt: skip

    (finding,) = _findings(bundle, backend, (1,))
    assert "scheduler.models.m.batch_sizes is set, but no executable input has a batch" in finding


def test_variants_are_specialised_to_the_same_sizes(tmp_path: Path, backend: XlaBackend) -> None:
    """Each variant has one program with an open batch axis."""

    def identity(width: int) -> bytes:
        (batch,) = export.symbolic_shape("b")
        kind = ShapeDtypeStruct((batch, width), "float32")
        exported = export.export(jit(lambda x: x * 2), platforms=["cpu"])(kind)
        return bytes(exported.mlir_module_serialized)

    spec = IOSpec("x", "f32", (1, -1), batch_axis=0)
    bundle = _write(
        tmp_path,
        executable_inputs=[spec],
        executable_outputs=[IOSpec("y", "f32", (1, -1), batch_axis=0)],
        modules={(3,): {0: identity(3)}, (5,): {0: identity(5)}},
        weights={},
        input_shapes=[(3,), (5,)],
    )

    model = load_model(bundle, backend, LoadOptions(batch_sizes=(2, 6)))

    shapes = {
        key: [executable.signature.outputs[0].shape for executable in sizes.values()]
        for key, sizes in model.device.executables.items()
    }
    assert {(3,): [(2, 3), (6, 3)], (5,): [(2, 5), (6, 5)]} == shapes
    model.free()


def test_size_that_the_program_rules_out_is_named(tmp_path: Path, backend: XlaBackend) -> None:
    """Each size that does not fit is told, with the assertion of whoever exported the program."""
    (batch,) = export.symbolic_shape("b", constraints=["b >= 2", "mod(b, 2) == 0"])
    kinds = [ShapeDtypeStruct((batch, 4), "float32")]
    kinds += [ShapeDtypeStruct(w.shape, w.dtype) for w in WEIGHTS.values()]
    program = export.export(jit(lambda x, w, b: x @ w + b), platforms=["cpu"])(*kinds)

    findings = _findings(_write(tmp_path, program), backend, (1, 2, 3))

    assert len(findings) == 2
    assert findings[0].startswith("model.mlir at batch size 1: cannot be specialised to (tensor<1x")
    assert "symbolic shape constraint b >= 2. Expected 'b - 2' to be greater" in findings[0]
    assert findings[1].startswith("model.mlir at batch size 3: ")
    assert "2*floordiv(b, 2) == b" in findings[1]
    assert all("http" not in finding and "loc(" not in finding for finding in findings)


def test_static_program_is_not_dynamic(tmp_path: Path, backend: XlaBackend) -> None:
    """The manifest promises any size, the program has one."""
    (finding,) = _findings(_write(tmp_path, affine_text(8)), backend)

    assert (
        "model.mlir: input 'x' (argument 0) takes batches of 8 only (tensor<8x4xf32>), but"
        " batching.dynamic is true" in finding
    )


def test_other_open_extents_are_not_dynamic_batch(tmp_path: Path, backend: XlaBackend) -> None:
    """Only the batch axis is open: other shapes are variants, each with its program."""
    batch, width = export.symbolic_shape("b, w")
    kinds = [ShapeDtypeStruct((batch, width), "float32"), ShapeDtypeStruct((width,), "float32")]
    program = export.export(jit(lambda x, w: x * w), platforms=["cpu"])(*kinds)
    bundle = _write(
        tmp_path, program, executable_outputs=[IOSpec("y", "f32", (1, 4), batch_axis=0)],
        weights={"w": np.ones(4, np.float32)},
    )  # fmt: skip

    findings = _findings(bundle, backend)

    assert len(findings) == 2
    assert "input 'x' (argument 0) has open extents that are not the batch axis" in findings[0]
    assert "axis 1); batching.dynamic leaves the batch axis alone open" in findings[0]
    assert "a weight (argument 1) has open extents" in findings[1]


def test_older_reader_would_be_told_the_version(tmp_path: Path, backend: XlaBackend) -> None:
    """Version 2.1 with the key is a mistake of the writer."""
    bundle = _write(tmp_path)
    replace_in(bundle / "manifest.yaml", '"2.2"', '"2.1"')

    with pytest.raises(Exception, match=r"batching\.dynamic needs format_version '2\.2'"):
        load_model(bundle, backend)
