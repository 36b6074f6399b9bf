"""Wording about layers: which failed, what to pass, and what cannot be called."""

from typing import Any

import pytest

from hloserve.core.errors import ExportProblem
from hloserve.export.modules.layers import (
    Layer,
    argument_problem,
    bound,
    check_method,
    inference_hint,
    layer_of,
)


class _Inner:
    def __call__(self, value: int) -> float:
        return 1 / value


class _Outer:
    def __init__(self) -> None:
        self.inner = _Inner()

    def __call__(self, value: int, train: bool = False) -> float:
        return self.inner(value)

    def twice(self, value: int) -> int:
        return value * 2


def _failure(module: Any) -> ZeroDivisionError:
    with pytest.raises(ZeroDivisionError) as failure:
        module(0)
    return failure.value


def test_innermost_layer_is_the_one_that_failed() -> None:
    """The layers above it were only calling."""
    module = _Outer()
    layers = {id(module): Layer("", _Outer), id(module.inner): Layer("inner", _Inner)}

    layer = layer_of(_failure(module), layers)

    assert "layer 'inner' (_Inner)" == str(layer)


def test_layer_that_is_not_known_is_told_as_the_one_around_it() -> None:
    """A transformation may have rebuilt a layer; the module itself is still known."""
    module = _Outer()

    assert "the module (_Outer)" == str(layer_of(_failure(module), {id(module): Layer("", _Outer)}))
    assert layer_of(_failure(module), {}) is None


def test_flags_of_inference_are_proposed_with_their_values() -> None:
    """By the names that modules commonly use; otherwise what the caller says."""
    assert "pass call_kwargs={'train': False}" == inference_hint(_Outer(), "or so")
    assert "or so" == inference_hint(_Inner(), "or so")


def test_method_is_the_module_a_name_or_a_function() -> None:
    """All three take the inputs alone."""
    module = _Outer()

    assert [0.5, 4, 6] == [
        bound(module, None)(2),
        bound(module, "twice")(2),
        bound(module, lambda outer, value: outer.twice(value) + 2)(2),
    ]


@pytest.mark.parametrize("method", ["thrice", "inner_"])
def test_method_that_does_not_exist_is_told(method: str) -> None:
    """With the class that lacks it."""
    with pytest.raises(ExportProblem, match=f"method: _Outer has no method '{method}'"):
        check_method(_Outer(), method, "model")


def test_object_that_cannot_be_called_is_told() -> None:
    """A module without `__call__` needs a method."""
    with pytest.raises(ExportProblem, match="has no method '__call__'"):
        check_method(object(), None, "model")


def test_arguments_that_do_not_fit_are_told_before_the_call() -> None:
    """Number of inputs and names of keywords."""
    assert argument_problem(_Outer(), 1, {"train": False}) is None
    assert "too many positional arguments" in str(argument_problem(_Inner(), 2, {}))
    assert "call_kwargs ['mode']: got an unexpected keyword argument 'mode'" in str(
        argument_problem(_Inner(), 1, {"mode": 1})
    )
