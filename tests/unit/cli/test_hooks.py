"""`hloserve hooks test`: an author sees what each step makes, or where the own code failed."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.meta_bundles import write_meta
from support.models_bundles import affine, write_affine, write_fake

from hloserve.cli.main import run
from hloserve.core.errors import HookFailed, SubCallFailed
from hloserve.core.tensors import Tensors
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.bundle_runner import BundleRunner

HOOKS = """
import numpy as np
from hloserve import register_model

def halved(x):
    if x[0, 0] == 13:
        raise ValueError("unlucky")
    return x / 2

def preprocess(inputs):
    return {"x": halved(inputs["x"])}

def postprocess(outputs):
    return {"y": outputs["y"] * np.float32(10)}

register_model(preprocess=preprocess, postprocess=postprocess)
"""


@pytest.mark.xla
def test_steps_are_shown_with_what_came_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inputs are checked, hooks and program run, and the last step is what a client would get."""
    bundle = write_affine(tmp_path, hook=HOOKS)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    given = f"x={tmp_path / 'x.npy'}"

    assert run(["hooks", "test", str(bundle), given, "--output-dir", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert run(["hooks", "test", str(bundle), given, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]

    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), affine(x / 2) * 10, rtol=1e-5)
    assert [step["step"] for step in steps] == ["preprocess", "program", "postprocess"]
    assert steps[0]["tensors"] == [{"name": "x", "dtype": "f32", "shape": [3, 4]}]
    for step in steps:
        assert step["step"] in text


@pytest.mark.xla
def test_failed_hook_shows_the_authors_own_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All frames of model.py that led there, with their text, and none of the server."""
    bundle = write_affine(tmp_path, hook=HOOKS)
    np.save(tmp_path / "x.npy", np.full((1, 4), 13, np.float32))

    assert run(["hooks", "test", str(bundle), f"x={tmp_path / 'x.npy'}"]) == 1

    lines = capsys.readouterr().err.splitlines()
    assert "model.py:7: ValueError: unlucky" in lines[0]
    assert lines[1].endswith(
        """affine/model.py:11 in preprocess: return {"x": halved(inputs["x"])}"""
    )
    assert lines[2].endswith("""affine/model.py:7 in halved: raise ValueError("unlucky")""")
    assert len(lines) == 3


@pytest.mark.xla
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("x=zeros:3,5", "extent of axis 1 (a) is 5, shape (3, 5), expected 4"),
        ("z=zeros:3,4", "has no input 'z'"),
        ("z={file}", "has no input 'z'; its inputs are 'x'"),
        ("x", "write NAME=FILE.npy"),
    ],
)
def test_inputs_that_do_not_fit_are_the_callers_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, complaint: str
) -> None:
    """The exit status is that of wrong usage, and the hook is not run."""
    bundle = write_affine(tmp_path, hook=HOOKS)
    file = tmp_path / "file.npy"
    np.save(file, np.zeros((3, 4), np.float32))

    assert run(["hooks", "test", str(bundle), given.format(file=file)]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.xla
def test_hook_file_that_does_not_run_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake at the top level is as easy to find as one in a hook."""
    bundle = write_affine(tmp_path, hook="import numpy\n1 / 0\n")

    assert run(["hooks", "test", str(bundle)]) == 1
    assert "affine/model.py:2 in <module>: 1 / 0" in capsys.readouterr().err


def _steps(bundle: Path, inputs: Tensors) -> tuple[Tensors, list[str]]:
    """Run a bundle of the NumPy backend; its outputs and the names of the steps."""
    steps: list[str] = []
    with BundleRunner(bundle, FakeBackend()) as runner:
        outputs = runner.run(inputs, lambda step, tensors, seconds: steps.append(step))
    return outputs, steps


def test_meta_model_runs_with_the_bundles_beside_it(tmp_path: Path) -> None:
    """Each call is a step; several at once, from threads too, and the wanted outputs only."""
    write_fake(tmp_path, "scale")
    meta = write_meta(
        tmp_path,
        """
        from concurrent.futures import ThreadPoolExecutor

        def run(inputs, call):
            x = inputs["x"]
            with ThreadPoolExecutor(2) as pool:
                once = list(pool.map(lambda each: call("scale", {"x": each}, ["y"])["y"], [x, x]))
            (twice,) = call.map("scale", [{"x": once[0]}])
            buffer = call.scratch(x.shape, np.float32)
            buffer[:] = twice["y"]
            return {"y": buffer}
        """,
    )
    x = np.ones((2, 4), np.float32)

    outputs, steps = _steps(meta, {"x": x})

    np.testing.assert_array_equal(outputs["y"], x * np.array([1, 4, 9, 16], np.float32))
    assert steps == ["call scale"] * 3 + ["run"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('call("scale", {"x": inputs["x"][:, :2]})', "extent of axis 1"),
        ('call("scale", {"x": inputs["x"]}, ["z"])', "output 'z' of model 'scale' is not declared"),
        ('call("gone", {"x": inputs["x"]})', "there is no such directory"),
        ('call("other", {"x": inputs["x"]})', "not declared in meta.calls"),
    ],
)
def test_wrong_calls_of_a_meta_model_name_the_call(
    tmp_path: Path, body: str, complaint: str
) -> None:
    """As a server would tell its author."""
    write_fake(tmp_path, "scale")
    meta = write_meta(tmp_path, f"def run(inputs, call):\n    {body}", calls=("scale", "gone"))

    with pytest.raises((SubCallFailed, HookFailed), match=complaint):
        _steps(meta, {"x": np.ones((2, 4), np.float32)})
