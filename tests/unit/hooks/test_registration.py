"""Registering hooks from a bundle's `model.py`."""

import threading

import pytest

import hloserve
from hloserve.core.errors import HookProblem
from hloserve.hooks.registration import (
    collect_registrations,
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
