"""Letting models that belong together change together: a meta model and those that it calls.

What lives here: whose load waits for whose. What does not: loads (`hloserve.server.repository`).
Loop thread.

Rule: a load that has ended waits for those of its group that still run, and not for what serves
already; so a group that is deployed at once is replaced in one step, and a load that fails keeps
nobody waiting.
"""

from collections.abc import Collection, Iterable

from hloserve.core.tickets import Ticket
from hloserve.models.model import Model
from hloserve.models.registry import Registry

__all__ = ["LoadGroups", "group_of"]


class LoadGroups:
    """The loads that wait for others of their group.

    Args:
        registry: knows which meta models serve.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._arrived: dict[str, tuple[Model, Ticket[None]]] = {}

    def arrive(self, model: Model, loading: Collection[str]) -> Ticket[None]:
        """Wait until every model of the group that is loading is there, or has failed.

        Args:
            model: was loaded, and takes the place of one that serves.
            loading: names of all loads that have not been served, this one among them.

        Returns:
            Resolved in one step with those of the rest of the group.
        """
        ticket: Ticket[None] = Ticket()
        self._arrived[model.name] = (model, ticket)
        self.look(loading)
        return ticket

    def look(self, loading: Collection[str]) -> None:
        """Let those go on whose group has no load any more; call it when a load has ended."""
        if not self._arrived:
            return
        missing = set(loading) - self._arrived.keys()
        serving = self._registry.metas()
        metas = [*serving, *(model for model, _ in self._arrived.values())]
        calls = [(meta.name, meta.manifest.calls) for meta in metas if meta.is_meta]
        # What a meta model will call is not known before it is loaded, which takes no time.
        unknown = {meta.name for meta in serving} & missing
        ready = [n for n in self._arrived if not unknown | group_of(n, calls) & missing]
        for _, ticket in [self._arrived.pop(name) for name in ready]:
            ticket.resolve(None)


def group_of(name: str, calls: Iterable[tuple[str, Collection[str]]]) -> set[str]:
    """The models that belong together with one, directly or by way of others; itself among them.

    Args:
        name: of the model.
        calls: meta models, each with the names that it calls.

    Example:
        >>> sorted(group_of("a", [("m", ["a", "b"]), ("n", ["b", "c"]), ("o", ["d"])]))
        ['a', 'b', 'c', 'm', 'n']
    """
    groups = [{meta, *called} for meta, called in calls]
    found = {name}
    while joining := [group for group in groups if group & found and not group <= found]:
        found = found.union(*joining)
    return found
