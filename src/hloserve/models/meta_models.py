"""Meta models among the others: which call which, and what follows from it.

What lives here: pure decisions over the models that serve. What does not: carrying them out
(`hloserve.server.repository`, `hloserve.server.catalog`) and the calls themselves
(`hloserve.server.metas`). Any thread that may read the models.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hloserve.bundle.rules import refused_call
from hloserve.core.errors import ManifestProblem
from hloserve.core.requests import ModelIndexEntry, ModelState
from hloserve.models.model import Model

__all__ = [
    "callers_of",
    "check_calls",
    "dependents_of",
    "hidden_names",
    "missing_calls",
    "with_sub_models",
]


def check_calls(meta: Model, serving: Mapping[str, Model]) -> None:
    """Refuse a meta model that calls meta models: a call would wait for a turn that it holds.

    Args:
        meta: the one that was loaded.
        serving: the models that serve, by name.

    Raises:
        ManifestProblem: a finding per such call.
    """
    called = [name for name in meta.manifest.calls if name in serving and serving[name].is_meta]
    if called:
        raise ManifestProblem(meta.bundle, [refused_call(name) for name in called])


def callers_of(name: str, metas: Iterable[Model]) -> list[Model]:
    """The meta models that may call a model."""
    return [meta for meta in metas if name in meta.manifest.calls]


def missing_calls(meta: Model, serving: Collection[str]) -> list[str]:
    """The models that a meta model may call and that do not serve."""
    return [name for name in meta.manifest.calls if name not in serving]


def hidden_names(metas: Iterable[Model], exposed: Collection[str]) -> set[str]:
    """The models that the repository index leaves out: those that a meta model calls.

    Args:
        metas: the meta models that serve.
        exposed: names that stay; ``*`` for all.
    """
    if "*" in exposed:
        return set()
    return {name for meta in metas for name in meta.manifest.calls} - set(exposed)


def dependents_of(meta: Model, metas: Iterable[Model], exposed: Collection[str]) -> list[str]:
    """The models that serve nobody but a meta model: neither other ones nor clients."""
    hidden = hidden_names([meta], exposed)
    others = {name for other in metas if other is not meta for name in other.manifest.calls}
    return [name for name in meta.manifest.calls if name in hidden - others]


def with_sub_models(
    entries: Sequence[ModelIndexEntry], metas: Iterable[Model]
) -> list[ModelIndexEntry]:
    """Let the index say of a meta model what keeps its sub-models from answering.

    Args:
        entries: what is known of each name by itself.
        metas: the meta models that serve.
    """
    calls = {meta.name: meta.manifest.calls for meta in metas}
    if not calls:
        return list(entries)
    by_name = {entry.name: entry for entry in entries}
    return [
        _with_calls(entry, calls[entry.name], by_name) if entry.name in calls else entry
        for entry in entries
    ]


def _with_calls(
    entry: ModelIndexEntry, calls: Sequence[str], by_name: Mapping[str, ModelIndexEntry]
) -> ModelIndexEntry:
    reasons, states = [], set()
    for name in calls:
        sub = by_name.get(name)
        if sub is not None and sub.state is ModelState.READY:
            continue
        states.add(ModelState.FAILED if sub is None else sub.state)
        reasons.append(f"its sub-model {name!r} {_why(sub)}")
    if not reasons:
        return entry
    state = ModelState.LOADING if states == {ModelState.LOADING} else ModelState.FAILED
    return replace(entry, state=state, reason="; ".join(reasons))


def _why(sub: ModelIndexEntry | None) -> str:
    if sub is None:
        return "is not in the repository"
    if sub.state is ModelState.LOADING:
        return "is loading"
    return f"does not serve: {sub.reason}"
