"""What the server says about itself and its models."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server_services import Services, running_services

from hloserve import __version__
from hloserve.core.errors import ModelNotFound, ModelNotReady
from hloserve.core.requests import ModelState


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """One model that serves."""
    with running_services(tmp_path) as made:
        yield made


def test_server_is_ready_until_it_leaves(services: Services) -> None:
    """A draining server is not ready, and neither are its models."""
    catalog = services.catalog
    assert (catalog.is_ready, catalog.is_model_ready("scale", "")) == (True, True)

    catalog.is_draining = True

    assert (catalog.is_ready, catalog.is_model_ready("scale", "")) == (False, False)


@pytest.mark.parametrize("version", ["", "1"])
def test_model_is_described(services: Services, version: str) -> None:
    """Under no version and under "1", which clients of versioned repositories ask for."""
    metadata = services.catalog.model_metadata("scale", version)

    assert ("scale", [(-1, 4)]) == (metadata.name, [t.shape for t in metadata.inputs])
    assert services.model.inputs == services.catalog.inputs("scale", "")


def test_version_that_cannot_exist_is_not_found(services: Services) -> None:
    """Bundles are not versioned."""
    with pytest.raises(ModelNotFound):
        services.catalog.model_metadata("scale", "2")
    with pytest.raises(ModelNotFound):
        services.catalog.is_model_ready("scale", "2")


def test_model_that_is_not_there_yet_is_known_but_not_ready(services: Services) -> None:
    """Its metadata cannot be told; a name that was never seen is not found."""
    services.registry.set_loading("later")

    assert services.catalog.is_model_ready("later", "") is False
    with pytest.raises(ModelNotReady):
        services.catalog.model_metadata("later", "")
    with pytest.raises(ModelNotFound):
        services.catalog.is_model_ready("never", "")


def test_index_lists_all_or_those_that_serve(services: Services) -> None:
    """Sorted by name, with the reason of each that does not serve."""
    services.registry.set_failed("broken", "no weights")

    entries = services.catalog.index()

    assert [("broken", ModelState.FAILED, "no weights"), ("scale", ModelState.READY, "")] == [
        (entry.name, entry.state, entry.reason) for entry in entries
    ]
    assert ["scale"] == [entry.name for entry in services.catalog.index(ready_only=True)]


def test_server_tells_its_version(services: Services) -> None:
    """Name, version and extensions."""
    metadata = services.catalog.server_metadata()

    assert ("hloserve", __version__) == (metadata.name, metadata.version)
