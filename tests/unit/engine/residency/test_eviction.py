"""Who goes to make room."""

import pytest

from hloserve.engine.residency.eviction import Usage


def _usage(**sizes: int) -> Usage[str]:
    usage: Usage[str] = Usage()
    for name, size in sizes.items():
        usage.add(name, size)
    return usage


def test_least_recently_used_of_equals_goes_first() -> None:
    """With one use each and equal sizes, the oldest goes."""
    usage = _usage(a=10, b=10, c=10)
    for name in "bca":
        usage.use(name)

    assert ["b"] == usage.pick_victims("abc", 10)
    assert ["b", "c"] == usage.pick_victims("abc", 11)


def test_often_used_stays_before_just_used() -> None:
    """A model in constant use is not given up for one that was used once."""
    usage = _usage(often=10, once=10)
    for _ in range(20):
        usage.use("often")
    usage.use("once")

    assert ["once"] == usage.pick_victims(["often", "once"], 10)


def test_what_was_popular_is_forgotten() -> None:
    """A model that nobody uses any more goes, however often it was used."""
    usage = _usage(was=10, now=10)
    for _ in range(100):
        usage.use("was")
    for _ in range(500):
        usage.use("now")

    assert ["was"] == usage.pick_victims(["was", "now"], 10)


def test_large_ones_that_are_as_dear_per_byte_do_not_lose() -> None:
    """A load of a large model takes longer: per byte it is worth as much."""
    usage: Usage[str] = Usage()
    usage.add("large", 1000, load_s=1.0)
    usage.add("small", 10, load_s=0.01)
    for name in ("large", "small"):
        usage.use(name)

    assert ["large"] == usage.pick_victims(["large", "small"], 10)


def test_dear_loads_are_avoided() -> None:
    """Of two models of one size, the one that loads quicker goes."""
    usage = _usage(slow=10, quick=10)
    for _ in range(20):
        usage.learn_load("slow", 5.0)
        usage.learn_load("quick", 0.001)
    for name in ("quick", "slow", "quick"):
        usage.use(name)

    assert ["quick"] == usage.pick_victims(["slow", "quick"], 10)


def test_models_that_requests_wait_for_go_last() -> None:
    """Evicting them would only have them loaded again at once."""
    usage = _usage(a=10, b=10)
    for _ in range(50):
        usage.use("b")

    assert ["b"] == usage.pick_victims("ab", 10, lambda name: name == "a")


def test_nobody_goes_needlessly() -> None:
    """When the last one makes enough room alone, those before it stay."""
    usage = _usage(small=10, large=100)
    for _ in range(9):
        usage.use("large")

    assert ["large"] == usage.pick_victims(["small", "large"], 100)


@pytest.mark.parametrize("needed", [0, -5])
def test_nothing_needed_is_nobody(needed: int) -> None:
    """Where there is room, everybody stays."""
    assert [] == _usage(a=1).pick_victims(["a"], needed)


def test_all_go_when_even_they_are_too_small() -> None:
    """The caller sees by the sizes that it was not enough."""
    usage = _usage(a=1, b=1)

    assert {"a", "b"} == set(usage.pick_victims("ab", 100))


def test_models_without_weights_are_never_chosen() -> None:
    """Their going would free nothing."""
    assert ["a"] == _usage(nothing=0, a=1).pick_victims(["nothing", "a"], 5)
