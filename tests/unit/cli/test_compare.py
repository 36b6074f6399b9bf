"""`hloserve compare`."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.models_bundles import affine, write_affine

from hloserve.cli.main import run

pytestmark = pytest.mark.xla

SOURCE = """
import numpy as np

def right(x):
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    return x @ w + np.array([1, -1, 2], np.float32)

def wrong(x):
    return right(x) + 1
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle, and beside it two samples with expected outputs."""
    samples = tmp_path / "samples"
    (samples / "expected").mkdir(parents=True)
    for name, count in (("a", 1), ("b", 6)):
        x = np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)
        np.save(samples / f"{name}.npy", x)
        np.save(samples / "expected" / f"{name}.npy", affine(x))
    (tmp_path / "source.py").write_text(SOURCE)
    return write_affine(tmp_path)


def compare(bundle: Path, *more: str) -> int:
    """Run the command on the samples beside the bundle."""
    return run(["compare", str(bundle), "--samples", str(bundle.parent / "samples"), *more])


def test_samples_that_agree_pass(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row per output, and the last line the result."""
    assert compare(bundle) == 0

    out = capsys.readouterr().out.splitlines()
    assert [word for word in out[0].split() if word != "ERROR"] == [
        *("SAMPLE", "OUTPUT", "RESULT"),
        *("MAX", "NORM", "BEYOND"),
    ]
    assert out[-1].startswith("affine against expected outputs: 2 of 2 samples passed")


def test_a_sample_that_differs_fails(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 1, and the place is told."""
    expected = bundle.parent / "samples" / "expected" / "b.npy"
    y = np.load(expected)
    y[2, 1] += 1
    np.save(expected, y)

    assert compare(bundle) == 1
    assert "1 of 18 are not close: [2, 1] is" in capsys.readouterr().out
    assert compare(bundle, "--max", "1") == 0
    assert compare(bundle, "--atol", "2") == 0


def test_a_reference_is_run(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The expected outputs come of the author's own function."""
    source = bundle.parent / "source.py"

    assert compare(bundle, "--reference", f"{source}:right") == 0
    assert compare(bundle, "--reference", f"{source}:wrong") == 1
    assert "2 of 2" in capsys.readouterr().out


def test_each_side_can_run_alone(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To find out which of them fails, and how long it takes."""
    reference = ("--reference", f"{bundle.parent / 'source.py'}:right")

    assert compare(bundle, "--bundle-only") == 0
    assert compare(bundle, "--reference-only", *reference) == 0
    assert "the reference alone" in capsys.readouterr().out


def test_reports_are_written(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Markdown for people, JSON for programs."""
    page = bundle.parent / "report.md"

    assert compare(bundle, "--report", str(page), "--json") == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert page.read_text().startswith("# Comparison of affine\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reference-only",), "--reference-only needs --reference"),
        (("--bundle-only", "--reference", "a:b"), "--bundle-only runs no --reference"),
        (("--bundle-only", "--reference-only"), "exclude each other"),
        (("--reference", "nonsense"), "must be package.module:function"),
        (("--max", "0"), "is not in the range"),
    ],
)
def test_a_wrong_use_is_told(
    bundle: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2, and nothing runs."""
    assert compare(bundle, *arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_bundle_that_cannot_be_loaded_is_an_error(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is one of the bundle, not of every sample."""
    (bundle / "weights.safetensors").unlink()

    assert compare(bundle) == 1
    assert "weights.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("reference", ["absent.py:f", "absent_module:f", "absent.pt", "f.py:none"])
def test_fault_of_a_reference_is_no_failed_export(
    bundle: Path,
    reference: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is exported, so the message begins with what is wrong."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.py").write_text("none = 3\n")

    assert compare(bundle, "--reference", reference) == 1

    printed = capsys.readouterr().err
    assert "absent" in printed or "reference f.py:none is of type int" in printed
    assert "export of" not in printed
