"""Models whose rows influence each other are not exported with a batch axis."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hloserve.bundle import load_manifest
from hloserve.core.errors import BadRequest
from hloserve.engine.device_model import DeviceModel
from hloserve.export import ExportProblem, export_jax
from hloserve.models.bundle_check import check_bundle

pytestmark = pytest.mark.xla

_X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
_W = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


def _export(function: Callable[..., Any], directory: Path, sizes: Any, **options: Any) -> Any:
    return export_jax(
        function, {"x": _X}, [("w", _W)], dir=directory / "m", batch_sizes=sizes, **options
    )


def _centred(x: Any, w: Any) -> Any:
    return (x - 0.5 * x.mean(0)) @ w


def _loop(x: Any, w: Any) -> Any:
    return jax.lax.while_loop(lambda c: jnp.abs(c).sum() < 100, lambda c: c * 1.5, x @ w)


INFLUENCES: dict[str, tuple[Callable[..., Any], Any]] = {
    "mean": (_centred, [1, 3, 8]),
    "softmax over the batch": (lambda x, w: jax.nn.softmax(x @ w, 0), [4, 8]),
    "flip": (lambda x, w: jnp.flip(x, 0) @ w, [3]),
    "loop until all are done": (_loop, "dynamic"),
    "place": (lambda x, w: x @ w + jnp.arange(x.shape[0])[:, None], [1, 4]),
    "one of two outputs": (lambda x, w: (x @ w, jnp.argsort(x @ w, 0)), [1, 4]),
}


@pytest.mark.parametrize("name", INFLUENCES)
def test_rows_that_influence_each_other_are_refused(name: str, tmp_path: Path) -> None:
    """The message has the output, the figure and the ways out, and nothing is left."""
    function, sizes = INFLUENCES[name]
    with pytest.raises(ExportProblem, match=r"'output\w*': the rows influence each other") as e:
        _export(function, tmp_path, sizes)

    assert "of its signal" in str(e.value)
    assert "output_batch_axes" in str(e.value)
    assert [] == list(tmp_path.iterdir())


def test_answers_that_depend_on_the_number_of_rows_are_refused(tmp_path: Path) -> None:
    """A batch is filled up, so a row cannot know how many rows there are."""
    with pytest.raises(ExportProblem, match="depends on how many rows its batch has"):
        _export(lambda x, w: x @ w / x.shape[0], tmp_path, [1, 4])


def test_what_influences_in_training_alone_passes(tmp_path: Path) -> None:
    """Normalising within a row, attention and argmax are no influence."""

    def attention(x: Any, w: Any) -> Any:
        y = x @ w
        y = (y - y.mean(1, keepdims=True)) / y.std(1, keepdims=True)
        weights = jax.nn.softmax(y[:, :, None] * y[:, None, :])
        return (weights @ y[:, :, None])[..., 0], y.argmax(1)

    report = _export(attention, tmp_path, [1, 4])

    assert () == report.warnings


def test_a_tolerance_accepts_a_little_influence(tmp_path: Path) -> None:
    """Such as a scale of quantised values that is taken over the batch."""
    small: Callable[..., Any] = lambda x, w: (x - 1e-4 * x.mean(0)) @ w  # noqa: E731
    with pytest.raises(ExportProblem, match="influence"):
        _export(small, tmp_path, [3])
    _export(small, tmp_path, [3], tolerance=1e-2)


def test_without_batch_sizes_rows_may_influence_each_other(tmp_path: Path) -> None:
    """Nobody merges then: a request is the whole batch."""
    _export(_centred, tmp_path, None)


@pytest.mark.parametrize("sizes", [[1, 3, 8], [3], "dynamic"])
def test_output_declared_without_batch_axis_is_served_at_its_sizes_only(
    tmp_path: Path, sizes: Any
) -> None:
    """The way out of the refusal: such a bundle is neither merged nor padded."""
    report = _export(_centred, tmp_path, sizes, output_batch_axes=[None])

    (note,) = [note for note in report.notes if "no batch axis" in note]
    manifest = load_manifest(report.directory)
    compiled = manifest.compiled_batch_sizes
    assert note.endswith(str(compiled[0]) if len(compiled) == 1 else str(list(compiled))[1:-1])
    assert not manifest.can_coalesce
    assert [] == check_bundle(report.directory).findings
    executables: Any = {(): dict.fromkeys(compiled)}
    model = DeviceModel("m", manifest.executable_inputs, manifest.executable_outputs, executables)
    model.check_rows((), compiled[0])
    with pytest.raises(BadRequest, match="cannot pad or split"):
        model.check_rows((), 7)
