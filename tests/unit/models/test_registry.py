"""Where each model stands, and when the server is ready."""

from pathlib import Path

import pytest
from support.models_bundles import write_fake

from hloserve.core.errors import ModelNotFound, ModelNotReady
from hloserve.core.requests import ModelState
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.loader import load_model
from hloserve.models.model import Model
from hloserve.models.registry import Registry


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A model called m."""
    return load_model(write_fake(tmp_path, "m"), FakeBackend())


def test_unknown_name_is_not_found() -> None:
    """A name that is in no repository."""
    with pytest.raises(ModelNotFound):
        Registry().get("m")


def test_loading_model_is_not_ready() -> None:
    """It is known, and worth another try."""
    registry = Registry()
    registry.set_loading("m")
    assert registry.knows("m")
    with pytest.raises(ModelNotReady, match="loading"):
        registry.get("m")


def test_failed_model_says_why() -> None:
    """A caller learns what the operator learns."""
    registry = Registry()
    registry.set_failed("m", "model.b8.mlir is missing")
    with pytest.raises(ModelNotReady, match=r"model\.b8\.mlir is missing"):
        registry.get("m")


def test_ready_model_is_given(model: Model) -> None:
    """The same object each time."""
    registry = Registry()
    registry.set_loading("m")
    registry.set_ready(model)
    assert registry.get("m") is model
    assert registry.models() == [model]


def test_index_is_sorted(model: Model) -> None:
    """State and reason of every bundle, by name."""
    registry = Registry()
    registry.set_failed("z", "broken")
    registry.set_ready(model)
    registry.set_loading("a")
    assert [(entry.name, entry.state, entry.reason) for entry in registry.index()] == [
        ("a", ModelState.LOADING, "loading"),
        ("m", ModelState.READY, ""),
        ("z", ModelState.FAILED, "broken"),
    ]


def test_server_is_ready_once_the_start_up_set_is_decided(model: Model) -> None:
    """Not before all are decided, and a broken bundle does not stop the others."""
    registry = Registry()
    assert not registry.is_ready
    registry.set_loading("m")
    registry.set_loading("broken")
    registry.set_ready(model)
    assert not registry.is_ready
    registry.set_failed("broken", "no program")
    assert registry.is_ready


def test_server_without_any_model_is_not_ready() -> None:
    """An empty repository, or one of broken bundles, must not be promoted."""
    registry = Registry()
    registry.set_loading("broken")
    registry.set_failed("broken", "no program")
    assert not registry.is_ready


def test_later_load_keeps_the_server_ready(model: Model) -> None:
    """A bundle that appears while the server runs changes nothing for the others."""
    registry = Registry()
    registry.set_ready(model)
    registry.set_loading("late")
    assert registry.is_ready


def test_removed_model_is_gone(model: Model) -> None:
    """Its memory is the caller's to free."""
    registry = Registry()
    registry.set_ready(model)
    assert registry.remove("m") is model
    assert registry.remove("m") is None
    assert not registry.knows("m")
    assert not registry.is_ready


def test_name_that_may_still_turn_up_is_not_called_unknown() -> None:
    """Before the repository was looked through, nobody can say that a model is not there."""
    registry = Registry()
    registry.is_discovering = True
    with pytest.raises(ModelNotReady, match="starting"):
        registry.get("m")
    registry.is_discovering = False
    with pytest.raises(ModelNotFound):
        registry.get("m")
