"""What can be known before a model is traced is told before, and a bundle nobody loads is none."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typing_extensions import override

from hloserve.bundle import IOSpec
from hloserve.export import ExportProblem, ExportProgress, export_jax

_X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
_W = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


def _fail(*_: Any) -> Any:
    raise ZeroDivisionError("by hand")


class _FailingProgress(ExportProgress):
    @override
    def step(self, what: str, done: int, total: int) -> None:
        _fail()


def _untraced(x: Any, w: Any) -> Any:
    raise AssertionError("it must not be traced")


def _findings(directory: Path, **options: Any) -> str:
    """What is said of an export, whose model is never looked at."""
    before = sorted(directory.iterdir())
    with pytest.raises(ExportProblem) as problem:
        export_jax(_untraced, {"x": _X}, [("w", _W)], **{"dir": directory / "m", **options})
    assert before == sorted(directory.iterdir())
    (finding,) = problem.value.findings
    return finding


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "huge batch": ({"batch_sizes": [1, 10**12]}, "batch_sizes: the inputs of .* 14.55 TiB"),
    "huge dynamic size": (
        {"batch_sizes": "dynamic", "dynamic_sizes": [10**13]},
        "dynamic_sizes: the inputs of",
    ),
    "samples that fail": (
        {"sample_inputs": _fail},
        r"sample_inputs\(generator, 1\) raised ZeroDivisionError: by hand",
    ),
    "no function of samples": ({"sample_inputs": 5}, "sample_inputs: must be a function, got int"),
    "samples of another shape": (
        {"sample_inputs": lambda generator, rows: [_X], "batch_sizes": [2]},
        r"sample_inputs: gave float32\[3, 4\] for 2 rows, the model takes float32\[2, 4\]",
    ),
    "samples that are no arrays": (
        {"sample_inputs": lambda generator, rows: [object()]},
        "sample_inputs: a value has a dtype",
    ),
    "provenance of objects": ({"provenance": {"by": object()}}, "provenance.by must be text"),
    "provenance of text": ({"provenance": "me"}, "provenance: must be a mapping"),
    "StableHLO of the future": ({"target_version": "99.0.0"}, "writes StableHLO .* got 99.0.0"),
    "progress that fails": (
        {"progress": _FailingProgress()},
        "progress.step raised ZeroDivisionError: by hand",
    ),
    "client specs without hooks": (
        {"client_inputs": [IOSpec("text", "f32", (1,))]},
        "client_inputs: need a hook_file",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_options_are_judged_before_the_model_is_traced(fault: str, tmp_path: Path) -> None:
    """A typing error must not cost the hour that a large model takes."""
    options, says = FAULTS[fault]
    found = _findings(tmp_path, **options)

    assert re.search(says, found), found


def test_hook_file_that_is_no_python_is_told_by_its_line(tmp_path: Path) -> None:
    """Its syntax is known without running it."""
    hook = tmp_path / "hooks.py"
    hook.write_text("import os\ndef preprocess(:\n")

    assert f"hook_file: {hook} line 2 is no Python: SyntaxError" in _findings(
        tmp_path, hook_file=hook
    )


PLACES: dict[str, tuple[Callable[[Path], Path], bool, str]] = {
    "long name": (lambda root: root / ("x" * 256), False, "has 256 bytes"),
    "file as parent": (lambda root: root / "file" / "m", False, "file is in the way and not a"),
    "file": (lambda root: root / "file", True, "is in the way and not a directory"),
    "not a bundle": (lambda root: root / "full", True, "so not a bundle"),
    "taken": (lambda root: root / "full", False, "exists already"),
    "no place for files": (lambda root: Path("/proc/m"), False, "/proc/m cannot be written"),
    "null": (lambda root: root / "a\0b", False, "cannot be written"),
}


@pytest.mark.parametrize("place", PLACES)
def test_destination_is_tried_first(place: str, tmp_path: Path) -> None:
    """Names, what is in the way, and rights."""
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    where, overwrite, says = PLACES[place]

    assert says in _findings(tmp_path, dir=where(tmp_path), overwrite=overwrite)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (
            {"y": "names.txt"},
            "labels: of output 'y' are in 'names.txt' (str), which is not among the assets (none)",
        ),
        ("names.txt", "labels: must be a mapping of outputs to files, got 'names.txt' (str)"),
    ],
)
def test_labels_that_are_no_assets_are_refused(labels: Any, says: str, tmp_path: Path) -> None:
    """The bundle would name a file that it does not hold."""
    assert says in _findings(tmp_path, labels=labels)


@pytest.mark.xla
def test_selection_that_fails_is_named(tmp_path: Path) -> None:
    """It runs while the model is traced, but it is no fault of the model."""
    with pytest.raises(ExportProblem, match="output_select raised KeyError: 'logits'"):
        export_jax(
            lambda x, w: {"scores": x @ w},
            {"x": _X},
            [("w", _W)],
            dir=tmp_path / "m",
            batch_sizes=[1, 2],
            output_select=lambda result: result["logits"],
        )


HOOKS = {
    "forgotten asset": (
        "from pathlib import Path\nPath(__file__).with_name('labels.txt').read_text()\n",
        r"model.py:2: the hook file failed: FileNotFoundError: .*/m/labels.txt",
    ),
    "no registration": ("", "must call register_model exactly once"),
    "missing hook": (
        "from hloserve import register_model\nregister_model('m')\n",
        "registers no preprocess",
    ),
}


@pytest.mark.xla
@pytest.mark.parametrize("hook", HOOKS)
def test_bundle_that_no_server_can_load_is_not_written(hook: str, tmp_path: Path) -> None:
    """The finished bundle goes through the check before it takes its place, hooks included."""
    text, says = HOOKS[hook]
    (tmp_path / "hooks.py").write_text(text)

    with pytest.raises(ExportProblem, match=says) as problem:
        export_jax(
            lambda x, w: x @ w,
            {"x": _X},
            [("w", _W)],
            dir=tmp_path / "m",
            hook_file=tmp_path / "hooks.py",
            client_inputs=[IOSpec("pixels", "u8", (3, 4))],
        )

    assert "nothing was written" in str(problem.value)
    assert ".tmp-" not in str(problem.value)
    assert ["hooks.py"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.xla
def test_constants_and_unused_weights_are_reported(tmp_path: Path) -> None:
    """Small arrays of a closure are baked in, and weights may be left unused: both are said."""
    scale = np.linspace(1, 2, 5, dtype=np.float32)
    report = export_jax(
        lambda x, w, spare: jnp.tanh(x @ w) * scale,
        {"x": _X},
        [("w", _W), ("spare", _W.copy())],
        dir=tmp_path / "m",
    )

    (note,) = [note for note in report.notes if "constants" in note]
    assert "'scale'" in note
    assert "float32[5]" in note
    assert ("spare",) == report.unused_weights
    assert ["spare"] == report.to_json()["unused_weights"]
    assert "weights that nothing depends on: spare" in report.to_text()
    assert any("2 that are copies of each other" in note for note in report.notes)
