"""The grammar of shape strings, against a second reading of its rules."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hloserve.bundle.axes import format_tensor, parse_tensor
from hloserve.core.tensors import AxisKind

shapes = st.text("nbacNB", max_size=5) | st.text(max_size=4) | st.sampled_from(["", "whcn", "nc"])
sizes = (
    st.integers(-3, 9)
    | st.sampled_from([2**63 - 1, 2**63, True, None, "3"])
    | st.floats(allow_nan=False)
)
dims = st.dictionaries(st.sampled_from("nbacNB") | st.text(max_size=2), sizes, max_size=5)


def is_legal(shape: str, dims: dict[str, Any]) -> bool:
    """The rules of the format, one line each, in the order of its text."""
    letters = [letter for letter in shape if letter not in "nb"]
    return (
        re.fullmatch("[A-Za-z]*", shape) is not None
        and len(set(shape)) == len(shape)
        and len(shape) - len(letters) <= 1
        and all(re.fullmatch("[A-Za-z]", key) and key not in ("n", "b") for key in dims)
        and all(type(size) is int and (size == -1 or 0 < size < 2**63) for size in dims.values())
        and set(dims) == set(letters)
    )


@given(shapes, dims)
def test_shape_is_accepted_exactly_when_it_is_legal(shape: str, dims: dict[str, Any]) -> None:
    """Our parser and the rules agree on any shape and any dims."""
    findings: list[str] = []

    spec = parse_tensor({"name": "x", "dtype": "f32", "shape": shape, "dims": dims}, "s", findings)

    assert is_legal(shape, dims) == (spec is not None) == (not findings)


@given(st.text("nacdN", max_size=5).filter(lambda s: len(set(s)) == len(s)), st.data())
def test_numpy_shape_is_the_reverse_of_the_letters(shape: str, data: st.DataObject) -> None:
    """Position by position, and back again when it is written."""
    dims = {letter: data.draw(st.just(-1) | st.integers(1, 9)) for letter in shape if letter != "n"}

    spec = parse_tensor({"name": "x", "dtype": "f32", "shape": shape, "dims": dims}, "s", [])

    assert spec is not None
    expected = [None if letter == "n" or dims[letter] == -1 else dims[letter] for letter in shape]
    assert expected[::-1] == list(spec.shape)
    assert [letter == "n" for letter in shape][::-1] == [
        axis.kind is AxisKind.BATCH for axis in spec.axes
    ]
    assert {"name": "x", "dtype": "f32", "shape": shape} | ({"dims": dims} if dims else {}) == (
        format_tensor(spec)
    )


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
fields = scalars | st.dictionaries(scalars, scalars, max_size=2) | st.lists(scalars, max_size=2)


@given(
    fields
    | st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "dtype", "shape", "dims"), fields))
)
def test_any_value_is_a_spec_or_a_finding(entry: object) -> None:
    """No value of YAML makes the parser raise."""
    findings: list[str] = []

    spec = parse_tensor(entry, "s[0]", findings)

    assert (spec is None) == bool(findings)
    assert all(finding.startswith("s[0]") and len(finding) < 1000 for finding in findings)
