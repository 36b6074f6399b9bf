"""What to do about a repository that changed: pure decisions over looks.

What lives here: when a difference has settled, and whether it is a load, a rename or a removal.
What does not: looking (`hloserve.models.repository_look`) and doing it
(`hloserve.server.repository`).

Rules.
1. A difference counts once it was seen in two looks in a row and has not changed for a while: who
   copies a bundle is given the time to finish. A bundle that is gone is given more of it, because
   who redeploys it by two renames may be slow, and its name serves meanwhile.
2. A bundle that shows up under a name while another name lost exactly that directory was renamed:
   its model is adopted, whatever is compiled stays compiled. All renames of a round are one step,
   so chains and swaps need no order.
3. A name that is there before and after a round is never without a model in between.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hloserve.bundle.fingerprint import Fingerprint
from hloserve.models.repository_look import Found

__all__ = ["Applied", "Changes", "Sighting", "decide", "observe", "settled", "wait_s"]


@dataclass(frozen=True, slots=True)
class Applied:
    """What the server made of a bundle.

    Attributes:
        found: the state it was loaded from, or tried.
        is_loaded: what serves under the name was loaded from exactly this state.
    """

    found: Found
    is_loaded: bool


@dataclass(frozen=True, slots=True)
class Sighting:
    """A difference between what was seen and what is served.

    Attributes:
        found: what was seen; None when the bundle is gone.
        since_ns: instant of the first look that saw exactly this.
        looks: how many looks in a row saw it.
    """

    found: Found | None
    since_ns: int
    looks: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do, all decided on one state.

    Attributes:
        adopt: new name to the name whose model it takes over. In one step, on the state before.
        load: bundles to load, beside what serves under their names until they are ready.
        remove: names that are gone, after `adopt`.
    """

    adopt: Mapping[str, str] = field(default_factory=dict)
    load: Mapping[str, Found] = field(default_factory=dict)
    remove: tuple[str, ...] = ()


def observe(
    before: Mapping[str, Sighting],
    seen: Mapping[str, Found],
    applied: Mapping[str, Applied],
    now_ns: int,
) -> dict[str, Sighting]:
    """Note what differs from what is served, and since when.

    Args:
        before: the result for the look before.
        seen: the bundles of this look.
        applied: what is served, or failed to load.
        now_ns: the instant of this look.
    """
    differing = {}
    for name in seen.keys() | applied.keys():
        found = seen.get(name)
        known = applied.get(name)
        if found == (None if known is None else known.found):
            continue
        last = before.get(name)
        if last is not None and last.found == found:
            differing[name] = Sighting(found, last.since_ns, last.looks + 1)
        else:
            differing[name] = Sighting(found, now_ns, 1)
    return differing


def settled(sightings: Mapping[str, Sighting], now_ns: int, quiet_ns: int) -> set[str]:
    """The names whose difference was seen twice, and has not changed for `quiet_ns`."""
    return {
        name
        for name, sighting in sightings.items()
        if sighting.looks > 1 and now_ns - sighting.since_ns >= quiet_ns
    }


def wait_s(
    unsettled: Iterable[Sighting], now_ns: int, *, quiet_ns: int, gone_ns: int
) -> float | None:
    """Seconds until the next difference settles; None when nothing waits for a look.

    Args:
        unsettled: the differences that something may still be done about.
        now_ns: the present instant.
        quiet_ns: how long a bundle must have been left alone.
        gone_ns: how long one must have been gone.
    """
    waits_ns = []
    for sighting in unsettled:
        age_ns = now_ns - sighting.since_ns
        until_ns = quiet_ns if sighting.found or age_ns < quiet_ns else gone_ns
        waits_ns.append(max(0, until_ns - age_ns))
    return min(waits_ns) * 1e-9 if waits_ns else None


def decide(
    applied: Mapping[str, Applied],
    sightings: Mapping[str, Sighting],
    ready: set[str],
    removable: set[str],
) -> Changes:
    """Decide what to do about the differences that have settled.

    Args:
        applied: what is served, or failed to load.
        sightings: all differences, settled or not.
        ready: the names whose difference has settled.
        removable: those whose bundle, if it is gone, has been gone for long enough.
    """
    owners = _leaving_owners(applied, sightings)
    adopt: dict[str, str] = {}
    load: dict[str, Found] = {}
    for name in sorted(ready):
        found = sightings[name].found
        if found is None:
            continue
        owner = owners.get(found.fingerprint)
        if owner is None or found.problem or owner in adopt.values():
            load[name] = found
        elif owner in ready:
            adopt[name] = owner
        # else the owner's own change has not settled: wait for it, or it would be loaded twice
    gone = tuple(name for name in sorted(removable) if sightings[name].found is None)
    return Changes(adopt, load, gone)


def _leaving_owners(
    applied: Mapping[str, Applied], sightings: Mapping[str, Sighting]
) -> dict[Fingerprint, str]:
    """Who serves a state of a directory that it has lost: the sources of renames."""
    owners = {}
    for name in sorted(sightings):
        known = applied.get(name)
        if known is None or not known.is_loaded:
            continue
        now = sightings[name].found
        identity = known.found.fingerprint.identity
        if now is None or now.fingerprint.identity != identity:
            owners[known.found.fingerprint] = name
    return owners
