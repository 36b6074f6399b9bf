"""Manifest order and numpy order."""

import pytest

from hloserve.bundle.axes import (
    VariableAxis,
    format_tensor,
    manifest_positions,
    parse_tensor,
    variable_axes,
)
from hloserve.core.dtypes import DTYPES
from hloserve.core.tensors import AxisKind, TensorSpec


def entry(shape: object, dims: object = None, **more: object) -> dict[str, object]:
    """A tensor entry of a manifest."""
    fields: dict[str, object] = {"name": "t", "dtype": "f32", "shape": shape, "dims": dims}
    return fields | more


def spec_of(shape: str, **dims: int) -> TensorSpec:
    """The spec of an entry that has no faults."""
    findings: list[str] = []
    spec = parse_tensor(entry(shape, dims), "s[0]", findings)
    assert findings == []
    assert spec is not None
    return spec


def findings_of(value: object) -> list[str]:
    """What is wrong with an entry."""
    findings: list[str] = []
    assert parse_tensor(value, "executable_inputs[2]", findings) is None
    return findings


@pytest.mark.parametrize(
    ("shape", "dims", "numpy_shape", "batch_axis"),
    [
        ("whcn", {"w": 640, "h": 480, "c": 3}, (None, 3, 480, 640), 0),
        ("chwn", {"c": 3, "h": 224, "w": 224}, (None, 224, 224, 3), 0),
        ("kn", {"k": 1000}, (None, 1000), 0),
        ("nc", {"c": 4}, (4, None), 1),
        ("cn", {"c": 4}, (None, 4), 0),
        ("qd", {"q": 6, "d": -1}, (None, 6), None),
        ("b", {}, (None,), 0),
        ("", {}, (), None),
        ("NBc", {"N": 2, "B": 3, "c": 5}, (5, 3, 2), None),
        ("cC", {"c": 1, "C": 2}, (2, 1), None),
    ],
)
def test_manifest_shape_is_the_reverse_of_the_numpy_shape(
    shape: str,
    dims: dict[str, int],
    numpy_shape: tuple[int | None, ...],
    batch_axis: int | None,
) -> None:
    """Letters run fastest first, numpy shapes outermost first."""
    spec = spec_of(shape, **dims)

    assert numpy_shape == spec.shape
    assert batch_axis == spec.batch_axis


def test_kinds_of_axes_follow_from_letter_and_size() -> None:
    """The letter n is the batch axis, -1 is variable, anything else is fixed."""
    spec = spec_of("wcn", w=-1, c=3)

    kinds = [(axis.letter, axis.kind, axis.extent) for axis in spec.axes]
    assert [
        ("n", AxisKind.BATCH, None),
        ("c", AxisKind.FIXED, 3),
        ("w", AxisKind.VARIABLE, None),
    ] == kinds


@pytest.mark.parametrize("dtype", [dtype.token for dtype in DTYPES])
def test_every_dtype_token_parses(dtype: str) -> None:
    """All fifteen element types can be declared."""
    spec = parse_tensor(entry("", dtype=dtype), "s[0]", [])

    assert spec is not None
    assert dtype == spec.dtype.token


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, ["must be a mapping", "3 (int)"]),
        (entry("c", {"c": 1}, name=None), ["name is missing"]),
        (entry("c", {"c": 1}, name=7), ["name must be a string", "7 (int)", "quotes"]),
        (entry("c", {"c": 1}, name=""), ["name must be a string", "give the tensor a name"]),
        (entry("c", {"c": 1}, dtype="float"), ["'t'", "dtype", "f32", "'float' (str)"]),
        (entry("c", {"c": 1}, dtype=None), ["dtype", "got nothing"]),
        (entry("c", {"c": 1}, dtype=["f32"]), ["dtype", "['f32'] (list)"]),
        (entry(None), ["shape is missing"]),
        (entry(False), ["shape must be a string", "False (bool)", "quotes"]),
        (entry([1, 3]), ["shape must be a string", "[1, 3] (list)"]),
        (entry("cc", {"c": 1}), ["'cc'", "repeats 'c'"]),
        (entry("nn"), ["repeats 'n'"]),
        (entry("nb"), ["both batch letters"]),
        (entry("c1", {"c": 1}), ["'c1'", "'1'", "ASCII letter"]),
        (entry("é", {}), ["'é'", "ASCII letter"]),
        (entry("ck", {"c": 1}), ["needs a size for 'k'", "dims has 'c'"]),
        (entry("c", None), ["needs a size for 'c'", "dims has none"]),
        (entry("c", {"c": 1, "k": 2}), ["sizes for 'k'", "does not have"]),
        (entry("cn", {"c": 1, "n": 2}), ["gives 'n' a size"]),
        (entry("cb", {"c": 1, "b": 2}), ["gives 'b' a size"]),
        (entry("c", {"c": 0}), ["dims['c']", "above 0", "0 (int)"]),
        (entry("c", {"c": -2}), ["dims['c']", "-2 (int)"]),
        (entry("c", {"c": True}), ["dims['c']", "True (bool)"]),
        (entry("c", {"c": 8.0}), ["dims['c']", "8.0 (float)"]),
        (entry("c", {"c": "3"}), ["dims['c']", "'3' (str)"]),
        (entry("c", {"c": 2**63}), ["dims['c']", "9223372036854775808"]),
        (entry("c", {"c": 10**400}), ["dims['c']", "1329 bits"]),
        (entry("c", {"c": 1, "cd": 2}), ["'cd' (str)", "one ASCII letter"]),
        (entry("c", {"c": 1, 2: 2}), ["2 (int)", "one ASCII letter"]),
        (entry("c", [1]), ["dims must be a mapping", "[1] (list)"]),
    ],
)
def test_fault_of_a_tensor_names_place_rule_and_value(value: object, words: list[str]) -> None:
    """Each rule of a tensor entry is refused with one sentence that says where and why."""
    findings = findings_of(value)

    assert len(findings) == 1
    assert "executable_inputs[2]" in findings[0]
    for word in words:
        assert word in findings[0]


def test_all_faults_of_a_tensor_are_found_at_once() -> None:
    """A bad dtype does not hide a bad shape."""
    findings = findings_of(entry("cc", {"c": 0}, dtype="x"))

    assert len(findings) == 3


def test_long_names_are_cut_in_messages() -> None:
    """A name of megabytes does not come back as a message of megabytes."""
    (finding,) = findings_of(entry(None, name="x" * 100_000))

    assert len(finding) < 300


@pytest.mark.parametrize("shape", ["whcn", "nc", "", "n", "qd"])
def test_format_is_the_inverse_of_parse(shape: str) -> None:
    """A parsed entry is written as it was."""
    dims = {letter: 3 + i for i, letter in enumerate(shape) if letter != "n"}
    spec = spec_of(shape, **dims)

    written = format_tensor(spec)

    assert (shape, dims) == (written["shape"], written.get("dims", {}))


def test_variable_axes_are_listed_in_manifest_order() -> None:
    """A variant key lists sizes by input, and within an input fastest axis first."""
    image = spec_of("whcn", w=-1, h=-1, c=3)
    mask = parse_tensor(entry("ln", {"l": -1}, name="mask"), "s[1]", [])
    assert mask is not None

    assert (
        VariableAxis("t", 3, "w"),
        VariableAxis("t", 2, "h"),
        VariableAxis("mask", 1, "l"),
    ) == variable_axes([image, mask])


def test_positions_of_a_scalar_are_none() -> None:
    """A tensor of rank 0 has no axes to reverse."""
    assert [] == list(manifest_positions(0))
