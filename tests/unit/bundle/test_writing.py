"""Writing bundles: what is in them, and that they appear whole."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from support.bundle_examples import LEGACY_DATA, XLA_DATA
from typing_extensions import override

from hloserve.bundle import IOSpec, load_manifest, read_bundle_weights, write_bundle
from hloserve.bundle.layout import discover_bundles, find_programs
from hloserve.bundle.weights import WeightsFile
from hloserve.bundle.weights_writing import plan_weights
from hloserve.core.dtypes import DTYPES, DType
from hloserve.core.errors import BundleProblem, ManifestProblem

X = IOSpec("x", "f32", (1, 3), 0)
Y = IOSpec("y", "f32", (1, 2), 0)
W = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def write(directory: Path, **changes: Any) -> Path:
    """Write a small bundle, with some arguments replaced."""
    arguments: dict[str, Any] = {
        "name": directory.name,
        "executable_inputs": [X],
        "executable_outputs": [Y],
        "modules": {1: "one", 8: "eight"},
        "weights": [("W", W), ("c", np.zeros(2, np.float32))],
    }
    return write_bundle(directory, **(arguments | changes))


def findings_of(directory: Path, **changes: Any) -> tuple[str, ...]:
    """What the writer refuses."""
    with pytest.raises(BundleProblem) as caught:
        write(directory, **changes)
    assert not directory.exists()
    assert [] == os.listdir(directory.parent)
    return caught.value.findings


def contents(bundle: Path) -> dict[str, bytes]:
    """File name to bytes."""
    return {path.name: path.read_bytes() for path in bundle.iterdir()}


def test_written_bundle_is_loaded(tmp_path: Path) -> None:
    """Manifest, programs and weights come back as they were given; parents are made."""
    bundle = write(tmp_path / "repository" / "m", description="y = W x + c")

    manifest = load_manifest(bundle)
    assert ("m", "2.1", (1, 8)) == (
        manifest.name,
        manifest.format_version,
        manifest.compiled_batch_sizes,
    )
    assert "y = W x + c" == manifest.description
    assert ["x: f32[n,3]"] == [str(spec) for spec in manifest.inputs]
    assert [1, 8] == [program.size for program in find_programs(bundle, manifest)]
    assert b"eight" == (bundle / "model.b8.mlir").read_bytes()
    weights = read_bundle_weights(bundle)
    assert ["W", "c"] == list(weights)
    np.testing.assert_array_equal(W, weights["W"])


def test_manifest_is_written_for_people(tmp_path: Path) -> None:
    """One line per tensor, shapes and version in quotes."""
    bundle = write(
        tmp_path / "m",
        executable_inputs=[IOSpec("image", "f32", (1, 3, 480, 640), 0, "chw")],
        executable_outputs=[IOSpec("no", "f32", (1, 1000), 0)],
        provenance={"exported_at": "2026-01-02T03:04:05Z", "batch_sizes": (1, 8)},
    )

    assert (
        'format_version: "2.1"\n'
        "name: m\n"
        "executable_inputs:\n"
        '  - {name: image, dtype: f32, shape: "whcn", dims: {w: 640, h: 480, c: 3}}\n'
        "executable_outputs:\n"
        '  - {name: "no", dtype: f32, shape: "an", dims: {a: 1000}}\n'
        "batching: {compiled_batch_sizes: [1, 8]}\n"
        "provenance:\n"
        '  exported_at: "2026-01-02T03:04:05Z"\n'
        "  batch_sizes:\n"
        "    - 1\n"
        "    - 8\n"
    ) == (bundle / "manifest.yaml").read_text()


def test_single_program_lists_no_sizes(tmp_path: Path) -> None:
    """The key 0 alone writes `model.mlir`."""
    bundle = write(tmp_path / "m", modules={0: b"\x00\x01"})

    assert () == load_manifest(bundle).compiled_batch_sizes
    assert b"\x00\x01" == (bundle / "model.mlir").read_bytes()


def test_variants_are_written_and_found(tmp_path: Path) -> None:
    """Tuples in numpy order become letters, files and keys that agree."""
    image = IOSpec("image", "u8", (1, -1, -1, 3), 0, "hwc")
    shapes = [(1024, 1024), (704, 1408)]
    bundle = write(
        tmp_path / "m",
        executable_inputs=[image],
        modules={shape: {1: f"{shape} 1", 4: f"{shape} 4"} for shape in shapes},
        input_shapes=shapes,
    )

    manifest = load_manifest(bundle)

    assert ({"h": 704, "w": 1408}, (1408, 704)) == (
        manifest.input_shapes[1],
        manifest.variant_keys[1],
    )
    programs = find_programs(bundle, manifest)
    assert [(0, 1), (0, 4), (1, 1), (1, 4)] == [(p.variant, p.size) for p in programs]
    assert "(704, 1408) 4" == programs[3].path.read_text()


def test_client_specs_and_hook_file_are_written_together(tmp_path: Path) -> None:
    """With the hook file among `files`, the bundle is whole from its first instant."""
    bundle = write(
        tmp_path / "m",
        client_inputs=[IOSpec("INPUT__0", "u8", (-1, -1, 3))],
        client_outputs=[],
        files={"model.py": "# hooks", "labels.bin": b"\xff"},
    )

    manifest = load_manifest(bundle)

    assert [(-1, -1, 3)] == [spec.wire_shape for spec in manifest.inputs]
    assert () == manifest.outputs
    assert b"\xff" == (bundle / "labels.bin").read_bytes()


def test_hook_file_may_be_added_by_hand(tmp_path: Path) -> None:
    """Until then the loader says what is missing."""
    bundle = write(tmp_path / "m", client_inputs=[IOSpec("text", "u8", (-1,))])
    with pytest.raises(ManifestProblem, match=r"add model\.py"):
        load_manifest(bundle)

    (bundle / "model.py").write_text("")

    assert "text" == load_manifest(bundle).inputs[0].name


@pytest.mark.parametrize(
    ("layout", "header", "data"),
    [
        (
            "xla",
            b'{"__metadata__":{"argument_order":"[\\"W\\"]","axis_order":"xla"},'
            b'"W":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}',
            XLA_DATA,
        ),
        (
            "legacy",
            b'{"__metadata__":{"argument_order":"[\\"W\\"]"},'
            b'"W":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}}',
            LEGACY_DATA,
        ),
    ],
)
def test_layouts_are_written_byte_for_byte(
    tmp_path: Path, layout: str, header: bytes, data: bytes
) -> None:
    """The format's worked example; the header is padded to eight bytes."""
    bundle = write(tmp_path / "m", weights=[("W", W)], layout=layout)

    content = (bundle / "weights.safetensors").read_bytes()

    padded = header + b" " * (-len(header) % 8)
    assert len(padded).to_bytes(8, "little") + padded + data == content
    assert {"xla": "2.1", "legacy": "2.0"}[layout] == load_manifest(bundle).format_version


def some_array(dtype: DType) -> np.ndarray[Any, Any]:
    """An array of rank 3 that is neither contiguous nor symmetric."""
    return (np.arange(24) % 2).reshape(2, 3, 4).astype(dtype.numpy).transpose(2, 0, 1)


@pytest.mark.parametrize("layout", ["xla", "legacy"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_written_in_both_layouts(tmp_path: Path, dtype: DType, layout: str) -> None:
    """All fifteen element types, from an array that is not contiguous."""
    array = some_array(dtype)

    bundle = write(tmp_path / "m", weights={"w": array}, layout=layout)

    (result,) = read_bundle_weights(bundle).values()
    assert dtype.numpy == result.dtype
    assert array.tobytes() == result.tobytes()
    assert (4, 2, 3) == result.shape


@pytest.mark.parametrize("layout", ["xla", "legacy"])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.arange(12, dtype=np.float64)[::-2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.broadcast_to(np.float32(3), (2, 2)),
        np.float32(7),
        np.zeros((0, 4), np.int64),
        np.zeros((3, 0, 2), ml_dtypes.bfloat16),
        [[True, False]],
        np.array(-0.0),
    ],
    ids=["big-endian", "strided", "fortran", "broadcast", "scalar", "empty", "bf16", "list", "-0"],
)
def test_any_array_is_written_right(tmp_path: Path, array: Any, layout: str) -> None:
    """Memory layout, byte order, rank 0 and size 0 are the writer's business."""
    bundle = write(tmp_path / "m", weights={"w": array}, layout=layout)

    (result,) = read_bundle_weights(bundle).values()

    expected = np.asarray(array)
    native = expected.astype(expected.dtype.newbyteorder("="))
    assert (native.dtype, native.shape) == (result.dtype, result.shape)
    assert native.tobytes() == result.tobytes()


def test_tensors_are_aligned_for_readers_that_map_the_file(tmp_path: Path) -> None:
    """Wide elements come first; the order of arguments is in the metadata."""
    weights = {
        "a": np.ones(1, np.uint8),
        "b": np.ones(3, np.float64),
        "c": np.ones(1, np.float16),
        "d": np.ones(1, np.float64),
    }
    bundle = write(tmp_path / "m", weights=weights)

    with WeightsFile.open(bundle / "weights.safetensors") as file:
        assert ["a", "b", "c", "d"] == [tensor.name for tensor in file.arguments]
        assert all(tensor.offset % tensor.dtype.itemsize == 0 for tensor in file.arguments)


def test_reference_library_reads_our_weights(tmp_path: Path) -> None:
    """The library of the format's authors agrees, names and metadata included."""
    bundle = write(tmp_path / "m", weights={"ä": W, "s": np.float64(2)})

    with safe_open(bundle / "weights.safetensors", framework="numpy") as file:
        np.testing.assert_array_equal(W, file.get_tensor("ä"))
        assert 2.0 == file.get_tensor("s")
        assert {"argument_order": '["ä","s"]', "axis_order": "xla"} == file.metadata()


def test_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    """Nothing of time, process or machine gets into a bundle."""
    provenance = {"b": 1, "a": {"z": [1.5, None, True]}}

    one = write(tmp_path / "1" / "m", provenance=provenance)
    two = write(tmp_path / "2" / "m", provenance=provenance)

    assert contents(one) == contents(two)


@pytest.mark.parametrize(
    ("diff", "patch"), [("--- a\n", b"--- a\n"), ("x", b"x\n"), (b"\xff", b"\xff\n")]
)
def test_diff_of_the_provenance_becomes_a_file(
    tmp_path: Path, diff: str | bytes, patch: bytes
) -> None:
    """A manifest is for people; `git apply` wants a final newline."""
    bundle = write(tmp_path / "m", provenance={"git_commit": "c0ffee", "git_diff": diff})

    assert {"git_commit": "c0ffee", "git_diff_file": "working_tree.patch"} == load_manifest(
        bundle
    ).provenance
    assert patch == (bundle / "working_tree.patch").read_bytes()


@pytest.mark.parametrize("diff", ["", b"", None])
def test_no_diff_leaves_no_trace(tmp_path: Path, diff: object) -> None:
    """A clean work tree has no patch."""
    bundle = write(tmp_path / "m", provenance={"git_diff": diff})

    assert {} == load_manifest(bundle).provenance
    assert not (bundle / "working_tree.patch").exists()


def test_provenance_keeps_what_yaml_can_say(tmp_path: Path) -> None:
    """Numpy numbers, paths and odd text are turned into plain values."""
    provenance = {
        "path": Path("/a/b"),
        "number": np.float32(0.5),
        "count": np.int64(3),
        "nothing": None,
        "text": "yes",
        "lines": "a: b\n\tc\x07 é \U0001f600",
        "surrogate": "\udc80",
        "nested": {"t": (1, 2)},
        "infinite": float("inf"),
    }

    assert {
        **provenance,
        "path": "/a/b",
        "number": 0.5,
        "count": 3,
        "surrogate": "?",
        "nested": {"t": [1, 2]},
    } == load_manifest(write(tmp_path / "m", provenance=provenance)).provenance


DEEP: dict[str, Any] = {}
DEEP["deep"] = DEEP


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "other"}, ["called 'm' and the bundle 'other'"]),
        ({"layout": "julia"}, ["layout must be one of 'xla', 'legacy'", "'julia'"]),
        ({"executable_inputs": [IOSpec("x", "zz", ())]}, ["executable_inputs[0] 'x': dtype"]),
        ({"client_outputs": [IOSpec("x", "zz", ())]}, ["client_outputs[0] 'x': dtype"]),
        ({"modules": {}}, ["modules must map"]),
        ({"weights": [("w", W), ("w", W)]}, ["weights hold 'w' twice"]),
        ({"weights": {"__metadata__": W}}, ["other than __metadata__"]),
        ({"weights": {3: W}}, ["weight 3: the name must be a string"]),
        ({"weights": {"\ud800": W}}, ["not valid text"]),
        ({"weights": {"w": np.zeros(2, np.complex64)}}, ["weight 'w': dtype 'complex64'"]),
        ({"weights": {"w": ["a"]}}, ["weight 'w': dtype 'str"]),
        ({"weights": {"w": [[1], [2, 3]]}}, ["weight 'w': not an array"]),
        ({"weights": {"w": np.zeros((1,) * 33)}}, ["weight 'w': has 33 axes"]),
        ({"provenance": {"a": object()}}, ["provenance.a must be text"]),
        ({"provenance": {"a": [{"b": {3}}]}}, ["provenance.a[0].b must be text"]),
        ({"provenance": {"a": 2**64}}, ["provenance.a must be text", "18446744073709551616"]),
        ({"provenance": {"git_diff": 3}}, ["git_diff must be text"]),
        ({"provenance": DEEP}, ["deeper than 20"]),
        ({"files": {"a/b": ""}}, ["'a/b' is not a bare file name"]),
        ({"files": {"..": ""}}, ["'..' is not a bare file name"]),
        ({"files": {".cache": ""}}, ["'.cache' is not a bare"]),
        ({"files": {"manifest.yaml": ""}}, ["'manifest.yaml' is a name that the bundle uses"]),
        ({"files": {"weights.safetensors": ""}}, ["uses itself"]),
        ({"files": {"model.b2.mlir": ""}}, ["uses itself"]),
        ({"modules": {0: "x"}, "dynamic_sizes": ()}, ["dynamic_sizes must be batch sizes"]),
        (
            {"modules": {0: "x"}, "dynamic_sizes": (1,), "layout": "legacy"},
            ["layout 'legacy' is for servers that know format 2.0 only", "'batching.dynamic'"],
        ),
        # What only the manifest's own rules find:
        ({"executable_inputs": [X, X]}, ["executable_inputs holds 'x' twice"]),
        ({"executable_inputs": [X, IOSpec("q", "f32", ())]}, ["'q' have no batch axis"]),
        ({"executable_inputs": [IOSpec("q", "f32", ())]}, ["lists 1, 8, but no executable"]),
        ({"executable_inputs": [IOSpec("x", "f32", (1, -1), 0)]}, ["no input_shapes"]),
        ({"executable_inputs": [IOSpec("x", "f8_e5m2", (1, 3), 0)]}, ["faces clients"]),
        ({"executable_inputs": [IOSpec("\ud800", "f32", (1, 3), 0)]}, ["manifest.yaml"]),
        ({"provenance": {"a": "x" * (1 << 20)}}, ["manifest.yaml", "larger than"]),
    ],
)
def test_fault_of_an_argument_is_refused_before_anything_is_written(
    tmp_path: Path, changes: Mapping[str, Any], words: list[str]
) -> None:
    """Each rule is refused with one sentence, and the repository is as it was."""
    (finding,) = findings_of(tmp_path / "m", **changes)

    for word in words:
        assert word in finding


def test_all_faults_are_found_at_once(tmp_path: Path) -> None:
    """An author fixes a call in one round."""
    findings = findings_of(
        tmp_path / "m",
        name="o",
        modules={},
        weights={"w": np.zeros(2, np.complex64)},
        executable_inputs=[IOSpec("x", "zz", (0,))],
    )

    assert len(findings) == 5


@pytest.mark.parametrize("name", [".m", "m.tmp-1"])
def test_names_that_servers_skip_are_refused(tmp_path: Path, name: str) -> None:
    """A bundle that no server would ever show is a slip."""
    (finding,) = findings_of(tmp_path / name)

    assert "servers skip" in finding


def test_existing_bundle_is_refused(tmp_path: Path) -> None:
    """Nothing is replaced by accident, not even an empty directory."""
    bundle = write(tmp_path / "m")
    before = contents(bundle)
    (tmp_path / "empty").mkdir()

    for name in ("m", "empty"):
        with pytest.raises(BundleProblem, match="overwrite=True"):
            write(tmp_path / name, weights={})

    assert before == contents(bundle)
    assert ["empty", "m"] == sorted(os.listdir(tmp_path))


def test_overwriting_leaves_nothing_of_the_old_bundle(tmp_path: Path) -> None:
    """Programs of an earlier export would otherwise be served."""
    write(tmp_path / "m", modules=dict.fromkeys((1, 2, 4), "old"))

    bundle = write(tmp_path / "m", modules={0: "new"}, overwrite=True)

    assert ["manifest.yaml", "model.mlir", "weights.safetensors"] == sorted(contents(bundle))
    assert ["m"] == os.listdir(tmp_path)


def test_overwriting_nothing_just_writes(tmp_path: Path) -> None:
    """There may be no bundle yet."""
    assert "m" == load_manifest(write(tmp_path / "m", overwrite=True)).name


def test_file_in_the_way_is_not_replaced(tmp_path: Path) -> None:
    """Only a directory is taken for an older bundle."""
    (tmp_path / "m").write_text("precious")

    with pytest.raises(BundleProblem, match="not a directory"):
        write(tmp_path / "m", overwrite=True)

    assert "precious" == (tmp_path / "m").read_text()


def test_failure_of_the_disk_leaves_the_old_bundle(tmp_path: Path) -> None:
    """A name that the file system refuses stands for any error half-way."""
    bundle = write(tmp_path / "m")
    before = contents(bundle)

    with pytest.raises(BundleProblem, match="cannot be written: File name too long"):
        write(bundle, files={"x" * 300: ""}, overwrite=True)

    assert before == contents(bundle)
    assert ["m"] == os.listdir(tmp_path)


def test_interrupted_writer_cleans_up(tmp_path: Path) -> None:
    """Control-C while the weights are written leaves nothing."""

    class Interrupting(dict[str, Any]):
        @override
        def items(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "m", files=Interrupting(a=1))

    assert [] == os.listdir(tmp_path)


def test_one_of_many_writers_of_a_name_wins(tmp_path: Path) -> None:
    """Also when all of them saw the name free, the others are told."""
    start = threading.Barrier(4)
    outcomes: list[str] = []

    def write_after_the_others_are_there() -> None:
        start.wait()
        try:
            write(tmp_path / "m")
            outcomes.append("written")
        except BundleProblem as problem:
            outcomes.append(problem.findings[0])

    writers = [threading.Thread(target=write_after_the_others_are_there) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    refused = "exists already; pass overwrite=True to replace it in one step"
    assert [*[refused] * 3, "written"] == sorted(outcomes)
    assert ["m"] == os.listdir(tmp_path)


def test_file_in_place_of_the_repository_is_named(tmp_path: Path) -> None:
    """That is not the bundle that exists already."""
    (tmp_path / "repository").write_text("")

    with pytest.raises(BundleProblem, match="cannot be written: "):
        write(tmp_path / "repository" / "m")


def test_header_is_not_longer_than_readers_allow() -> None:
    """A name counts twice, in the argument order and as the tensor's own."""
    findings: list[str] = []

    plan_weights({"x" * 50_000_000: W}, "xla", findings)

    assert ["the names of the weights take more than 100000000 bytes"] == findings


def test_bundle_has_the_mode_of_any_new_directory(tmp_path: Path) -> None:
    """A server that runs as another user can read it."""
    (tmp_path / "usual").mkdir()

    bundle = write(tmp_path / "m")

    assert (tmp_path / "usual").stat().st_mode == bundle.stat().st_mode


def test_long_names_fit_beside_their_temporary_directory(tmp_path: Path) -> None:
    """The temporary name is not longer than what the file system allows."""
    assert 255 == len(load_manifest(write(tmp_path / ("m" * 255))).name)


def test_reader_never_meets_half_a_bundle(tmp_path: Path) -> None:
    """While a bundle is replaced again and again, each look finds a whole one."""
    bundle = write(tmp_path / "m")
    stopped = threading.Event()

    def replace() -> None:
        while not stopped.is_set():
            write(bundle, overwrite=True)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(100):
            assert [bundle] == list(discover_bundles(tmp_path))
            assert (1, 8) == load_manifest(bundle).compiled_batch_sizes
    finally:
        stopped.set()
        writer.join()

    assert ["m"] == os.listdir(tmp_path)


_ENDLESS_WRITER = """
import sys, numpy as np
from hloserve.bundle import IOSpec, write_bundle
while True:
    write_bundle(sys.argv[1], "m", [IOSpec("x", "f32", (1, 3), 0)], [], {1: "one"},
                 {"w": np.zeros(100_000)}, overwrite=True)
    print("written", flush=True)
"""


def test_killed_writer_leaves_a_bundle_that_loads(tmp_path: Path) -> None:
    """What a crash leaves behind is ignored by discovery, and the next writer does not mind."""
    bundle = tmp_path / "m"
    for rounds in (1, 3):
        writer = subprocess.Popen(
            [sys.executable, "-c", _ENDLESS_WRITER, str(bundle)], stdout=subprocess.PIPE
        )
        with writer:
            assert writer.stdout is not None
            for _ in range(rounds):
                assert b"written\n" == writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)

        assert (bundle,) == discover_bundles(tmp_path)
        assert ["w"] == list(read_bundle_weights(bundle))


def test_only_a_bundle_is_replaced(tmp_path: Path) -> None:
    """`overwrite` does not remove what is not a bundle."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "precious").write_text("x")

    with pytest.raises(BundleProblem, match="not a bundle"):
        write(tmp_path / "m", overwrite=True)
    assert (tmp_path / "m" / "precious").read_text() == "x"


def test_open_batch_axis_is_written_as_format_22(tmp_path: Path) -> None:
    """A reader of 2.1 would take the one program for any size: it has to refuse the version."""
    bundle = write(tmp_path / "m", modules={0: "any"}, dynamic_sizes=(32, 1, 8))

    text = (bundle / "manifest.yaml").read_text()
    assert text.startswith('format_version: "2.2"\n')
    assert "batching: {dynamic: true, compiled_batch_sizes: [1, 8, 32]}" in text
    manifest = load_manifest(bundle)
    assert (True, (1, 8, 32)) == (manifest.is_dynamic, manifest.compiled_batch_sizes)
    (program,) = find_programs(bundle, manifest)
    assert ("model.mlir", 0) == (program.path.name, program.size)


@pytest.mark.parametrize(("layout", "version"), [("xla", "2.1"), ("legacy", "2.0")])
def test_version_is_not_raised_without_need(tmp_path: Path, layout: str, version: str) -> None:
    """What no feature of 2.2 is in stays readable for older servers, byte for byte."""
    text = (write(tmp_path / "m", layout=layout) / "manifest.yaml").read_text()

    assert text.startswith(f'format_version: "{version}"\n')
    assert "batching: {compiled_batch_sizes: [1, 8]}\n" in text
    assert "dynamic" not in text
