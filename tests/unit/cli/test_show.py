"""`hloserve show`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import bundle_examples as examples

from hloserve.cli.main import run
from hloserve.cli.show import describe_bundle


@pytest.fixture
def affine(tmp_path: Path) -> Path:
    """A bundle with one program and one weight tensor, in the legacy axis order."""
    weights = examples.legacy_weights()
    return examples.make_bundle(tmp_path / "affine", examples.AFFINE, weights, "model.mlir")


def test_bundle_is_described_in_numpy_order(affine: Path) -> None:
    """Shapes, programs, weights and hooks of a bundle are told in the user's order."""
    summary = describe_bundle(affine)

    assert "affine" == summary["name"]
    assert [{"name": "x", "dtype": "f32", "shape": [3]}] == summary["inputs"]
    assert [{"file": "model.mlir", "batch_size": None, "variant": None, "bytes": 9}] == summary[
        "programs"
    ]
    weights = summary["weights"]
    assert (24, True) == (weights["bytes"], weights["is_legacy"])
    assert [{"name": "W", "dtype": "f32", "shape": [2, 3], "bytes": 24}] == weights["tensors"]
    assert [] == summary["problems"]


def test_axes_run_as_in_numpy(tmp_path: Path) -> None:
    """The batch axis of an image classifier comes first, as clients see it."""
    programs = [f"model.b{size}.mlir" for size in (1, 8, 32)]
    weights = examples.xla_weights()
    bundle = examples.make_bundle(tmp_path / "c", examples.CLASSIFIER, weights, *programs)

    summary = describe_bundle(bundle)

    assert ["n", 3, 224, 224] == summary["inputs"][0]["shape"]
    assert [1, 8, 32] == summary["batch_sizes"]
    assert [1, 8, 32] == [p["batch_size"] for p in summary["programs"]]
    assert summary["coalesces_requests"]


def test_variants_and_hooks_are_told(tmp_path: Path) -> None:
    """A bundle with several shapes lists them; one with hooks shows both sides of them."""
    variants = examples.make_bundle(tmp_path / "v", examples.VARIANTS, examples.xla_weights(), *(
        f"model.v{variant}.b{size}.mlir" for variant in (0, 1) for size in (1, 4)
    ))  # fmt: skip
    hooked = examples.make_bundle(
        tmp_path / "h", examples.HOOKED, examples.xla_weights(), "model.b1.mlir"
    )
    (hooked / "model.py").write_text("raise SystemExit('show must not run this')")
    with (hooked / "manifest.yaml").open("a") as manifest:
        manifest.write("hooks: {processes: 2}\n")

    assert [{"w": 1024, "h": 1024}, {"w": 1408, "h": 704}] == describe_bundle(variants)["variants"]
    summary = describe_bundle(hooked)
    assert ("model.py", 2) == (summary["hooks"], summary["hook_processes"])
    assert ("INPUT__0", "image") == (
        summary["inputs"][0]["name"],
        summary["program_inputs"][0]["name"],
    )


def test_printed_bundle_reads_like_its_description(
    capsys: pytest.CaptureFixture[str], affine: Path
) -> None:
    """`show` prints everything on one page and ends with status 0."""
    assert 0 == run(["show", str(affine), "--weights"])

    printed = capsys.readouterr().out
    for words in (
        "affine (format 2.1)",
        "y = W x + c",
        "(3)",
        "model.mlir",
        "legacy",
        "24 B",
        "(2, 3)",
    ):
        assert words in printed


def test_json_is_the_description(capsys: pytest.CaptureFixture[str], affine: Path) -> None:
    """`show --json` prints the same for programs."""
    assert 0 == run(["show", "--json", str(affine)])
    assert describe_bundle(affine) == json.loads(capsys.readouterr().out)


def test_broken_bundle_tells_all_of_its_problems(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Missing programs, broken weights and foreign hooks are told together; the status is 1."""
    bundle = examples.make_bundle(tmp_path / "b", examples.CLASSIFIER, b"\x00", "model.b1.mlir")
    (bundle / "model.jl").touch()

    assert 1 == run(["show", str(bundle)])

    problems = capsys.readouterr().out.split("problems:\n")[1]
    assert "model.b8.mlir" in problems
    assert "model.jl" in problems
    assert 3 <= problems.count("  - ")


@pytest.mark.parametrize("name", ["absent", "empty", "file"])
def test_what_is_no_bundle_is_told_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    """A path that is no bundle has problems, not a traceback."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()

    assert 1 == run(["show", str(tmp_path / name)])
    assert "problems:" in capsys.readouterr().out


def test_repository_points_at_its_bundles(capsys: pytest.CaptureFixture[str], affine: Path) -> None:
    """Showing a repository names the bundles to show instead."""
    assert 1 == run(["show", str(affine.parent)])
    assert "show one of its bundles: affine" in capsys.readouterr().out


def test_hostile_text_of_a_bundle_does_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Text of a manifest is printed without what a terminal would act on."""
    text = (
        examples.AFFINE.replace("y = W x + c", '"\\e[2J\\nforged"') + 'provenance: {a: "\\e[1m"}\n'
    )
    bundle = examples.make_bundle(tmp_path / "b", text, examples.xla_weights(), "model.mlir")

    assert 0 == run(["show", str(bundle)])
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))


def test_meta_model_needs_no_files(tmp_path: Path) -> None:
    """A meta model is shown with what it calls, and misses neither programs nor weights."""
    bundle = examples.make_bundle(tmp_path / "pipeline", examples.META)
    (bundle / "model.py").touch()

    summary = describe_bundle(bundle)

    assert ["backbone_a", "head_a"] == summary["calls"]
    assert [] == summary["problems"]


def test_meta_model_that_calls_none_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It only computes."""
    text = examples.META.replace("[backbone_a, head_a]", "[]")
    bundle = examples.make_bundle(tmp_path / "pipeline", text)
    (bundle / "model.py").touch()

    assert 0 == run(["show", str(bundle)])
    assert "calls: no other model\n" in capsys.readouterr().out


def test_show_needs_no_xla(affine: Path) -> None:
    """Showing a bundle imports neither jax nor jaxlib, so the base install is enough."""
    program = (
        "import sys; from hloserve.cli.main import run\n"
        f"run(['show', {str(affine)!r}])\n"
        "print('HEAVY', *[m for m in ('jax', 'jaxlib') if m in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert "HEAVY" == done.stdout.splitlines()[-1]


def test_dynamic_batch_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The listed sizes are those that are compiled unless an operator names others."""
    text = examples.CLASSIFIER.replace('"2.1"', '"2.2"').replace("{comp", "{dynamic: true, comp")
    bundle = examples.make_bundle(tmp_path / "c", text, examples.xla_weights(), "model.mlir")

    assert describe_bundle(bundle)["is_dynamic"]
    assert 0 == run(["show", str(bundle)])
    assert "batch sizes: 1, 8, 32; its operator may name others" in capsys.readouterr().out
