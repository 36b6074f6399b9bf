"""Bytes in hand: who is let in, who waits, who is refused."""

import pytest

from hloserve.core.errors import BodyTooLarge, Overloaded
from hloserve.wire.bytes_in_hand import Account, BytesInHand, Claim, Growth

SECOND = 1_000_000_000


class Told:
    """Keeps what a claim is told."""

    def __init__(self) -> None:
        self.news: list[bool] = []

    def __call__(self, is_granted: bool) -> None:
        """Take it."""
        self.news.append(is_granted)


def claim(account: Account, nbytes: int) -> tuple[Claim, Told]:
    """Ask for bytes."""
    told = Told()
    return account.claim(nbytes, told), told


def test_what_fits_is_granted_at_once_and_given_back_at_its_end() -> None:
    """Nobody is told of what needs no waiting."""
    budget = BytesInHand(1000)
    first, told = claim(budget.account(), 600)

    assert (600, True, []) == (budget.held_bytes, first.is_granted, told.news)
    first.end()
    first.end()
    assert 0 == budget.held_bytes


def test_what_does_not_fit_waits_in_the_order_of_arrival() -> None:
    """A small one does not pass a large one, which would wait for ever."""
    budget = BytesInHand(1000)
    first, _ = claim(budget.account(), 600)
    large, told_large = claim(budget.account(), 900)
    small, told_small = claim(budget.account(), 50)

    assert (False, False, 600) == (large.is_granted, small.is_granted, budget.held_bytes)
    first.end()
    assert ([True], [True], 950) == (told_large.news, told_small.news, budget.held_bytes)


def test_a_connection_has_one_request_or_half_of_the_budget() -> None:
    """Beyond that it waits for itself, and the others pass it."""
    budget = BytesInHand(1000)
    greedy, modest = budget.account(), budget.account()
    first, _ = claim(greedy, 400)
    second, told = claim(greedy, 200)
    other, _ = claim(modest, 500)

    assert (False, True) == (second.is_granted, other.is_granted)
    first.end()
    assert [True] == told.news
    for each in (second, other):
        each.end()
    assert claim(greedy, 1000)[0].is_granted


def test_what_can_never_be_had_is_refused_with_the_setting() -> None:
    """It need not be tried again."""
    with pytest.raises(BodyTooLarge, match=r"endpoints\.max_request_bytes_in_hand"):
        claim(BytesInHand(1000).account(), 1001)


def test_who_waits_too_long_is_refused() -> None:
    """It is told so once, and holds nothing."""
    budget = BytesInHand(1000)
    first, told_first = claim(budget.account(), 1000)
    first.came(1000)
    first.finish(1000)
    _, told = claim(budget.account(), 10)
    for second in range(1, 7):
        budget.look(second * SECOND)
        assert [] == told.news
    budget.look(7 * SECOND)

    assert ([False], [], 1) == (told.news, told_first.news, budget.refused)
    assert (1000, 0) == (budget.held_bytes, budget.waiting)


def test_uploads_that_hardly_move_make_room_for_those_that_wait() -> None:
    """The largest first, no more than it takes; with nobody waiting they may be slow."""
    budget = BytesInHand(1000)
    slow = [claim(budget.account(), nbytes) for nbytes in (300, 500)]
    quick, told_quick = claim(budget.account(), 200)
    for second in range(1, 6):
        budget.look(second * SECOND)
    assert [] == slow[1][1].news
    _, told = claim(budget.account(), 400)
    for second in range(6, 9):
        quick.came(20 * second)
        budget.look(second * SECOND)

    assert ([], [False], []) == (slow[0][1].news, slow[1][1].news, told_quick.news)
    assert [True] == told.news


def test_an_upload_that_we_hold_back_is_not_slow() -> None:
    """It cannot go on."""
    budget = BytesInHand(1000)
    held, told = claim(budget.account(), 1000)
    held.is_excused = True
    claim(budget.account(), 10)
    for second in range(1, 5):
        budget.look(second * SECOND)

    assert [] == told.news


def test_what_comes_unasked_is_counted_up_to_an_eighth_more() -> None:
    """Its peer had credit for it; beyond, it is refused."""
    budget = BytesInHand(800)
    first, _ = claim(budget.account(), 800)
    waiting, told = claim(budget.account(), 300)
    waiting.came(100)

    assert 900 == budget.held_bytes
    with pytest.raises(Overloaded):
        waiting.came(101)
    first.end()
    assert ([True], 300) == (told.news, budget.held_bytes)


def test_a_claim_can_be_widened() -> None:
    """It waits for the rest, and keeps what it has."""
    budget = BytesInHand(1000)
    first, told = claim(budget.account(), 100)
    first.widen(400)
    other, _ = claim(budget.account(), 500)
    first.widen(800)

    assert (False, 900) == (first.is_granted, budget.held_bytes)
    other.end()
    assert ([True], 800) == (told.news, budget.held_bytes)


def test_what_is_decompressed_is_counted_while_it_is() -> None:
    """It stops when there is no room for more."""
    budget = BytesInHand(3 << 20)
    account = budget.account()
    with Growth(account) as growth:
        growth.reach(1)
        growth.reach(1 << 20)
        assert 1 << 20 == budget.held_bytes
        with pytest.raises(Overloaded):
            growth.reach(4 << 20)

    assert 0 == budget.held_bytes == account.held_bytes


def test_what_other_threads_gave_back_is_granted_at_the_next_look() -> None:
    """They do not call anybody."""
    budget = BytesInHand(1 << 20)
    with Growth(budget.account()) as growth:
        growth.reach(1 << 20)
        _, told = claim(budget.account(), 1000)
    assert [] == told.news
    budget.look(SECOND)

    assert [True] == told.news


def test_a_claim_that_ends_another_ones_wait_does_not_tell_it() -> None:
    """Who is let in may close the others."""
    budget = BytesInHand(1000)
    first, _ = claim(budget.account(), 1000)
    ends: list[Claim] = []
    budget.account().claim(10, lambda _: ends[0].end())
    second, told = claim(budget.account(), 10)
    ends.append(second)
    first.end()

    assert ([], 10) == (told.news, budget.held_bytes)


def test_what_came_for_claims_that_wait_does_not_keep_them_waiting() -> None:
    """Their connection's share is for what was granted."""
    budget = BytesInHand(1000)
    account = budget.account()
    first, _ = claim(budget.account(), 900)
    waiting = [claim(account, 210) for _ in range(3)]
    for each, _ in waiting:
        each.came(50)
    first.end()

    assert [[True], [True], []] == [told.news for _, told in waiting]
    for each, _ in waiting[:2]:
        each.end()
    assert [True] == waiting[2][1].news


def test_when_only_those_who_wait_hold_bytes_the_last_ones_make_room() -> None:
    """Nobody else would."""
    budget = BytesInHand(1000)
    first, _ = claim(budget.account(), 200)
    waiting = [claim(budget.account(), 900) for _ in range(4)]
    for each, _ in waiting:
        each.came(230)
    first.end()
    assert [[]] * 4 == [told.news for _, told in waiting]
    budget.look(SECOND)

    assert [True] == waiting[0][1].news
    assert [[False]] * 3 == [told.news for _, told in waiting[1:]]
    assert 900 == budget.held_bytes
