"""`hloserve infer`: inputs and outputs; the call itself is the client's."""

import json
from pathlib import Path

import click
import ml_dtypes
import numpy as np
import pytest

from hloserve.cli.infer import (
    generate,
    load_files,
    save_outputs,
    split_inputs,
    summarise,
    tensor_as_json,
)
from hloserve.cli.main import run
from hloserve.core.requests import ModelMetadata, TensorMetadata

METADATA = ModelMetadata(
    "m",
    ("1",),
    "hloserve",
    (
        TensorMetadata("image", "UINT8", (-1, 8, 8)),
        TensorMetadata("scale", "BF16", (2,)),
        TensorMetadata("text", "BYTES", (1,)),
    ),
    (),
)


def test_input_is_name_and_file() -> None:
    """NAME=FILE is taken apart at the first equals sign."""
    assert {"a": "x.npy", "b": "c=d.npy"} == split_inputs(["a=x.npy", "b=c=d.npy"])


@pytest.mark.parametrize("inputs", [["a"], ["a="], ["=a.npy"], ["a=1", "a=2"]])
def test_malformed_input_is_a_usage_error(inputs: list[str]) -> None:
    """An input without name, without file or given twice is refused."""
    with pytest.raises(click.UsageError):
        split_inputs(inputs)


def test_files_keep_dtype_and_shape(tmp_path: Path) -> None:
    """An input file is sent as it was saved, whatever its memory order."""
    array = np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    np.save(tmp_path / "a.npy", array)

    loaded = load_files({"a": str(tmp_path / "a.npy"), "b": "zeros"})

    assert ["a"] == list(loaded)
    assert np.int16 == loaded["a"].dtype
    np.testing.assert_array_equal(array, loaded["a"])


def test_file_that_is_no_array_is_a_usage_error(tmp_path: Path) -> None:
    """Missing files, other files, archives and pickles are refused; nothing is unpickled."""
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "several.npz", a=1, b=2)
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)

    for name in ("absent.npy", "text.npy", "empty.npy", "several.npz", "pickle.npy", "."):
        with pytest.raises(click.UsageError, match="input 'a'"):
            load_files({"a": str(tmp_path / name)})


def test_words_become_arrays_of_the_model(tmp_path: Path) -> None:
    """Zeros, ones and random take dtype and shape from the model; open axes are 1."""
    arrays = generate({"image": "ones", "scale": "random:3,2", "file": "x.npy"}, METADATA)

    assert ["image", "scale"] == list(arrays)
    np.testing.assert_array_equal(np.ones((1, 8, 8), np.uint8), arrays["image"])
    assert ((3, 2), ml_dtypes.bfloat16) == (arrays["scale"].shape, arrays["scale"].dtype)
    again = generate({"scale": "random:3,2"}, METADATA)
    assert arrays["scale"].tobytes() == again["scale"].tobytes()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"imag": "zeros"}, "no input 'imag'; it has image, scale, text"),
        ({"text": "zeros"}, "input 'text' takes strings"),
        ({"image": "zeros:999999999,99999"}, "more than one request can hold"),
    ],
)
def test_words_that_cannot_be_made_are_usage_errors(given: dict[str, str], told: str) -> None:
    """What the model does not take is told before anything is sent."""
    with pytest.raises(click.UsageError, match=told):
        generate(given, METADATA)


def test_outputs_are_saved_inside_the_directory(tmp_path: Path) -> None:
    """Whatever a server calls its outputs, their files stay apart and inside the directory."""
    outputs = {"../../evil": np.zeros(1), "a/b": np.ones(2), "a_b": np.zeros(3), "": np.zeros(4)}

    save_outputs(outputs, tmp_path / "out")

    assert [tmp_path / "out"] == list(tmp_path.iterdir())
    shapes = [np.load(file).shape for file in (tmp_path / "out").iterdir()]
    assert [(1,), (2,), (3,), (4,)] == sorted(shapes)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([[0.5, 1.25]], np.float32), ("f32", "(1, 2)", "[0.5, 1.25]")),
        (np.arange(9), ("i64", "(9)", "[0, 1, 2, 3, 4, 5, ...]")),
        (np.array(True), ("bool", "()", "[True]")),
        (np.zeros((0, 3), np.uint8), ("u8", "(0, 3)", "[]")),
        (np.array([1.5], ml_dtypes.bfloat16), ("bf16", "(1)", "[1.5]")),
    ],
)
def test_output_is_summed_up_on_one_line(array: np.ndarray, expected: tuple[str, str, str]) -> None:
    """An output is told by dtype, shape and its first values."""
    assert expected == summarise(array)


def test_output_as_json_is_json() -> None:
    """Values that JSON lacks are null; names cannot steer a terminal."""
    array = np.array([1.5, np.nan, np.inf, -np.inf], np.float16)

    tensor = tensor_as_json("p\x1b", array)

    assert [1.5, None, None, None] == json.loads(json.dumps(tensor, allow_nan=False))["data"]
    assert ("p\\x1b", "FP16", [4]) == (tensor["name"], tensor["datatype"], tensor["shape"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["m", "x"], "'x' is not an input"),
        (["m", "--timeout", "soon"], "--timeout: 'soon' is not a duration"),
        ([], "Missing argument 'MODEL'"),
    ],
)
def test_usage_errors_end_with_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """A mistake in the arguments is told without asking a server."""
    assert 2 == run(["infer", *arguments])
    assert told in capsys.readouterr().err


def test_strings_are_given_as_json() -> None:
    """One string is of rank 0; lists nest as the shape does."""
    loaded = load_files({"a": '"Bär"', "b": '[["x", ""], ["y\\u0000", "z"]]'})

    assert ((), "Bär".encode()) == (loaded["a"].shape, loaded["a"].item())
    assert [[b"x", b""], [b"y\0", b"z"]] == loaded["b"].tolist()


@pytest.mark.parametrize("text", ["[1]", '["a"', '[["a"], ["b", "c"]]', "[" * 5000, '["\\ud800"]'])
def test_other_json_is_a_usage_error(text: str) -> None:
    """The input is named, and only the beginning of a long text is shown."""
    with pytest.raises(click.UsageError, match="input 'a'") as caught:
        load_files({"a": text})
    assert len(str(caught.value)) < 400


def test_strings_are_summed_up_saved_and_printed(tmp_path: Path) -> None:
    """As text where they are text; a file holds what NumPy's fixed-width type can."""
    array = np.array(["Bär".encode(), b"\xff", b"x" * 99], object)

    save_outputs({"y": array}, tmp_path)

    assert array.tolist() == np.load(tmp_path / "y.npy").tolist()
    assert ("bytes", "(3)") == summarise(array)[:2]
    assert "'Bär'" in summarise(array)[2]
    assert ["Bär", "\\xff", "x" * 99] == tensor_as_json("y", array)["data"]
    assert "BYTES" == tensor_as_json("y", array)["datatype"]


def test_strings_that_files_cannot_hold_are_not_cut(tmp_path: Path) -> None:
    """The message says how to see them."""
    with pytest.raises(click.ClickException, match=r"'y'.*--json"):
        save_outputs({"y": np.array([b"a\0"], object)}, tmp_path)
