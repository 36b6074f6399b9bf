"""Ways to choose whose weights go: against each other, and against what is in textbooks."""

from random import Random

import pytest

from benchmarks.sim.budget import LOAD_TIME, model_bytes
from benchmarks.sim.memory import Foreseeing, LoadTime, Lru, Memory, Ours, replay
from benchmarks.sim.traffic import zipf_draws

_TEXTBOOK = list("123412512345")


@pytest.mark.parametrize(("way", "faults"), [("lru", 10), ("future", 7)])
def test_faults_are_those_of_the_textbook(way: str, faults: int) -> None:
    """With room for three, this sequence has ten faults with LRU and seven with foresight.

    Source: Belady's sequence, as in Silberschatz, "Operating System Concepts".
    """
    sizes = dict.fromkeys("12345", 1)
    memory = Lru(sizes, 3) if way == "lru" else Foreseeing(sizes, 3, _TEXTBOOK)

    done = replay(memory, _TEXTBOOK, sizes, LoadTime(1.0, 1e12))

    assert faults == pytest.approx(done.load_s)
    assert (12 - faults) / 12 == pytest.approx(done.hit_fraction)


@pytest.mark.parametrize("law", ["equal", "mixed"])
@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_ours_hits_more_often_than_lru(law: str, exponent: float, seed: int) -> None:
    """Fifty models of five times the budget: more hits than LRU, and less time for loads.

    Source: issue "Must show".
    """
    chance = Random(seed)
    sizes = model_bytes(chance, law)
    draws = zipf_draws(chance, list(sizes), exponent)
    uses = [next(draws) for _ in range(1500)]
    budget_bytes = sum(sizes.values()) // 5

    lru, ours, best = (
        replay(memory, uses, sizes, LOAD_TIME)
        for memory in (
            Lru(sizes, budget_bytes),
            Ours(sizes, budget_bytes, LOAD_TIME),
            Foreseeing(sizes, budget_bytes, uses),
        )
    )

    assert ours.hit_fraction > lru.hit_fraction
    assert ours.load_s < lru.load_s
    if law == "equal":
        assert best.hit_fraction >= ours.hit_fraction


def test_the_budget_is_kept() -> None:
    """After every use, what is there is within the budget, and what was used is there."""
    chance = Random(3)
    sizes = {name: chance.randint(1, 40) for name in "abcdefgh"}
    memory = Ours(sizes, 60, LoadTime(0.001, 1e9))

    for _ in range(300):
        name = chance.choice("abcdefgh")
        memory.use(name)
        if not memory.is_resident(name):
            assert memory.bring(name)
        assert memory.is_resident(name)
        assert memory.resident_bytes <= 60


def test_awaited_weights_stay() -> None:
    """Who is asked for goes after who is not, however seldom that was."""
    memory = Ours(dict.fromkeys("abc", 10), 20, LoadTime(0.001, 1e9))
    memory.is_awaited = lambda name: name == "a"
    for name in "abbb":
        memory.use(name)
        if not memory.is_resident(name):
            memory.bring(name)

    memory.bring("c")

    assert memory.is_resident("a")
    assert not memory.is_resident("b")


def test_what_is_too_large_is_alone() -> None:
    """Weights that are larger than the budget are loaded all the same, and nothing beside them."""
    sizes = {"small": 5, "large": 50}
    memories: list[Memory] = [Lru(sizes, 20), Ours(sizes, 20, LoadTime(0.001, 1e9))]

    for memory in memories:
        memory.bring("small")

        assert not memory.bring("large", kept="small")
        assert memory.bring("large")
        assert memory.is_resident("large")
        assert not memory.is_resident("small")
