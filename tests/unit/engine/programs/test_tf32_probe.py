"""Trying whether products of float32 are computed in float32."""

import numpy as np
import pytest

from hloserve.core.errors import BackendFailed, ConfigProblem
from hloserve.core.tensors import Array
from hloserve.engine.programs.tf32_probe import ProbeResult, attest, classify, probe_inputs


def _exact(mode: str) -> Array:
    return probe_inputs()[0]


def _tf32(mode: str) -> Array:
    """Products as TF32 has them: 10 bits of a fraction are left."""
    bits = probe_inputs()[0].view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


def _neither(mode: str) -> Array:
    return _exact(mode) * np.float32(1.5)


def test_matrix_tells_the_two_apart() -> None:
    """In float32 the product is the matrix; with TF32's bits it is 1 everywhere."""
    matrix, identity = probe_inputs()

    assert (512, 512) == matrix.shape
    assert np.array_equal(matrix, matrix.T)
    assert 1 + 511 / 2**20 == matrix.max()
    assert 1 + 2 / 2**20 == matrix[0, 0]
    assert ProbeResult.EXACT is classify(matrix @ identity)
    assert ProbeResult.TF32 is classify(_tf32("auto"))
    assert ProbeResult.INDETERMINATE is classify(_neither("auto"))


@pytest.mark.parametrize("compute", [_tf32, _neither])
def test_device_that_is_not_exact_cannot_serve_f32(compute: object) -> None:
    """The mode is a promise, so the start fails, and says what to look for."""
    with pytest.raises(ConfigProblem, match="NVIDIA_TF32_OVERRIDE") as caught:
        attest("f32", compute)  # type: ignore[arg-type]

    assert "runtime.numerics" == caught.value.at


def test_default_precision_only_informs() -> None:
    """Only the leg of the mode counts, and only for f32."""

    def exact_when_pinned(mode: str) -> Array:
        return _exact(mode) if mode == "f32" else _tf32(mode)

    assert ProbeResult.EXACT is attest("f32", exact_when_pinned)
    assert ProbeResult.TF32 is attest("auto", _tf32)
    assert ProbeResult.INDETERMINATE is attest("tf32", _neither)


def test_default_leg_may_fail() -> None:
    """A device that cannot run it serves all the same."""

    def broken(mode: str) -> Array:
        raise BackendFailed("compiling", "probe", "no")

    assert ProbeResult.INDETERMINATE is attest("auto", broken)
    with pytest.raises(BackendFailed):
        attest("f32", broken)
