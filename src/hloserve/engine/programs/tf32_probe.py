"""Whether a device computes float32 products in float32: tried, not believed.

What lives here: a product whose result tells, and reading it. What does not: running it
(`hloserve.engine.xla_backend`). A driver, a library or a variable of the environment can override
what a program asks for, so the mode `f32` is proved on the device before anything is compiled.

The product is A I, with A[i, j] = 1 + ((i + j) mod 512) / 2**20 and I the identity. In float32 it
is A, bit for bit. TF32 keeps 10 bits of the fraction, so there every element is 1.
"""

import logging
from collections.abc import Callable
from enum import Enum

import numpy as np

from hloserve.core.errors import ConfigProblem, HloserveError
from hloserve.core.logging import log_event
from hloserve.core.tensors import Array
from hloserve.engine.programs.numerics import NumericsMode

__all__ = ["PROBE_PROGRAM", "ProbeResult", "attest", "classify", "probe_inputs"]

log = logging.getLogger(__name__)

_SIZE = 512
_KIND = f"tensor<{_SIZE}x{_SIZE}xf32>"
PROBE_PROGRAM = f"""module @probe {{
  func.func public @main(%a: {_KIND}, %b: {_KIND}) -> {_KIND} {{
    %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({_KIND}, {_KIND}) -> {_KIND}
    return %c : {_KIND}
  }}
}}""".encode()


class ProbeResult(Enum):
    """What a device made of the product."""

    EXACT = "exact float32"
    TF32 = "TF32"
    INDETERMINATE = "neither float32 nor TF32"


def probe_inputs() -> tuple[Array, Array]:
    """The two matrices, (512, 512) float32."""
    number = np.arange(1, _SIZE + 1)
    shifted = (number[:, None] + number[None, :]) % _SIZE
    return (1 + shifted / 2**20).astype(np.float32), np.eye(_SIZE, dtype=np.float32)


def classify(result: Array) -> ProbeResult:
    """Read what came out of the product of `probe_inputs`."""
    if np.array_equal(result, probe_inputs()[0]):
        return ProbeResult.EXACT
    return ProbeResult.TF32 if bool(np.all(result == 1)) else ProbeResult.INDETERMINATE


def attest(mode: NumericsMode, compute: Callable[[NumericsMode], Array]) -> ProbeResult:
    """Try the device at the precision it has by default, and for mode `f32` as programs will be.

    Args:
        mode: what the operator wants.
        compute: runs `PROBE_PROGRAM` on `probe_inputs`, prepared as programs are in a mode.

    Returns:
        What the device does with programs of the mode.

    Raises:
        ConfigProblem: mode `f32` is wanted, and products are not exact.
    """
    default = _try_default(compute)
    if mode != "f32":
        return default
    pinned = classify(compute("f32"))
    log_event(log, "numerics_attested", default=default.value, f32=pinned.value)
    if pinned is not ProbeResult.EXACT:
        raise ConfigProblem(
            "device",
            "runtime.numerics",
            f"is 'f32', but this device computes products in {pinned.value}, even at the highest"
            " precision; look for what overrides it (NVIDIA_TF32_OVERRIDE, XLA_FLAGS), or set"
            " 'auto'",
        )
    return pinned


def _try_default(compute: Callable[[NumericsMode], Array]) -> ProbeResult:
    """The first leg tells only: a device that fails it serves all the same."""
    try:
        result = classify(compute("auto"))
    except HloserveError as error:
        log_event(log, "numerics_probe_failed", level=logging.WARNING, reason=str(error))
        return ProbeResult.INDETERMINATE
    level = logging.WARNING if result is ProbeResult.INDETERMINATE else logging.INFO
    log_event(log, "numerics_probed", level=level, default=result.value)
    return result
