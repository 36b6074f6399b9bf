"""Declarations in numpy order, and the letters they get."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloserve.bundle.axes import format_tensor
from hloserve.bundle.io_spec import IOSpec, build_specs
from hloserve.core.dtypes import DTYPES, F32, DType


def written(*declared: IOSpec, distinct: bool = False) -> list[tuple[object, object]]:
    """Shape and dims in the manifest of declarations without faults."""
    findings: list[str] = []
    specs = build_specs("executable_inputs", declared, findings, distinct=distinct)
    assert findings == []
    entries = [format_tensor(spec) for spec in specs]
    return [(entry["shape"], entry.get("dims")) for entry in entries]


def findings_of(spec: IOSpec) -> list[str]:
    """What is wrong with a declaration."""
    findings: list[str] = []
    assert build_specs("executable_inputs", [spec], findings) == ()
    return findings


@pytest.mark.parametrize(
    ("spec", "shape", "dims"),
    [
        (IOSpec("x", "f32", (1, 3, 480, 640), 0), "acdn", {"a": 640, "c": 480, "d": 3}),
        (IOSpec("x", "f32", (1, 3, 480, 640), 0, "chw"), "whcn", {"w": 640, "h": 480, "c": 3}),
        (IOSpec("x", "f32", (1, 3, 480, 640), 0, ["c", "h", "w"]), "whcn", None),
        (IOSpec("x", "f32", (8, -1), 0), "an", {"a": -1}),
        (IOSpec("x", "f32", (-1, 4), 0), "an", {"a": 4}),
        (IOSpec("x", "f32", (0, 4), 0), "an", {"a": 4}),
        (IOSpec("x", "f32", (4, 8), 1), "na", {"a": 4}),
        (IOSpec("x", "f32", (2, 8, 3), 1, "xy"), "ynx", {"y": 3, "x": 2}),
        (IOSpec("x", "f32", ()), "", None),
        (IOSpec("x", "f32", (7,)), "a", {"a": 7}),
        (IOSpec("x", "f32", (7,), 0), "n", None),
        (IOSpec("x", "f32", [np.int64(7), 2]), "ac", {"a": 2, "c": 7}),
    ],
)
def test_declaration_is_reversed_into_the_manifest(
    spec: IOSpec, shape: str, dims: dict[str, int] | None
) -> None:
    """Authors think in numpy order; letters are chosen in manifest order, as the sibling does."""
    ((got_shape, got_dims),) = written(spec)

    assert shape == got_shape
    assert dims is None or dims == got_dims


def test_all_letters_but_the_batch_letters_are_chosen() -> None:
    """There are 24 letters, in order; the batch axis is always n."""
    ((shape, _),) = written(IOSpec("x", "f32", (9, *[2] * 24), 0))

    assert "acdefghijklmopqrstuvwxyzn" == shape


def test_more_axes_than_letters_are_refused() -> None:
    """Letters of one's own may be upper case too."""
    (finding,) = findings_of(IOSpec("x", "f32", [2] * 25))

    assert "more axes than letters (24)" in finding


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_is_a_token_a_numpy_dtype_or_a_dtype(dtype: DType) -> None:
    """Three ways to say the same."""
    for way in (dtype.token, dtype.numpy, dtype, dtype.numpy.type):
        (spec,) = build_specs("s", [IOSpec("x", way, ())], [])
        assert dtype is spec.dtype


def test_big_endian_dtype_is_the_same_type() -> None:
    """Byte order is not part of a spec."""
    (spec,) = build_specs("s", [IOSpec("x", np.dtype(">f4"), ())], [])

    assert F32 is spec.dtype


@pytest.mark.parametrize(
    "dtype", ["float32", "f8", "int", None, np.complex64, object(), ml_dtypes.int4, "<f4", 3]
)
def test_other_dtypes_are_refused(dtype: Any) -> None:
    """Numpy's own strings are not tokens: its `i8` has eight bytes, and None is float64."""
    (finding,) = findings_of(IOSpec("x", dtype, ()))

    assert "executable_inputs[0] 'x': dtype" in finding
    assert "use a numpy dtype or one of f16, f32" in finding


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (IOSpec("", "f32", ()), ["name is empty"]),
        (IOSpec("x", "f32", (0,)), ["axis 0", "is 0", "above 0"]),
        (IOSpec("x", "f32", (2, -3), 0), ["axis 1", "is -3"]),
        (IOSpec("x", "f32", (2**63,)), ["axis 0"]),
        (IOSpec("x", "f32", (2, 3), 2), ["batch_axis is 2", "(2, 3)"]),
        (IOSpec("x", "f32", (2, 3), -1), ["batch_axis is -1"]),
        (IOSpec("x", "f32", (), 0), ["batch_axis is 0"]),
        (IOSpec("x", "f32", (2.0,)), ["shape must be integers"]),  # type: ignore[arg-type]  # on purpose
        (IOSpec("x", "f32", 3), ["shape must be integers", "3 (int)"]),  # type: ignore[arg-type]  # on purpose
        (IOSpec("x", "f32", (2, 3), None, "a"), ["1 letters for 2 axes"]),
        (IOSpec("x", "f32", (2, 3), 0, "ac"), ["2 letters for 1 axes", "except the batch axis"]),
        (IOSpec("x", "f32", (2, 3), None, "an"), ["'n'", "batch axis"]),
        (IOSpec("x", "f32", (2, 3), None, "ab"), ["'b'", "batch axis"]),
        (IOSpec("x", "f32", (2, 3), None, ["a", "cd"]), ["'cd'", "ASCII letter"]),
        (IOSpec("x", "f32", (2, 3), None, "cc"), ["repeat 'c'"]),
    ],
)
def test_fault_of_a_declaration_names_tensor_and_rule(spec: IOSpec, words: list[str]) -> None:
    """Each rule is refused with one sentence."""
    (finding,) = findings_of(spec)

    for word in ["executable_inputs[0]", *words]:
        assert word in finding


def test_variable_axes_of_different_inputs_get_different_letters() -> None:
    """Variants look sizes up by letter, so one letter would be one size."""
    declared = [IOSpec("i", "f32", (1, -1, 3), 0), IOSpec("j", "f32", (1, -1), 0)]

    assert [("acn", {"a": 3, "c": -1}), ("an", {"a": -1})] == written(*declared, distinct=True)

    declared = [IOSpec("i", "f32", (1, 3, -1), 0), IOSpec("j", "f32", (1, -1, 5), 0)]
    assert [("acn", {"a": -1, "c": 3}), ("acn", {"a": 5, "c": -1})] == written(
        *declared, distinct=True
    )

    declared = [IOSpec("i", "f32", (-1,)), IOSpec("j", "f32", (-1,)), IOSpec("k", "f32", (-1,))]
    assert ["a", "c", "d"] == [shape for shape, _ in written(*declared, distinct=True)]
    assert ["a", "a", "a"] == [shape for shape, _ in written(*declared)]


def test_chosen_letters_stay_clear_of_letters_that_were_asked_for() -> None:
    """Also when the one that asked comes later; its order is kept."""
    declared = [IOSpec("i", "f32", (-1,)), IOSpec("j", "f32", (-1, 2), None, "ac")]

    assert ["c", "ca"] == [shape for shape, _ in written(*declared, distinct=True)]
