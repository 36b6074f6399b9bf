"""Registering hooks from a bundle's `model.py`."""

import functools
import threading
from typing import Any

import pytest

import hloserve
from hloserve.core.errors import HookProblem
from hloserve.hooks.registration import (
    collect_registrations,
    is_async,
    register_meta_model,
    register_model,
)


def test_registrations_are_collected_in_order() -> None:
    """The loader sees every call."""
    with collect_registrations() as registered:
        register_model("digits", preprocess=list)
        register_model(postprocess=dict)
        register_meta_model(run=print)
    first, second = registered.models
    assert (first.name, first.preprocess, first.postprocess) == ("digits", list, None)
    assert (second.name, second.preprocess, second.postprocess) == (None, None, dict)
    assert [meta.run for meta in registered.metas] == [print]


def test_public_names_are_the_same_functions() -> None:
    """Authors import them from the package itself."""
    assert hloserve.register_model is register_model
    assert hloserve.register_meta_model is register_meta_model


@pytest.mark.parametrize("register", [register_model, lambda: register_meta_model(run=print)])
def test_call_outside_of_a_load_is_explained(register: object) -> None:
    """Running model.py by hand, or registering from a hook, tells where the call belongs."""
    with pytest.raises(HookProblem, match=r"no bundle was being loaded; call it at the top level"):
        register()  # type: ignore[operator]


def test_hooks_must_be_callable() -> None:
    """A result instead of a function is caught at the call."""
    with collect_registrations() as registered:
        with pytest.raises(HookProblem, match="preprocess is dict, not a function"):
            register_model(preprocess={})  # type: ignore[arg-type]
        with pytest.raises(HookProblem, match="run is NoneType, not a function"):
            register_meta_model(run=None)  # type: ignore[arg-type]
    assert registered.models == []


class Pipeline:
    """An object that is called, with a method of each kind."""

    async def __call__(self, inputs: Any) -> Any:
        """Be awaited."""

    async def waiting(self, inputs: Any) -> Any:
        """Be awaited."""

    def plain(self, inputs: Any) -> Any:
        """Be called."""


@pytest.mark.parametrize(
    ("expected", "function"),
    [
        (True, Pipeline.waiting),
        (True, Pipeline().waiting),
        (True, Pipeline()),
        (True, functools.partial(Pipeline(), None)),
        (True, functools.partial(Pipeline().waiting, None)),
        (False, Pipeline().plain),
        (False, functools.partial(Pipeline().plain, None)),
        (False, Pipeline),  # calling a class makes an object
        (False, print),
        (False, None),
    ],
)
def test_what_is_awaited_is_known_before_it_is_called(expected: bool, function: object) -> None:
    """Functions, methods, objects with an async `__call__`, and either with arguments bound."""
    assert expected is is_async(function)


@pytest.mark.parametrize("role", ["preprocess", "postprocess"])
def test_hooks_of_one_model_are_not_async(role: str) -> None:
    """Nothing would await them; that is told when the bundle loads, not with the first request."""
    with (
        collect_registrations() as registered,
        pytest.raises(HookProblem, match=f"{role} is async"),
    ):
        register_model(None, **{role: Pipeline()})
    assert [] == registered.models


def test_loads_on_several_threads_do_not_mix() -> None:
    """Each loading thread collects its own registrations."""
    both_inside = threading.Barrier(2, timeout=10)
    seen: dict[str, list[str | None]] = {}

    def load(name: str) -> None:
        with collect_registrations() as registered:
            both_inside.wait()
            register_model(name)
            both_inside.wait()
        seen[name] = [entry.name for entry in registered.models]

    threads = [threading.Thread(target=load, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"a": ["a"], "b": ["b"]}
