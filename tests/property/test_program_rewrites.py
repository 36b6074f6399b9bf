"""Rewritten programs compute what they were: every form of a convolution, against the original."""

import numpy as np
import pytest
from hypothesis import given, settings
from support.engine_programs import Convolution, convolutions, counts, module_of, run

from hloserve.engine.programs.compiling import CompileSettings
from hloserve.engine.programs.rewriting import apply_rewrites
from hloserve.engine.xla_backend import XlaBackend

pytestmark = pytest.mark.xla


@pytest.fixture(scope="module")
def rewriting() -> XlaBackend:
    """A device that rewrites."""
    return XlaBackend("cpu")


@pytest.fixture(scope="module")
def untouched() -> XlaBackend:
    """One that does not."""
    return XlaBackend("cpu", compiling=CompileSettings(has_rewrites=False))


@settings(max_examples=15)
@given(case=convolutions())
def test_rewritten_convolution_computes_the_same(
    rewriting: XlaBackend, untouched: XlaBackend, case: Convolution
) -> None:
    """Whatever its dimension numbers, strides, dilations, edges and type, up to rounding."""
    want = run(untouched, case.text(), *case.arrays)[0]
    got = run(rewriting, case.text(), *case.arrays)[0]

    epsilon = np.finfo(want.dtype).eps
    terms = np.prod(case.kernel_shape) / case.made
    np.testing.assert_allclose(got, want, rtol=0, atol=16 * epsilon * max(1, terms))


@settings(max_examples=40)
@given(case=convolutions())
def test_known_forms_are_all_rewritten(case: Convolution) -> None:
    """No convolution of one element without edges is left, and none with a kernel per channel."""
    module = module_of(case.text())
    is_pointwise = case.groups == 1 and set(case.window) == {1}
    is_known = case.groups > 1 or (is_pointwise and not any(map(any, case.edges)))

    used = apply_rewrites(module)

    assert is_known == bool(used)
    assert {"convolution": int(not is_known)} == counts(module, "convolution")
    assert module.operation.verify()
