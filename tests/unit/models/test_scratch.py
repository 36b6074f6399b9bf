"""The block that meta models cut their buffers from."""

import threading
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from hloserve.core.tensors import Array
from hloserve.models.scratch import (
    Reservation,
    ScratchPool,
    Wanted,
    cut_arrays,
    fresh_memory,
    needed_bytes,
)

SLOT = 1024


def _pool(slots: int = 4) -> ScratchPool:
    return ScratchPool(slots * SLOT, slots)


def _take(pool: ScratchPool, slots: int = 1) -> Reservation:
    reservation = pool.reserve(slots * SLOT)
    assert reservation.wait(0)
    return reservation


def _address(memory: Array) -> int:
    return int(memory.ctypes.data)


def test_block_is_cut_into_equal_slots() -> None:
    """4,096 bytes in four slots are 1,024 each, and two requests get different ones."""
    pool = ScratchPool(4096, 4)
    first, second = _take(pool), _take(pool)

    assert 1024 == pool.slot_bytes
    assert 1024 == len(first.memory) == len(second.memory)
    assert not np.may_share_memory(first.memory, second.memory)
    assert 2048 == pool.used_bytes


def test_request_gets_slots_in_a_row_and_gives_all_back() -> None:
    """Three slots are one piece of memory; another request's lies outside."""
    pool = _pool()
    three, one = _take(pool, 3), _take(pool)

    assert 3 * SLOT == len(three.memory)
    assert not np.may_share_memory(three.memory, one.memory)

    three.release()
    one.release()
    assert 0 == pool.used_bytes
    assert 4 * SLOT == len(_take(pool, 4).memory)


@pytest.mark.parametrize("nbytes", [0, -1, 4 * SLOT + 1])
def test_more_than_the_block_is_refused_at_once(nbytes: int) -> None:
    """So is nothing at all; neither leaves anything behind."""
    pool = _pool()

    with pytest.raises(ValueError, match=r"metas\.scratch_bytes"):
        pool.reserve(nbytes)

    assert 0 == pool.waiting
    assert 4 * SLOT == len(_take(pool, 4).memory)


def test_memory_is_given_back_once() -> None:
    """Giving it back twice would free somebody else's."""
    held = _take(_pool())
    held.release()

    with pytest.raises(RuntimeError, match="given back twice"):
        held.release()


def test_who_needs_a_row_of_slots_waits_until_they_are_adjacent() -> None:
    """Slots 2 and 4 are free, but not in a row; when 3 comes back they are."""
    pool = _pool()
    _one, two, three, four = (_take(pool) for _ in range(4))
    two.release()
    four.release()
    waiting = pool.reserve(2 * SLOT)
    assert 0 == len(waiting.memory)

    three.release()

    assert waiting.wait(0)
    assert 2 * SLOT == len(waiting.memory)


def test_who_waits_for_the_whole_block_is_not_passed_for_ever() -> None:
    """Those who came later wait behind it, although single slots are free."""
    pool = _pool()
    held = [_take(pool) for _ in range(4)]
    whole = pool.reserve(4 * SLOT)
    later = [pool.reserve(SLOT) for _ in range(2)]

    for each in held[:3]:
        each.release()
    assert [0, 0, 0] == [len(r.memory) for r in (whole, *later)]
    held[3].release()
    assert whole.wait(0)
    assert [0, 0] == [len(r.memory) for r in later]

    whole.release()
    assert all(r.wait(0) for r in later)


def test_arrays_may_lie_across_slots() -> None:
    """Slots are a unit of counting: 700 bytes of two slots of 512 are one array."""
    pool = ScratchPool(1024, 2)
    held = pool.reserve(700)
    assert held.wait(0)

    (array,) = cut_arrays(held.memory, [((700,), np.dtype(np.uint8))])

    assert 700 == array.nbytes
    assert 1024 == pool.used_bytes


def test_arrays_follow_each_other_aligned_and_within_bounds() -> None:
    """A second array begins at the next multiple of 64; one that does not fit is refused."""
    wanted: list[Wanted] = [((5, 5), np.dtype(np.float32)), ((3,), np.dtype(np.int64))]
    memory = fresh_memory(256)

    first, second = cut_arrays(memory, wanted)

    assert 128 + 64 == needed_bytes(wanted)
    assert [0, 128] == [_address(a) - _address(memory) for a in (first, second)]
    assert 0 == _address(first) % 64
    assert wanted == [(array.shape, array.dtype) for array in (first, second)]
    with pytest.raises(ValueError, match="do not fit 64 bytes"):
        cut_arrays(memory[:64], wanted)


def test_who_gives_up_leaves_the_queue() -> None:
    """After its time, or when it is told that nobody needs the memory any more."""
    pool = _pool(1)
    held = _take(pool)
    late, unwanted, patient = (pool.reserve(SLOT) for _ in range(3))

    assert not late.wait(0.001)
    unwanted.cancel()
    assert not unwanted.wait(None)
    assert 1 == pool.waiting

    held.release()
    assert patient.wait(None)


def test_giving_up_does_not_lose_what_was_granted() -> None:
    """A cancellation that comes too late leaves the memory held, to be given back."""
    pool = _pool(1)
    held = pool.reserve(SLOT)

    held.cancel()

    assert held.wait(0)
    held.release()
    assert 0 == pool.used_bytes


def test_who_leaves_the_front_lets_the_others_through() -> None:
    """A small request behind a large one that gave up is served at once."""
    pool = _pool(2)
    _take(pool)
    large, small = pool.reserve(2 * SLOT), pool.reserve(SLOT)

    large.cancel()

    assert small.wait(0)


def test_waiting_thread_is_woken_by_whoever_gives_memory_back() -> None:
    """It blocks until then, and holds the memory when it goes on."""
    pool = _pool(1)
    held = _take(pool)
    waiting = pool.reserve(SLOT)
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(waiting.wait(10)))
    thread.start()

    held.release()
    thread.join()

    assert [True] == outcome


def test_many_threads_never_hold_the_same_bytes() -> None:
    """Each fills its memory with its own number, and finds nothing else in it."""
    pool = _pool(8)
    failures: list[str] = []

    def work(number: int) -> None:
        random = Random(number)
        for _ in range(200):
            held = pool.reserve(random.randint(1, 8) * SLOT)
            if not held.wait(10):
                failures.append("no memory")
                return
            held.memory[:] = number
            if (held.memory != number).any():
                failures.append(f"somebody else wrote into the memory of {number}")
            held.release()

    _run(work, 6)

    assert [] == failures
    assert 0 == pool.used_bytes == pool.waiting


def _run(work: Callable[[int], None], threads: int) -> None:
    started = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
