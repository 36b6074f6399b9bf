"""How findings are worded."""

from typing import Any

import pytest

from hloserve.bundle.findings import describe, listing, raise_findings, repeated
from hloserve.core.errors import ManifestProblem


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8.0, "8.0 (float)"),
        (True, "True (bool)"),
        (None, "None (NoneType)"),
        ("a", "'a' (str)"),
        (10**100, f"an integer of {(10**100).bit_length()} bits (int)"),
    ],
)
def test_value_is_quoted_with_its_type(value: Any, text: str) -> None:
    """A reader sees at once that YAML took 8.0 for a float."""
    assert text == describe(value)


@pytest.mark.parametrize("value", ["x" * 10**6, [0] * 10**6, b"x" * 10**6, {"x" * 500: 1}])
def test_long_value_is_cut(value: Any) -> None:
    """No message grows with a file."""
    assert len(describe(value)) < 100


def test_values_are_listed() -> None:
    """None is a word too, and long lists end in a count."""
    assert "none" == listing([])
    assert "'a', 3" == listing(["a", 3])
    assert listing(range(60)).endswith("49, and 10 more")


def test_repeated_values_are_named_once() -> None:
    """In the order of their first occurrence."""
    assert ["b", "a"] == repeated("cbabab")


def test_no_finding_is_no_error() -> None:
    """Only findings are raised, all of them."""
    raise_findings(ManifestProblem, "m", [])

    with pytest.raises(ManifestProblem, match="bundle m: a; b"):
        raise_findings(ManifestProblem, "m", ["a", "b"])
