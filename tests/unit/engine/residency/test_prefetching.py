"""A thread that does the latest thing that was wanted."""

import threading

import pytest

from hloserve.engine.residency.prefetching import Ahead

PATIENCE_S = 20.0


def test_only_the_latest_of_what_is_wanted_meanwhile_is_done() -> None:
    """What was wanted before it is out of date by then."""
    done: list[int] = []
    began, may_go_on, has_ended = threading.Event(), threading.Event(), threading.Event()

    def run(what: int) -> None:
        began.set()
        assert may_go_on.wait(PATIENCE_S)
        done.append(what)
        if what == 4:
            has_ended.set()

    ahead = Ahead(run, "prefetch")
    ahead.want(1)
    assert began.wait(PATIENCE_S)
    for what in (2, 3, 4):
        ahead.want(what)
    may_go_on.set()
    assert has_ended.wait(PATIENCE_S)
    ahead.close()

    assert [1, 4] == done


def test_what_fails_is_told_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on with what is wanted next."""
    failed, done = threading.Event(), threading.Event()

    def run(what: str) -> None:
        if what == "bad":
            failed.set()
            raise ValueError("no")
        done.set()

    ahead = Ahead(run, "prefetch")
    ahead.want("bad")
    assert failed.wait(PATIENCE_S)
    ahead.want("good")
    assert done.wait(PATIENCE_S)
    ahead.close()

    assert any(record.message.startswith("prefetch_failed") for record in caplog.records)


def test_nothing_is_done_after_the_end() -> None:
    """Closing twice, or without ever having wanted anything, is fine."""
    done: list[int] = []
    ahead = Ahead(done.append, "prefetch")
    ahead.close()

    ahead.want(1)
    ahead.close()

    assert [] == done
