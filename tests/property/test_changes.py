"""Whatever happens to a repository, what is decided leads to what is there."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hloserve.bundle.fingerprint import Fingerprint
from hloserve.models.changes import Applied, decide, observe
from hloserve.models.repository_look import Found

NAMES = ("a", "b", "c", "d", "e")

repositories = st.dictionaries(
    st.sampled_from(NAMES), st.tuples(st.integers(1, 5), st.integers(1, 2)), max_size=5
)
"""Name to the inode of the directory and the version of its content."""


def _found(name: str, state: tuple[int, int]) -> Found:
    return Found(Path(name), Fingerprint((0, state[0]), (("a", 0, state[1], 0, 0),)))


@given(served=repositories, there=repositories, broken=st.sets(st.sampled_from(NAMES)))
def test_a_round_leads_to_what_is_there(
    served: dict[str, tuple[int, int]], there: dict[str, tuple[int, int]], broken: set[str]
) -> None:
    """Every name serves its own bundle, nothing is loaded that a leaving name has compiled."""
    applied = {n: Applied(_found(n, s), n not in broken) for n, s in served.items()}
    seen = {name: _found(name, state) for name, state in there.items()}
    sightings = observe({}, seen, applied, now_ns=0)

    changes = decide(applied, sightings, set(sightings), set(sightings))

    after = {n: served[n] for n in served if n not in changes.remove}
    after |= {new: served[old] for new, old in changes.adopt.items()}
    after |= {name: there[name] for name in changes.load}
    assert after == there
    assert not changes.adopt.keys() & changes.load.keys()
    assert len(set(changes.adopt.values())) == len(changes.adopt)
    assert all(applied[old].is_loaded for old in changes.adopt.values())
    for name in changes.load:
        for old, state in served.items():
            left = there.get(old, (0, 0))[0] != state[0]
            if state == there[name] and left and old not in broken:
                # Only because another name has taken that model over.
                assert state in [served[source] for source in changes.adopt.values()]


@given(served=repositories, there=repositories, waiting=st.sets(st.sampled_from(NAMES)))
def test_what_has_not_settled_is_left_alone(
    served: dict[str, tuple[int, int]], there: dict[str, tuple[int, int]], waiting: set[str]
) -> None:
    """Neither as a target nor as a source is an unsettled name touched."""
    applied = {name: Applied(_found(name, state), True) for name, state in served.items()}
    seen = {name: _found(name, state) for name, state in there.items()}
    sightings = observe({}, seen, applied, now_ns=0)

    settled = set(sightings) - waiting
    changes = decide(applied, sightings, settled, settled)

    touched = {*changes.adopt, *changes.adopt.values(), *changes.load, *changes.remove}
    assert not touched & waiting
