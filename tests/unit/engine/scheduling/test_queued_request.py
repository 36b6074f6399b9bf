"""A request on its way to the device."""

import logging

import numpy as np
import pytest
from support.engine_models import build_model, dummy, outcome_of, request, rows_of, spec

from hloserve.core.errors import BadRequest, Cancelled, ShuttingDown
from hloserve.core.tickets import Call
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.queued_request import QueuedRequest, build_requests, deliver


def test_request_that_fits_is_submitted_as_it_is() -> None:
    """Inputs that a program holds make one request, not copied."""
    model = build_model(FakeBackend(), sizes=[1, 4, 8])
    inputs = [rows_of(1, 2, 3)]

    (made,) = build_requests(model, inputs, deadline_ns=7)

    assert made.inputs is inputs
    assert (made.rows, made.variant, made.deadline_ns) == (3, (), 7)


def test_oversize_request_becomes_parts() -> None:
    """A request larger than every program is cut into parts with the same deadline."""
    model = build_model(FakeBackend(), sizes=[1, 4])

    made = build_requests(model, [rows_of(*range(9))], deadline_ns=7)

    assert [part.rows for part in made] == [4, 4, 1]
    assert [part.inputs[0][0, 0] for part in made] == [0, 4, 8]
    assert {7} == {part.deadline_ns for part in made}


def test_cap_of_the_operator_does_not_split() -> None:
    """The cap limits coalescing; a single larger request still goes whole."""
    model = build_model(FakeBackend(), sizes=[1, 4, 8], max_batch_size=2)

    assert len(build_requests(model, [rows_of(*range(6))])) == 1


def test_request_without_rows_has_no_parts() -> None:
    """No rows need no dispatch: the caller answers them by itself."""
    model = build_model(FakeBackend())

    assert build_requests(model, [np.zeros((0, 3), np.float32)]) == []


def test_model_that_cannot_split_refuses_what_no_program_holds() -> None:
    """An answer over the whole batch cannot be put together from parts."""
    model = build_model(FakeBackend(), function="total", outputs=[spec("s", "")], sizes=[1, 4])

    with pytest.raises(BadRequest, match="send 1 or 4 rows"):
        build_requests(model, [rows_of(*range(9))])


def test_cancelling_withdraws_once() -> None:
    """A cancelled request leaves its queue, and only the first cancellation counts."""
    withdrawn: list[QueuedRequest] = []
    made = dummy(build_model(FakeBackend()), 1)
    made.withdraw = withdrawn.append

    made.cancel()
    made.cancel()

    assert [made] == withdrawn
    assert made.is_cancelled


def test_cancelling_an_answered_request_withdraws_nothing() -> None:
    """After its answer a request is in no queue."""
    made = dummy(build_model(FakeBackend()), 1)
    made.withdraw = lambda _: pytest.fail("it was withdrawn")
    made.resolve([])

    made.cancel()

    assert not made.is_cancelled


def test_cancelling_before_submission_is_harmless() -> None:
    """A request that was never queued has nothing to withdraw from."""
    made = dummy(build_model(FakeBackend()), 1)

    made.cancel()

    assert made.is_cancelled


def test_each_request_gets_its_own_outcome() -> None:
    """Outputs resolve a request, errors fail it."""
    model = build_model(FakeBackend())
    good, bad = request(model, 1), request(model, 2)

    deliver([good, bad], [[rows_of(5)], ShuttingDown()])

    np.testing.assert_array_equal(rows_of(5), outcome_of(good)[0])
    with pytest.raises(ShuttingDown):
        outcome_of(bad)


def test_cancelled_caller_leaves_its_batch_mates_alone() -> None:
    """One caller's cancellation leaves the other callers' results intact."""
    model = build_model(FakeBackend())
    requests = [request(model, 1) for _ in range(3)]
    requests[1].cancel()

    deliver(requests, [[rows_of(number)] for number in range(3)])

    assert [outcome_of(requests[i])[0][0, 0] for i in (0, 2)] == [0, 2]
    assert requests[1].is_cancelled


def test_exception_in_one_call_does_not_keep_the_others_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What resuming a call raises is logged, and delivery goes on."""
    caplog.set_level(logging.CRITICAL)
    model = build_model(FakeBackend())
    first, second = request(model, 1), request(model, 2)

    async def answer(waiting: QueuedRequest) -> None:
        await waiting

    def explode(_: object, __: object) -> None:
        raise ZeroDivisionError

    Call(answer(first), explode).step()

    deliver([first, second], [[rows_of(1)], Cancelled()])

    with pytest.raises(Cancelled):
        outcome_of(second)


def test_request_that_would_take_too_many_dispatches_is_refused() -> None:
    """One caller cannot fill the queue with a single request; the message says how much fits."""
    model = build_model(FakeBackend(), sizes=[1, 4])

    assert len(build_requests(model, [np.zeros((4096, 3), np.float32)])) == 1024
    with pytest.raises(BadRequest, match="send at most 4096 rows"):
        build_requests(model, [np.zeros((4097, 3), np.float32)])
