"""The worked examples of the docstrings."""

import doctest
from types import ModuleType

import pytest

from hloserve.bundle import axes, io_spec, writing


@pytest.mark.parametrize("module", [axes, io_spec, writing])
def test_examples_of_the_docstrings_are_true(module: ModuleType) -> None:
    """What a docstring shows is what happens."""
    result = doctest.testmod(module)

    assert result.attempted > 0
    assert result.failed == 0
