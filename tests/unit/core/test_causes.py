"""What an error came of."""

import pytest

from hloserve.core.causes import causes


def _raised(texts: str, *, is_said: bool) -> ValueError:
    """An error for each letter, the later ones while the earlier are handled."""
    error = ValueError(texts[0])
    for text in texts[1:]:
        later = ValueError(text)
        if is_said:
            later.__cause__ = error
        else:
            later.__context__ = error
        error = later
    return error


@pytest.mark.parametrize("is_said", [True, False])
def test_causes_come_from_the_last_to_the_first(is_said: bool) -> None:
    """Said or not, unless only those that were said are wanted."""
    error = _raised("abc", is_said=is_said)

    assert [str(each) for each in causes(error)] == ["c", "b", "a"]
    only_said = ["c", "b", "a"] if is_said else ["c"]
    assert only_said == [str(each) for each in causes(error, with_contexts=False)]


def test_nothing_comes_of_no_error() -> None:
    """What has no error needs no question before."""
    assert list(causes(None)) == []


@pytest.mark.parametrize("length", [1, 2, 3])
def test_causes_that_go_round_end(length: int) -> None:
    """``raise error from error`` is its own cause, and the first may be raised from the last."""
    last = _raised("abc"[:length], is_said=True)
    *_, first = causes(last)
    first.__cause__ = last

    assert length == len(list(causes(last)))
