"""Functions that cannot be traced: the author's line, and a next step."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from hloserve.export import ExportProblem, export_jax

pytestmark = pytest.mark.xla

_X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
_TABLE = np.ones((160, 160), np.float32)
_BATCHED = {"batch_sizes": [1, 3]}


def _refused(
    directory: Path,
    function: Callable[..., Any],
    examples: Any = (_X,),
    weights: Any = (),
    **options: Any,
) -> str:
    """Export what must be refused; return what is said."""
    with pytest.raises(ExportProblem) as caught:
        export_jax(function, examples, weights, dir=directory / "model", **options)
    assert [] == list(directory.iterdir()), "something was left behind"
    return "\n".join(caught.value.findings)


def _divide(x: Any) -> Any:
    return x * (1 / 0)


def _mask(x: Any) -> Any:
    return x[x > 0].sum()


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (_mask, "jnp.where(mask, x, 0)"),
        (_divide, "its own code fails at test_failed_traces.py line"),
        (lambda x: x.T @ x.T, "call it on arrays of the shapes that are exported"),
        (lambda x: np.asarray(x), "use jax.numpy"),
    ],
    ids=["mask", "division", "shapes", "numpy"],
)
@pytest.mark.parametrize("options", [{}, _BATCHED], ids=["single", "batched"])
def test_failed_trace_names_the_line_and_a_next_step(
    tmp_path: Path, function: Callable[..., Any], told: str, options: dict[str, Any]
) -> None:
    """The author's line, whatever the trace failed by, and what to do."""
    said = _refused(tmp_path, function, **options)

    assert re.search(r" at test_failed_traces.py line \d+", said)
    assert told in said


@pytest.mark.parametrize(
    ("function", "weights", "told"),
    [
        (lambda x, w, b: x @ w + b, {"w": _TABLE[:4], "b": _TABLE[0]}, "as one dict, and are one"),
        (lambda x, w: x @ w, {"w": _TABLE[:4]}, "as one dict, and are one argument"),
        (lambda x, w: x @ w["w"], [("w", _TABLE[:4])], "as pairs, and are an argument each: 'w'"),
    ],
    ids=["missing argument", "dict as an array", "array as a dict"],
)
def test_function_that_expects_its_weights_otherwise_is_told_how_they_arrive(
    tmp_path: Path, function: Callable[..., Any], weights: Any, told: str
) -> None:
    """Pairs are an argument each, a tree is one."""
    assert told in _refused(tmp_path, function, (_X,), weights)


def test_other_float8_names_those_that_can_be_stored(tmp_path: Path) -> None:
    """Two of the many are types of bundles."""
    said = _refused(tmp_path, lambda x: x, (jnp.ones((2, 3), jnp.float8_e4m3fnuz),))

    assert "float8_e4m3fn and float8_e5m2" in said
