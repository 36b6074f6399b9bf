"""What loads, renames and removals mean for the meta models that call those models.

What lives here: which meta models are refused, and when to look at them again. What does not: the
rules (`hloserve.models.meta_models`) and doing it (`hloserve.server.repository`). Loop thread.
"""

from collections.abc import Iterable, Mapping

from hloserve.core.errors import ManifestProblem
from hloserve.models.meta_models import callers_of, check_calls, missing_calls
from hloserve.models.model import Model
from hloserve.models.registry import Registry
from hloserve.server.repository_events import RepositoryEvents

__all__ = ["MetaRelations"]


class MetaRelations:
    """Watches who calls whom.

    Args:
        registry: the models that serve.
        events: hears of calls that lead nowhere.
    """

    def __init__(self, registry: Registry, events: RepositoryEvents) -> None:
        self._registry = registry
        self._events = events
        self._refused: dict[str, tuple[str, ...]] = {}

    def refusal_of(self, model: Model) -> ManifestProblem | None:
        """Why a model that was loaded must not serve: it is a meta model and calls one."""
        self._refused.pop(model.name, None)
        if not model.is_meta:
            return None
        try:
            check_calls(model, self._serving())
        except ManifestProblem as problem:
            self._refused[model.name] = model.manifest.calls
            return problem
        return None

    def misled_by(self, model: Model) -> dict[str, ManifestProblem]:
        """The meta models that may not serve any more, because a model that they call is one now.

        Args:
            model: serves since now.
        """
        if not model.is_meta:
            return {}
        refusals = {
            caller.name: self.refusal_of(caller)
            for caller in callers_of(model.name, self._registry.metas())
            if caller.device is not model.device
        }
        return {name: problem for name, problem in refusals.items() if problem is not None}

    def to_try_again(self, name: str) -> list[str]:
        """The refused meta models that call a name whose model has changed or gone."""
        return [refused for refused, calls in self._refused.items() if name in calls]

    def forget(self, name: str) -> None:
        """Nothing of that name is known any more."""
        self._refused.pop(name, None)

    def tell_missing(self, metas: Iterable[Model]) -> None:
        """Tell of meta models that call what does not serve."""
        serving = self._serving()
        for meta in metas:
            for name in missing_calls(meta, serving):
                self._events.sub_model_missing(meta.name, name, "it does not serve")

    def tell_renamed(self, owners: Mapping[str, str]) -> None:
        """Tell of meta models that call names which models have left; new name to old name."""
        for new, old in owners.items():
            if old not in owners:
                self._tell_callers(old, f"it was renamed to {new!r}")

    def tell_removed(self, name: str, reason: str) -> None:
        """Tell of meta models that call a name which does not serve any more."""
        self._tell_callers(name, reason)

    def _tell_callers(self, name: str, reason: str) -> None:
        for meta in callers_of(name, self._registry.metas()):
            self._events.sub_model_missing(meta.name, name, reason)

    def _serving(self) -> dict[str, Model]:
        return {model.name: model for model in self._registry.models()}
