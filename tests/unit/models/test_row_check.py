"""What shows that rows of a batch influence each other, and what does not."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloserve.bundle.io_spec import IOSpec, build_specs
from hloserve.core.tensors import Array
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.bundle_check import check_bundle
from hloserve.models.row_check import (
    Batch,
    Influenced,
    allowed_share,
    find_influences,
    merges_rows,
)

Model = Callable[[Array], Array]
RNG = np.random.default_rng(3)


def _find(model: Model, rows: int = 4, axis: int = 0, **more: Any) -> list[Influenced]:
    """What is found of a function of one input of rows of five."""
    shape = (rows, 5) if axis == 0 else (5, rows)
    drawn = [RNG.standard_normal(shape).astype(more.pop("dtype", np.float32)) for _ in range(2)]

    def run(inputs: Sequence[Array]) -> list[Array]:
        return [model(inputs[0])]

    batch = Batch(drawn[:1], drawn[1:], [axis], run(drawn[:1]))
    findings: list[str] = []
    specs = build_specs("test", [IOSpec("y", "f32", shape, batch_axis=axis)], findings)
    return find_influences(run, batch, specs, allowed_share([drawn[0].dtype]), **more)


INFLUENCES: dict[str, Model] = {
    "mean": lambda x: x - 0.5 * x.mean(0),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(0),
    "flip": lambda x: x[::-1],
    "neighbour": lambda x: np.roll(x, 1, 0) + x,
    "pairs": lambda x: x.reshape(len(x) // 2, 2, -1)[:, ::-1].reshape(x.shape),
    "sum so far": lambda x: np.cumsum(x, 0),
    "sum from here": lambda x: np.cumsum(x[::-1], 0)[::-1],
    "first row": lambda x: x * x[0, 0],
    "last row": lambda x: x + x[-1:],
    "largest": lambda x: x / x.max(),
    "order": lambda x: np.argsort(x, 0),
    "place": lambda x: x + np.arange(len(x), dtype=x.dtype)[:, None],
    "a little": lambda x: x - 1e-5 * x.mean(0),
    "NaN of others": lambda x: x + 0 * np.log(np.abs(x).min()),
}


@pytest.mark.parametrize("model", INFLUENCES.values(), ids=INFLUENCES)
@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_every_kind_of_influence_is_found(model: Model, rows: int) -> None:
    """Of all others, of one of them in one direction, of the place, however many rows there are."""
    (found,) = _find(model, rows)

    assert "y" == found.name
    assert 0 < found.error
    assert "the rows influence each other" in str(found)


INDEPENDENT: dict[str, Model] = {
    "row by row": lambda x: x * 2,
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    "argmax": lambda x: x.argmax(1, keepdims=True),
    "NaN of its own": lambda x: x / np.abs(x).sum(1, keepdims=True),
    "NaN throughout": lambda x: x * np.float32("nan"),
    "constant": lambda x: x * 0 + 1,
}


@pytest.mark.parametrize("model", INDEPENDENT.values(), ids=INDEPENDENT)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_rows_of_their_own_pass(model: Model) -> None:
    """Zeros that turn into NaN, or a constant, are no influence."""
    assert [] == _find(model)


def test_batch_axis_may_be_any() -> None:
    """Rows lie along the axis that the specs say."""
    assert [] == _find(lambda x: x - x.mean(0), axis=1)
    assert _find(lambda x: x - x.mean(1, keepdims=True), axis=1)


def test_coarse_types_hide_no_influence() -> None:
    """In bfloat16 a tolerance of rounding would hide what others do to a row."""
    found = _find(lambda x: x - x.mean(0) / 8, rows=8, dtype=ml_dtypes.bfloat16)

    assert ["others"] == [each.by for each in found]


def test_what_an_author_tolerates_passes() -> None:
    """A scale over the whole batch, as quantising has, is the author's to accept."""
    model: Model = lambda x: x - 1e-3 * x.mean(0)  # noqa: E731

    assert _find(model)
    assert [] == _find(model, tolerance=1e-2)


def test_noise_is_no_influence() -> None:
    """A program that differs from itself says nothing of its rows."""
    assert [] == _find(lambda x: x + RNG.normal(size=x.shape).astype(x.dtype))


def test_only_merged_rows_are_looked_at() -> None:
    """Servers merge where every input and output has a batch axis, and batches hold several."""
    findings: list[str] = []
    batched, plain = (
        build_specs("test", [IOSpec("x", "f32", (1, 4), batch_axis=axis)], findings)
        for axis in (0, None)
    )

    assert merges_rows(batched, batched, 2)
    assert not merges_rows(batched, batched, 1)
    assert not merges_rows(batched, plain, 2)
    assert not merges_rows((), (), 2)


def _bundle(root: Path, axis: int | None) -> Path:
    """Written by somebody else: columns are normalised over the batch."""
    import jax
    from jax import export

    from hloserve.bundle import write_bundle

    def program(size: int) -> bytes:
        shape = jax.ShapeDtypeStruct((size, 4), np.float32)
        traced = export.export(jax.jit(lambda x: (x - x.mean(0),)), platforms=["cpu"])(shape)
        return bytes(traced.mlir_module_serialized)

    extent = 1 if axis == 0 else -1
    return write_bundle(
        root / "m",
        "m",
        [IOSpec("x", "f32", (1, 4), batch_axis=0)],
        [IOSpec("y", "f32", (extent, 4), batch_axis=axis)],
        {size: program(size) for size in (1, 3, 8)},
        [],
    )


@pytest.mark.xla
def test_check_warns_of_influence_in_bundles_of_any_writer(tmp_path: Path) -> None:
    """`hloserve check --run` names program, output and figure, once."""
    report = check_bundle(_bundle(tmp_path, 0), open_backend=lambda: XlaBackend("cpu"))

    (text,) = [f.text for f in report.warnings if "influence" in f.text]
    assert text.startswith("output 'y': the rows influence each other")
    assert "% of its signal" in text
    assert [] == report.errors
    assert 3 == len(report.runs)


@pytest.mark.xla
def test_check_leaves_rows_that_nobody_merges_alone(tmp_path: Path) -> None:
    """An output without a batch axis says that its rows belong together."""
    report = check_bundle(_bundle(tmp_path, None), open_backend=lambda: XlaBackend("cpu"))

    assert [] == report.errors
    assert not [f.text for f in report.warnings if "influence" in f.text]
