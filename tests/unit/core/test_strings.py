"""What may be given as strings, and what comes of it."""

from typing import Any

import numpy as np
import pytest

from hloserve.core.strings import is_text, strings_from, text_array


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.array(["Bär", ""]), ["Bär".encode(), b""]),
        (np.array([b"a", b"bc"]), [b"a", b"bc"]),
        (np.array([b"a\0", "b", np.str_("c")], object), [b"a\0", b"b", b"c"]),
        (np.array([], object), []),
    ],
)  # fmt: skip
def test_every_kind_of_text_becomes_bytes(given: Any, expected: list[bytes]) -> None:
    """Text is encoded as UTF-8; bytes stay what they are."""
    strings = strings_from(given)

    assert object == strings.dtype
    assert expected == strings.tolist()
    assert {bytes} >= set(map(type, strings.tolist()))


def test_shapes_are_kept() -> None:
    """Also rank 0, and shapes without elements."""
    for shape in ((), (2, 1), (0, 3)):
        assert shape == strings_from(np.full(shape, "a")).shape


def test_arrays_of_bytes_are_not_copied() -> None:
    """What is in form already is given back."""
    array = np.array([b"a", b"b"], object)

    assert strings_from(array) is array


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.array([b"a", 5], object), "element 1 is of type int"),
        (np.array([None], object), "element 0 is of type NoneType"),
        (np.array(["\ud800"], object), "element 0 cannot be encoded"),
    ],
)
def test_anything_else_is_refused_with_its_place(given: Any, expected: str) -> None:
    """The first element that is no string is named."""
    with pytest.raises(ValueError, match=expected):
        strings_from(given)


def test_lists_of_bytes_keep_their_last_zeros() -> None:
    """NumPy's fixed-width type would drop them."""
    assert [[b"a\0"], [b""]] == text_array([[b"a\0"], [b""]]).tolist()


def test_numbers_are_no_text() -> None:
    """Arrays of numbers go the other way."""
    assert not is_text(text_array([1, 2]))
    assert is_text(text_array("a"))
