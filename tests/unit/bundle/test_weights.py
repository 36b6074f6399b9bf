"""Weights files: layouts, argument order, and reading into memory of the caller."""

import json
import os
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from support import bundle_examples as examples
from support.bundle_examples import make_bundle, safetensors_bytes

from hloserve.bundle import read_bundle_weights
from hloserve.bundle.weights import WeightsFile
from hloserve.bundle.weights_writing import plan_weights
from hloserve.core.errors import WeightsProblem
from hloserve.core.tensors import Array

W = [[1, 2, 3], [4, 5, 6]]


def bundle_with(tmp_path: Path, weights: bytes) -> Path:
    """A bundle with these weights."""
    return make_bundle(tmp_path / "m", examples.AFFINE, weights, "model.mlir")


def weights_of(tmp_path: Path, content: bytes) -> WeightsFile:
    """An open weights file of this content."""
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    return WeightsFile.open(path)


def one_tensor(
    data: bytes, dtype: str, shape: tuple[int, ...], *, order: object = ("x",), xla: bool = True
) -> bytes:
    """A file of the tensor `x`."""
    metadata = {"argument_order": json.dumps(order)} | ({"axis_order": "xla"} if xla else {})
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}
    return safetensors_bytes({"__metadata__": metadata, "x": entry}, data)


@pytest.mark.parametrize(
    ("content", "is_legacy"),
    [(examples.xla_weights(), False), (examples.legacy_weights(), True)],
    ids=["xla", "legacy"],
)
def test_both_layouts_load_to_the_same_array(
    tmp_path: Path, content: bytes, is_legacy: bool
) -> None:
    """The bytes of the format's worked example, which our writer had no part in."""
    bundle = bundle_with(tmp_path, content)

    arrays = read_bundle_weights(bundle)

    assert ["W"] == list(arrays)
    np.testing.assert_array_equal(np.array(W, np.float32), arrays["W"])
    assert arrays["W"].flags.c_contiguous
    with WeightsFile.open(bundle / "weights.safetensors") as weights:
        assert is_legacy == weights.is_legacy
        assert [(2, 3)] == [tensor.shape for tensor in weights.arguments]
        assert (24, 1, ()) == (weights.nbytes, len(weights.tensors), weights.warnings)


def test_legacy_arrays_of_rank_three_and_square_ones_are_permuted(tmp_path: Path) -> None:
    """Square shapes look alike in both layouts; only the metadata decides."""
    cube = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    square = np.arange(9, dtype=np.int64).reshape(3, 3)
    bundle = bundle_with(tmp_path, b"")
    path = bundle / "weights.safetensors"
    tensors = {"cube": np.ascontiguousarray(cube.T), "square": np.ascontiguousarray(square.T)}

    save_file(tensors, path, metadata={"argument_order": '["square", "cube"]'})
    legacy = read_bundle_weights(bundle)
    save_file(
        {"cube": cube, "square": square},
        path,
        metadata={"argument_order": '["square", "cube"]', "axis_order": "xla"},
    )
    xla = read_bundle_weights(bundle)

    assert ["square", "cube"] == list(legacy) == list(xla)
    for arrays in (legacy, xla):
        np.testing.assert_array_equal(cube, arrays["cube"])
        np.testing.assert_array_equal(square, arrays["square"])


@pytest.mark.parametrize("xla", [True, False])
def test_bits_survive_both_layouts(tmp_path: Path, xla: bool) -> None:
    """NaN payloads and negative zeros are bits like others."""
    bits = np.array([[0x7F800001, 0x80000000, 0xFFC0DEAD]], np.uint32)
    stored = bits if xla else np.ascontiguousarray(bits.T)

    with weights_of(tmp_path, one_tensor(stored.tobytes(), "F32", stored.shape, xla=xla)) as file:
        target = np.zeros(12, np.uint8)
        file.read_into(file.arguments[0], target)

    assert bits.tobytes() == target.tobytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16])
def test_legacy_arrays_of_narrow_types_are_permuted(tmp_path: Path, dtype: type) -> None:
    """Types that numpy does not know itself are permuted too."""
    array: Array = np.arange(6).reshape(2, 3).astype(dtype)
    names = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float16": "F16"}
    content = one_tensor(array.T.tobytes(), names[array.dtype.name], (3, 2), xla=False)

    arrays = read_bundle_weights(bundle_with(tmp_path, content))

    assert array.dtype == arrays["x"].dtype
    np.testing.assert_array_equal(array, arrays["x"])


@pytest.mark.parametrize("xla", [True, False])
def test_scalars_vectors_and_empty_arrays_are_read(tmp_path: Path, xla: bool) -> None:
    """Rank 0 and 1 are the same in both layouts; no bytes are no problem."""
    metadata = {"argument_order": '["s","v","z"]'} | ({"axis_order": "xla"} if xla else {})
    header = {
        "__metadata__": metadata,
        "s": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]},
        "v": {"dtype": "I32", "shape": [2], "data_offsets": [4, 12]},
        "z": {"dtype": "F64", "shape": [0, 4], "data_offsets": [12, 12]},
    }
    data = np.array([7, 8, 9], "<i4").tobytes()

    arrays = read_bundle_weights(bundle_with(tmp_path, safetensors_bytes(header, data)))

    assert 7 == arrays["s"][()]
    assert [8, 9] == arrays["v"].tolist()
    assert ((0, 4) if xla else (4, 0)) == arrays["z"].shape


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (safetensors_bytes("{}").replace(b"{}", b"[]"), ["does not begin"]),
        (
            safetensors_bytes({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"\0"),
            ["'argument_order' is missing", "1 tensors"],
        ),
        (one_tensor(b"\0", "U8", (1,), order="x"), ["JSON list of names"]),
        (one_tensor(b"\0", "U8", (1,), order=[1]), ["JSON list of names"]),
        (one_tensor(b"\0", "U8", (1,), order=["x", "x"]), ["lists 'x' twice"]),
        (one_tensor(b"\0", "U8", (1,), order=["x", "y"]), ["weight 'y' is missing"]),
        (
            safetensors_bytes({"__metadata__": {"argument_order": "[" * 100_000}}),
            ["JSON list of names"],
        ),
        (
            safetensors_bytes({"__metadata__": {"axis_order": "julia"}}),
            ["'axis_order' must be 'xla' or absent", "'julia' (str)"],
        ),
        (
            safetensors_bytes({"__metadata__": {"axis_order": ""}}),
            ["'axis_order' must be 'xla' or absent"],
        ),
    ],
)
def test_fault_of_the_metadata_is_named(tmp_path: Path, content: bytes, words: list[str]) -> None:
    """The layout and the argument list come from the metadata, and nothing is guessed."""
    with pytest.raises(WeightsProblem) as caught:
        weights_of(tmp_path, content)

    for word in words:
        assert word in str(caught.value)


def test_all_faults_of_the_metadata_are_found_at_once(tmp_path: Path) -> None:
    """Layout and argument list are checked together."""
    metadata = {"axis_order": "?", "argument_order": '["a","a","b"]'}

    with pytest.raises(WeightsProblem) as caught:
        weights_of(tmp_path, safetensors_bytes({"__metadata__": metadata}))

    assert len(caught.value.findings) == 5


@pytest.mark.parametrize("header", ["{}", '{"__metadata__":{"argument_order":"[]"}}'])
def test_file_without_tensors_has_no_arguments(tmp_path: Path, header: str) -> None:
    """A model may have no weights, but the file is there."""
    with weights_of(tmp_path, safetensors_bytes(header)) as weights:
        assert ((), 0, 0) == (weights.arguments, weights.nbytes, len(weights.tensors))


def test_unlisted_tensors_are_ignored_with_a_warning(tmp_path: Path) -> None:
    """They are no arguments and take no memory, but the arity check counts them."""
    with weights_of(tmp_path, one_tensor(b"\0", "U8", (1,), order=[])) as weights:
        assert ((), 1) == (weights.arguments, len(weights.tensors))
        assert "'x'" in weights.warnings[0]


@pytest.mark.timeout(10)
def test_many_tensors_are_opened_in_time(tmp_path: Path) -> None:
    """The cost per tensor does not grow with their number."""
    names = [f"layers.{i}" for i in range(20_000)]
    header: dict[str, object] = {
        name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i, name in enumerate(names)
    }
    header["__metadata__"] = {"argument_order": json.dumps(names)}

    with weights_of(tmp_path, safetensors_bytes(header, bytes(20_000))) as weights:
        assert 20_000 == weights.nbytes == len(weights.arguments)


def test_weights_file_of_the_manifest_is_read(tmp_path: Path) -> None:
    """A migrated copy is read in place of the original."""
    text = examples.AFFINE + "weights_file: weights.T.safetensors\n"
    bundle = make_bundle(tmp_path / "m", text, examples.legacy_weights())
    with pytest.raises(WeightsProblem, match=r"weights\.T\.safetensors: the file is missing"):
        read_bundle_weights(bundle)

    (bundle / "weights.T.safetensors").write_bytes(one_tensor(b"\1", "U8", (1,)))

    assert ["x"] == list(read_bundle_weights(bundle))


def test_model_needs_a_weights_file_and_a_meta_model_does_not(tmp_path: Path) -> None:
    """Even a model without weights has the file."""
    model = make_bundle(tmp_path / "model", examples.AFFINE)
    meta = make_bundle(tmp_path / "meta", examples.META)
    (meta / "model.py").write_text("")

    with pytest.raises(WeightsProblem, match="the file is missing"):
        read_bundle_weights(model)
    assert {} == read_bundle_weights(meta)


def test_weights_must_be_a_regular_file(tmp_path: Path) -> None:
    """A fifo does not block, a directory is named."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("")

    for name, reason in (
        ("directory", "it is a directory"),
        ("fifo", "it is not a regular file"),
        ("file/below", "Not a directory"),
        ("nul\0", "null byte"),
    ):
        with pytest.raises(WeightsProblem, match=reason):
            WeightsFile.open(tmp_path / name)


def descriptors_of(path: Path) -> list[int]:
    """Descriptors of this process that are open on a file."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == str(path):
                found.append(int(name))
        except FileNotFoundError:  # the one that listed the directory
            continue
    return found


def test_nothing_stays_open(tmp_path: Path) -> None:
    """A refused file is closed, and closing twice is harmless."""
    with pytest.raises(WeightsProblem):
        weights_of(tmp_path, b"")
    weights = weights_of(tmp_path, examples.xla_weights())
    assert len(descriptors_of(weights.path)) == 1

    weights.close()
    weights.close()

    assert [] == descriptors_of(weights.path)


def test_descriptor_is_not_inherited(tmp_path: Path) -> None:
    """Hook processes do not hold weights of other models."""
    with weights_of(tmp_path, examples.xla_weights()) as weights:
        (fd,) = descriptors_of(weights.path)

        assert not os.get_inheritable(fd)


@pytest.mark.parametrize(
    "destination",
    [
        bytearray(24),
        memoryview(bytearray(24)),
        np.zeros(24, np.uint8),
        np.zeros((2, 3), np.float32),
    ],
    ids=["bytearray", "memoryview", "uint8", "float32"],
)
def test_any_writable_memory_of_the_right_size_is_filled(
    tmp_path: Path, destination: memoryview
) -> None:
    """Program order is read straight into memory of the caller."""
    with weights_of(tmp_path, examples.xla_weights()) as weights:
        weights.read_into(weights.arguments[0], destination)

    assert examples.XLA_DATA == bytes(memoryview(destination).cast("B"))


@pytest.mark.parametrize(
    "destination",
    [
        np.zeros(23, np.uint8),
        np.zeros(25, np.uint8),
        bytes(24),
        np.zeros(48, np.uint8)[::2],
    ],
    ids=["short", "long", "read-only", "strided"],
)
def test_memory_that_does_not_fit_is_the_callers_error(
    tmp_path: Path, destination: memoryview
) -> None:
    """Nothing is read beside the destination."""
    with (
        weights_of(tmp_path, examples.xla_weights()) as weights,
        pytest.raises(ValueError, match=r"destination|contiguous"),
    ):
        weights.read_into(weights.arguments[0], destination)


@pytest.mark.parametrize("content", [examples.xla_weights(), examples.legacy_weights()])
def test_file_that_became_shorter_is_a_weights_problem(tmp_path: Path, content: bytes) -> None:
    """A file that is rewritten in place is noticed, not read as zeros."""
    with weights_of(tmp_path, content) as weights:
        os.truncate(weights.path, len(content) - 5)

        with pytest.raises(WeightsProblem, match="'W' ends 5 bytes behind its end"):
            weights.read_into(weights.arguments[0], memoryview(bytearray(24)))


def test_closed_file_is_a_weights_problem(tmp_path: Path) -> None:
    """Reading after close is refused by the system, and translated."""
    weights = weights_of(tmp_path, examples.xla_weights())
    weights.close()

    with pytest.raises(WeightsProblem, match="'W' cannot be read"):
        weights.read_into(weights.arguments[0], memoryview(bytearray(24)))


@pytest.mark.parametrize(("data", "is_fine"), [(b"\0\1\1", True), (b"\0\2\1", False), (b"", True)])
def test_bools_are_zero_or_one(tmp_path: Path, data: bytes, is_fine: bool) -> None:
    """A bool of another byte has no meaning that all programs share."""
    target: Array = np.zeros(len(data), np.uint8)
    with weights_of(tmp_path, one_tensor(data, "BOOL", (len(data),))) as weights:
        if is_fine:
            weights.read_into(weights.arguments[0], target)
            assert data == target.tobytes()
        else:
            with pytest.raises(WeightsProblem, match="bytes other than 0 and 1"):
                weights.read_into(weights.arguments[0], target)


@pytest.mark.parametrize("layout", ["xla", "legacy"])
@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_pieces_together_are_what_is_read_at_once(
    tmp_path: Path, layout: Literal["xla", "legacy"], piece_bytes: int
) -> None:
    """Whoever copies weights elsewhere needs no memory for a whole tensor."""
    arrays: dict[str, Array] = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "vector": np.arange(5, dtype=np.int16),
        "truth": np.array([True, False]),
        "empty": np.zeros((0, 2), np.float32),
    }
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"".join(plan_weights(arrays, layout, []).chunks()))
    buffer = np.empty(piece_bytes, np.uint8)

    with WeightsFile.open(path) as weights:
        found = [
            b"".join(piece.tobytes() for piece in weights.read_pieces(tensor, buffer))
            for tensor in weights.arguments
        ]

    assert [array.tobytes() for array in arrays.values()] == found


def test_piece_of_a_bool_that_is_neither_is_refused(tmp_path: Path) -> None:
    """Pieces are checked as whole tensors are."""
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"".join(plan_weights({"t": np.ones(4, bool)}, "xla", []).chunks()))
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x02")

    with WeightsFile.open(path) as weights, pytest.raises(WeightsProblem, match="0 and 1"):
        list(weights.read_pieces(weights.arguments[0], np.empty(3, np.uint8)))
