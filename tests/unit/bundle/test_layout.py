"""Which files are programs, and which directories are bundles."""

import os
from pathlib import Path

import pytest
from support import bundle_examples as examples
from support.bundle_examples import make_bundle, model, parse

from hloserve.bundle.layout import (
    check_single_program,
    discover_bundles,
    find_programs,
    is_bundle_name,
    weights_path,
)
from hloserve.core.errors import BundleProblem, ProgramProblem

BATCHED = '[{name: x, dtype: f32, shape: "an", dims: {a: 3}}]'


def sizes(*compiled: int) -> str:
    """A batched manifest with these compiled batch sizes."""
    return model(BATCHED, BATCHED, f"batching: {{compiled_batch_sizes: {list(compiled)}}}")


def found(bundle: Path, manifest: str) -> list[tuple[str, int | None, int]]:
    """The programs of a bundle, by file name."""
    programs = find_programs(bundle, parse(manifest))
    return [(program.path.name, program.variant, program.size) for program in programs]


def findings_of(bundle: Path, manifest: str) -> tuple[str, ...]:
    """What is wrong with the programs of a bundle."""
    with pytest.raises(ProgramProblem) as caught:
        find_programs(bundle, parse(manifest))
    return caught.value.findings


def test_single_program_serves_any_size(tmp_path: Path) -> None:
    """`model.mlir` alone has the size 0; its types say what it takes."""
    bundle = make_bundle(tmp_path / "m", examples.AFFINE, None, "model.mlir")

    assert [("model.mlir", None, 0)] == found(bundle, examples.AFFINE)


def test_sized_programs_are_found_by_number(tmp_path: Path) -> None:
    """Sizes ascend as numbers, not as text; sizes that the manifest does not list are taken too."""
    names = ["model.b8.mlir", "model.b16.mlir", "model.b1.mlir", "model.mlir", "modelXb2.mlir"]
    names += ["model.v0.b4.mlir", "model.b4.mlir.bak", "model.b-4.mlir", "mymodel.b4.mlir"]
    bundle = make_bundle(tmp_path / "m", sizes(1, 8), None, *names)

    assert [
        ("model.b1.mlir", None, 1),
        ("model.b8.mlir", None, 8),
        ("model.b16.mlir", None, 16),
    ] == found(bundle, sizes(1, 8))


def test_programs_of_variants_are_found_by_index(tmp_path: Path) -> None:
    """The index counts from 0 through `input_shapes`; strays of other variants are ignored."""
    names = [f"model.v{variant}.b{size}.mlir" for variant in range(3) for size in (4, 1)]
    bundle = make_bundle(tmp_path / "m", examples.VARIANTS, None, *names, "model.b1.mlir")

    assert [
        ("model.v0.b1.mlir", 0, 1),
        ("model.v0.b4.mlir", 0, 4),
        ("model.v1.b1.mlir", 1, 1),
        ("model.v1.b4.mlir", 1, 4),
    ] == found(bundle, examples.VARIANTS)


def test_more_than_ten_variants_do_not_mix(tmp_path: Path) -> None:
    """`model.v1` is not a prefix of `model.v10`."""
    manifest = examples.VARIANTS[: examples.VARIANTS.index("batching")] + "input_shapes: ["
    manifest += ", ".join(f"{{w: {i + 1}, h: 1}}" for i in range(12)) + "]"
    bundle = make_bundle(tmp_path / "m", manifest, None, *(f"model.v{i}.mlir" for i in range(12)))

    assert [(f"model.v{i}.mlir", i, 0) for i in range(12)] == found(bundle, manifest)


def test_meta_model_has_no_programs(tmp_path: Path) -> None:
    """Files that look like programs are a meta model's own business."""
    manifest = parse(examples.META, has_hook_file=True)

    assert () == find_programs(tmp_path, manifest)


@pytest.mark.parametrize(
    ("manifest", "names", "words"),
    [
        (sizes(), (), ["neither model.mlir nor model.bN.mlir"]),
        (sizes(1, 8), ("model.b1.mlir",), ["model.b8.mlir is missing", "lists 8", "there are 1"]),
        (sizes(8), ("model.b8.mlir", "model.b08.mlir"), ["model.b08.mlir and model.b8.mlir"]),
        (sizes(1), ("model.b0.mlir", "model.b1.mlir"), ["model.b0.mlir", "call it model.mlir"]),
        (sizes(), ("model.b00.mlir",), ["model.b00.mlir", "at least 1"]),
        (sizes(), (f"model.b{2**63}.mlir",), ["larger than"]),
        (
            model(),
            ("model.b1.mlir", "model.b8.mlir"),
            ["batch sizes 1, 8, but no executable input has a batch axis"],
        ),
        (
            examples.VARIANTS,
            ("model.v0.b1.mlir", "model.v0.b4.mlir"),
            ["neither model.v1.mlir nor model.v1.bN.mlir", "input_shapes[1]"],
        ),
        (
            examples.VARIANTS,
            ("model.v0.b1.mlir", "model.v0.b4.mlir", "model.v1.mlir"),
            ["model.v1 has programs for the sizes 0", "model.v0 has 1, 4"],
        ),
        (
            examples.VARIANTS,
            (
                *("model.v0.b1.mlir", "model.v0.b4.mlir"),
                *("model.v1.b1.mlir", "model.v1.b4.mlir", "model.v1.b8.mlir"),
            ),
            ["model.v1 has programs for the sizes 1, 4, 8"],
        ),
    ],
)
def test_fault_of_the_files_names_file_and_rule(
    tmp_path: Path, manifest: str, names: tuple[str, ...], words: list[str]
) -> None:
    """Each rule is refused with one sentence."""
    bundle = make_bundle(tmp_path / "m", manifest, None, *names)

    (finding,) = findings_of(bundle, manifest)

    for word in words:
        assert word in finding


def test_odd_spelling_of_one_size_is_read(tmp_path: Path) -> None:
    """`b08` is size 8 as long as nothing else is."""
    bundle = make_bundle(tmp_path / "m", sizes(8), None, "model.b08.mlir")

    assert [("model.b08.mlir", None, 8)] == found(bundle, sizes(8))


def test_all_missing_files_are_found_at_once(tmp_path: Path) -> None:
    """One finding per file and variant."""
    bundle = make_bundle(tmp_path / "m", examples.VARIANTS, None, "model.v0.b2.mlir")

    assert len(findings_of(bundle, examples.VARIANTS)) == 3


def test_program_must_be_a_regular_file(tmp_path: Path) -> None:
    """A directory, a fifo or a dangling link is not a program; a link to a file is."""
    bundle = make_bundle(tmp_path / "m", sizes(), None, "other")
    (bundle / "model.b1.mlir").mkdir()
    os.mkfifo(bundle / "model.b2.mlir")
    (bundle / "model.b3.mlir").symlink_to("nowhere")
    (bundle / "model.b4.mlir").symlink_to("other")

    findings = findings_of(bundle, sizes())

    assert [f"model.b{i}.mlir is not a regular file" for i in (1, 2, 3)] == list(findings)


def test_unreadable_directory_is_a_finding(tmp_path: Path) -> None:
    """A directory that went away between two steps is reported, not raised through."""
    (finding,) = findings_of(tmp_path / "gone", sizes())

    assert "cannot be read: No such file" in finding


@pytest.mark.parametrize(
    ("compiled", "size", "is_symbolic", "words"),
    [
        ((), 4, False, []),
        ((), None, False, []),
        ((8,), 8, False, []),
        ((8,), None, True, []),
        ((8,), None, False, []),
        ((1, 8), None, True, []),
        ((8,), 4, False, ["lists 8", "model.mlir takes batches of 4"]),
        ((1, 8), 8, False, ["lists 1, 8", "only model.mlir", "add model.b1.mlir, model.b8.mlir"]),
    ],
)
def test_single_program_must_agree_with_the_sizes(
    compiled: tuple[int, ...], size: int | None, is_symbolic: bool, words: list[str]
) -> None:
    """One program is one size, unless its batch axis is symbolic."""
    findings = check_single_program(parse(sizes(*compiled)), size, is_symbolic)

    assert bool(words) == len(findings)
    for word in words:
        assert word in findings[0]


def test_single_program_without_batch_axis_ignores_the_size() -> None:
    """Published bundles list `[1]` for programs without a batch axis."""
    manifest = parse(model(more="batching: {compiled_batch_sizes: [1]}"))

    assert [] == check_single_program(manifest, None, False)


def test_single_program_of_a_variant_is_called_by_its_name() -> None:
    """The finding names the files of that variant."""
    (finding,) = check_single_program(parse(sizes(1, 8)), 4, False, "model.v2.mlir")

    assert "only model.v2.mlir" in finding
    assert "add model.v2.b1.mlir, model.v2.b8.mlir" in finding


def test_weights_are_where_the_manifest_says(tmp_path: Path) -> None:
    """`weights_file` replaces the usual name."""
    assert tmp_path / "weights.safetensors" == weights_path(tmp_path, parse(sizes()))

    manifest = parse(model(more="weights_file: weights.T.safetensors"))

    assert tmp_path / "weights.T.safetensors" == weights_path(tmp_path, manifest)


def test_discovery_takes_immediate_subdirectories_with_a_manifest(tmp_path: Path) -> None:
    """No recursion, no hidden directories, nothing that a writer has not finished."""
    for name in ("b", "a", ".hidden", ".c.tmp-1-2", "d.tmp-3-4", "deep/inner"):
        make_bundle(tmp_path / name, "")
    (tmp_path / "not_a_bundle").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("a")

    assert ["a", "b", "link"] == [path.name for path in discover_bundles(tmp_path)]


def test_discovery_keeps_broken_manifests(tmp_path: Path) -> None:
    """A dangling manifest is a bundle that fails to load with a reason, not one that vanishes."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.yaml").symlink_to("nowhere")

    assert (tmp_path / "a",) == discover_bundles(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"), [("absent", "No such file"), ("file", "Not a directory")]
)
def test_repository_that_cannot_be_read_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """A place that holds no bundles is not the same as one that cannot be looked at."""
    (tmp_path / "file").write_text("")

    with pytest.raises(BundleProblem, match=reason):
        discover_bundles(tmp_path / name)


@pytest.mark.parametrize("name", ["", ".", ".x", "a.tmp-1", ".a.tmp-1-2"])
def test_names_that_are_not_bundles(name: str) -> None:
    """What a writer has not finished has such a name."""
    assert not is_bundle_name(name)
    assert is_bundle_name("a.tmp")
