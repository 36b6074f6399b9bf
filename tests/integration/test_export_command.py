"""`hloserve export` in a process of its own, with real models."""

import json
import signal
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
from support.server_process import HLOSERVE

from hloserve import load_manifest, read_bundle_weights
from hloserve.bundle.layout import find_programs
from hloserve.engine.xla_backend import XlaBackend

pytestmark = [pytest.mark.integration, pytest.mark.xla, pytest.mark.timeout(180)]

MODELS = """
    from functools import partial

    import jax.numpy as jnp
    import numpy as np

    from hloserve.export import export_jax

    WEIGHTS = {"kernel": np.arange(12, dtype="float32").reshape(4, 3) / 10}


    def predict(x, weights):
        return jnp.tanh(x @ weights["kernel"])


    def mlp():
        return partial(export_jax, predict, np.ones((1, 4), "float32"), WEIGHTS, batch_sizes=[1, 8])


    def handler(ctx):
        return partial(
            export_jax, predict, np.ones((1, 4), "float32"), WEIGHTS,
            batch_sizes=ctx.options["sizes"],
        )


    def broken():
        raise FileNotFoundError("weights.npz is not there")


    def slow():
        import threading

        print("waiting", flush=True)
        threading.Event().wait(120)
"""
LIST = """
    output_root: models
    report_path: report.md
    handlers:
      - {file: models.py, models: [handled], options: {sizes: [2]}}
    targets:
      broken: {target: 'models.py:broken'}
      plain: {target: 'models:mlp', options: {batch_sizes: [1, 4]}}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with models and a list."""
    (tmp_path / "models.py").write_text(textwrap.dedent(MODELS))
    (tmp_path / "list.yaml").write_text(textwrap.dedent(LIST))
    return tmp_path


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [HLOSERVE, "export", *arguments]
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=150
    )


def test_target_is_exported_and_computes_what_the_model_does(directory: Path) -> None:
    """A bundle of a target runs, at the sizes that the flags ask for."""
    done = _run(directory, "models:mlp", "--out", "repository", "--batch-sizes", "1,2", "--json")

    assert 0 == done.returncode, done.stderr
    assert "mlp" == json.loads(done.stdout)["name"]
    bundle = directory / "repository" / "mlp"
    manifest = load_manifest(bundle)
    weights = read_bundle_weights(bundle)
    program = find_programs(bundle, manifest)[1].path
    backend = XlaBackend("cpu")
    executable = backend.compile(backend.read_program(program.read_bytes(), program.name), "mlp")
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    (result,) = backend.to_host(
        backend.execute(executable, backend.to_device([x, *weights.values()]))
    )
    np.testing.assert_allclose(result, np.tanh(x @ weights["kernel"]), rtol=1e-5)
    assert "hloserve" == manifest.provenance["converter"]


def test_list_is_exported_with_a_report(directory: Path) -> None:
    """A list of a handler and targets ends with its report, and says what failed."""
    done = _run(directory, "list.yaml")
    again = _run(directory, "list.yaml", "--json")

    assert (1, 1) == (done.returncode, again.returncode), done.stderr + again.stderr
    assert "2 success, 0 partial, 1 failed, 0 skipped" in done.stdout
    outcomes = {m["model"]: m["outcome"] for m in json.loads(again.stdout)["models"]}
    assert {"handled": "skipped", "broken": "failed", "plain": "skipped"} == outcomes
    assert "weights.npz is not there" in (directory / "report.md").read_text()
    models = directory / "models"
    assert ["handled", "plain"] == sorted(path.name for path in models.iterdir())
    assert (1, 4) == load_manifest(models / "plain").compiled_batch_sizes


def test_interrupted_list_leaves_whole_bundles_and_a_report(directory: Path) -> None:
    """Ctrl-C ends a run; what was done is whole, and the report says what was not reached."""
    (directory / "list.yaml").write_text(
        "output_root: models\nreport_path: report.md\ntargets:\n"
        "  first: {target: 'models.py:mlp'}\n"
        "  second: {target: 'models.py:slow'}\n"
        "  third: {target: 'models.py:mlp'}\n"
    )
    command = [HLOSERVE, "export", "list.yaml"]
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "waiting" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)

    assert 130 == process.returncode, stderr
    assert "1 success, 0 partial, 0 failed, 0 skipped, 2 not reached" in stdout
    assert "error: interrupted" in stderr
    assert "not reached: second, third" in (directory / "report.md").read_text()
    assert ["first"] == [path.name for path in (directory / "models").iterdir()]
