"""The line of the author's code that an error came through."""

import json

import jax.numpy as jnp
import pytest

from hloserve.export.author_line import author_line, error_text, is_raised_by_author

pytestmark = pytest.mark.xla


def test_innermost_line_of_the_author_is_named() -> None:
    """Frames of frameworks and of the standard library are passed over."""
    with pytest.raises(json.JSONDecodeError) as of_library:
        json.loads("{")
    with pytest.raises(TypeError) as of_framework:
        jnp.ones((2, 3)) @ jnp.ones((2, 3))
    with pytest.raises(ZeroDivisionError) as own:
        1 / 0  # noqa: B018  # it is to fail

    for caught in (of_library, of_framework, own):
        assert author_line(caught.value).startswith(" at test_author_line.py line ")
    assert is_raised_by_author(own.value)
    assert not is_raised_by_author(of_framework.value)
    assert not is_raised_by_author(of_library.value)


def test_error_without_a_traceback_has_no_line() -> None:
    """Nothing is made up."""
    error = ValueError()

    assert author_line(error) == ""
    assert not is_raised_by_author(error)
    assert error_text(error) == "ValueError: no message"


def test_long_messages_are_cut_after_the_first_line() -> None:
    """A report stays a report."""
    assert error_text(ValueError("\n first.\nsecond")) == "ValueError: first"
    assert len(error_text(ValueError("x" * 1000))) < 330
