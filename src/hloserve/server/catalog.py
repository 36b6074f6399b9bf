"""What the server says about itself and its models, for every transport.

What lives here: live, ready, metadata, index, as values of `core.requests`. What does not: how a
transport encodes them, and how models come and go (`models.registry`). Loop thread only.
"""

from hloserve import __version__
from hloserve.core.errors import ModelNotFound
from hloserve.core.requests import ModelIndexEntry, ModelMetadata, ModelState, ServerMetadata
from hloserve.core.tensors import TensorSpec
from hloserve.models.meta_models import hidden_names, with_sub_models
from hloserve.models.registry import Registry
from hloserve.server.inference import check_version

__all__ = ["EXTENSIONS", "Catalog"]

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "schedule_policy",
    "statistics",
    "trace",
)
"""Extensions of the V2 protocol that every server has, by their published names."""


class Catalog:
    """Answers the questions of the V2 protocol that run no model.

    Args:
        more_extensions: those of the V2 protocol that depend on settings.
        exposed_models: models that the index lists although meta models call them; ``*`` for all.

    Attributes:
        is_draining: the server leaves, and is not ready.
        is_live: the device can be used; without it the server ends, and is not ready either.
    """

    def __init__(
        self,
        registry: Registry,
        more_extensions: tuple[str, ...] = (),
        exposed_models: tuple[str, ...] = (),
    ) -> None:
        self._registry = registry
        self._exposed_models = exposed_models
        self._extensions = tuple(sorted((*EXTENSIONS, *more_extensions)))
        self.is_draining = False
        self.is_live = True

    @property
    def is_ready(self) -> bool:
        """True when the start-up set is decided, a model serves, and the server is not leaving."""
        return not self._is_leaving and self._registry.is_ready

    @property
    def _is_leaving(self) -> bool:
        return self.is_draining or not self.is_live

    def server_metadata(self) -> ServerMetadata:
        """Name, version and extensions."""
        return ServerMetadata("hloserve", __version__, self._extensions)

    def model_metadata(self, name: str, version: str) -> ModelMetadata:
        """Describe a model.

        Raises:
            ModelNotFound, ModelNotReady: it is not there, or not yet.
        """
        check_version(name, version)
        return self._registry.get(name).metadata

    def inputs(self, name: str, version: str) -> tuple[TensorSpec, ...]:
        """The client-facing inputs of a model.

        Raises:
            ModelNotFound, ModelNotReady: it is not there, or not yet.
        """
        check_version(name, version)
        return self._registry.get(name).inputs

    def is_model_ready(self, name: str, version: str) -> bool:
        """True when a request to the model would be served; of a meta model, in any case.

        Raises:
            ModelNotFound: nothing of that name is in the repository.
        """
        check_version(name, version)
        for entry in self._entries():
            if entry.name == name:
                is_ready = entry.state is ModelState.READY and not self._is_leaving
                return is_ready and self._has_weights(name)
        raise ModelNotFound(name)

    def knows(self, name: str) -> bool:
        """True for every model of the repository, in whatever state."""
        return self._registry.knows(name)

    def index(self, *, ready_only: bool = False) -> list[ModelIndexEntry]:
        """List the repository, sorted by name, without the models that only meta models call."""
        hidden = hidden_names(self._registry.metas(), self._exposed_models)
        return [
            entry
            for entry in self._entries()
            if entry.name not in hidden and (not ready_only or entry.state is ModelState.READY)
        ]

    def _has_weights(self, name: str) -> bool:
        """False while a controller keeps weights that a request needs off the device."""
        model = self._registry.get(name)
        calls = model.manifest.calls if model.is_meta else ()
        return all(each.is_servable for each in (model, *map(self._registry.get, calls)))

    def _entries(self) -> list[ModelIndexEntry]:
        return with_sub_models(self._registry.index(), self._registry.metas())
