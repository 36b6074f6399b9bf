"""Loading and unloading because a client asks for it: the model repository extension of V2.

What lives here: what is allowed in which mode, and what a request may carry. What does not: doing
it (`hloserve.server.repository`) and bytes (the services of the transports). Loop thread.

Source: Triton's model repository extension; docs/protocol.md says where ours differs.
"""

from collections.abc import Mapping
from pathlib import Path

from hloserve.config.schema import WorkerConfig
from hloserve.core.errors import BadRequest, NotPossibleNow
from hloserve.core.requests import Parameter
from hloserve.models.repository_look import Found, look_at
from hloserve.models.task_threads import TaskThreads
from hloserve.server.repository import Repository

__all__ = ["RepositoryControl"]

_UNLOAD_DEPENDENTS = "unload_dependents"


class RepositoryControl:
    """Answers load and unload requests.

    Args:
        repository: carries them out.
        roots: the model repositories, absolute.
        config: whose mode and names apply.
        threads: look at the file system.
    """

    def __init__(
        self,
        repository: Repository,
        roots: list[Path],
        config: WorkerConfig,
        threads: TaskThreads,
    ) -> None:
        self._repository = repository
        self._roots = roots
        self._include = config.models_include
        self._mode = config.model_control_mode
        self._threads = threads

    async def load(self, name: str, parameters: Mapping[str, Parameter]) -> None:
        """Load a bundle, or load it again when it has changed; returns when it serves.

        Raises:
            NotPossibleNow: the mode does not allow it, or the bundle cannot be loaded.
            ModelNotFound: there is no such bundle.
            BadRequest: a parameter that is not supported.
        """
        self._check_mode("load")
        for key in parameters:
            raise BadRequest(
                f"load parameter {key!r} is not supported: a bundle is loaded as it is on disk;"
                " change the bundle, and load it again"
            )
        found = await self._threads.run(self._find, name)
        await self._repository.load(name, found)

    async def unload(self, name: str, parameters: Mapping[str, Parameter]) -> None:
        """Unload a model; what it was asked before is still answered.

        With ``unload_dependents``, the models that only it calls go with it, unless clients call
        them as well (``metas.exposed_models``); only meta models call others.

        Raises:
            NotPossibleNow: the mode does not allow it, or the model is being loaded.
            ModelNotFound: there is no such model.
            BadRequest: a parameter that is not supported.
        """
        self._check_mode("unload")
        for key, value in parameters.items():
            if key != _UNLOAD_DEPENDENTS:
                raise BadRequest(
                    f"unload parameter {key!r} is not supported; there is {_UNLOAD_DEPENDENTS!r}"
                )
            if not isinstance(value, bool):
                raise BadRequest(f"unload parameter {key!r} is {value!r}, expected true or false")
        with_dependents = parameters.get(_UNLOAD_DEPENDENTS) is True
        self._repository.unload(name, with_dependents=with_dependents)

    def _check_mode(self, verb: str) -> None:
        if self._mode != "explicit":
            raise NotPossibleNow(
                f"models are not {verb}ed on request in mode {self._mode!r}; set"
                " model_control_mode to 'explicit'"
            )

    def _find(self, name: str) -> Found | None:
        if self._include and name not in self._include:
            return None
        return look_at(self._roots, [name]).bundles.get(name)
