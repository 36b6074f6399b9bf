"""Options in flags and YAML."""

import typing

import pytest

from hloserve.export.lists.plain_options import (
    PLAIN_OPTIONS,
    OptionRefused,
    parse_batch_sizes,
    read_option,
)
from hloserve.export.options import BatchSizes, ExportOptions


def test_every_option_that_text_can_hold_is_there() -> None:
    """What is left out needs Python, or is the caller's."""
    needs_python = {
        "client_inputs", "client_outputs", "output_select", "progress", "sample_inputs",
        "shape_variants",
    }  # fmt: skip
    of_the_caller = {"dir", "name", "overwrite"}

    assert set(typing.get_type_hints(ExportOptions)) == (
        needs_python | of_the_caller | set(PLAIN_OPTIONS)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", (1,)), ("1, 8,32", (1, 8, 32)), ("dynamic", "dynamic"), ("none", None)],
)
def test_batch_sizes_are_numbers_or_a_word(text: str, expected: BatchSizes) -> None:
    """A flag takes sizes, or a word for an open or for no batch axis."""
    assert expected == parse_batch_sizes(text)


@pytest.mark.parametrize("text", ["", "0", "1,", "-1", "1.5", "open", "9" * 9999, "\u0661"])
def test_other_batch_sizes_are_refused(text: str) -> None:
    """Anything else is refused with what would do."""
    with pytest.raises(OptionRefused, match="must be sizes like 1,8,32"):
        parse_batch_sizes(text)


def test_axes_may_be_missing() -> None:
    """A batch axis per tensor is a number, or null for none."""
    assert (0, None) == read_option("input_batch_axes", [0, None])
    with pytest.raises(OptionRefused, match=r"must be a list of axes, .* got \[-1\]"):
        read_option("input_batch_axes", [-1])
