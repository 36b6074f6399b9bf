"""Many requests on one call: order, bounds, ends."""

import pytest
from support.infer_streams import Line, ManualInference

from hloserve.core.errors import Code, ModelNotFound, Overloaded
from hloserve.core.requests import InferRequest
from hloserve.wire import v2_protobuf as codec
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.status import grpc_code


@pytest.fixture
def inference() -> ManualInference:
    """A service that answers when told."""
    return ManualInference()


@pytest.fixture
def line(inference: ManualInference) -> Line:
    """A call that has begun."""
    return Line(inference)


def _ids(line: Line) -> list[str]:
    return [answer.id for answer in line.answers]


def _code(line: Line) -> int | None:
    return None if line.ended is None else line.ended.code


def test_requests_of_a_call_are_served_together(inference: ManualInference, line: Line) -> None:
    """None waits for the answer of the one before."""
    for number in range(3):
        line.send(number)
    line.settle()

    assert ["0", "1", "2"] == [held.request.id for held in inference.open]


def test_answers_leave_in_the_order_of_the_requests(inference: ManualInference, line: Line) -> None:
    """One that is ready early waits for those before it."""
    for number in range(3):
        line.send(number)
    line.settle()

    inference.requests[2].answer()
    inference.requests[1].answer()
    line.settle()
    assert line.answers == []

    inference.requests[0].answer()
    line.settle()
    assert ["0", "1", "2"] == _ids(line)


def test_error_of_a_request_is_its_answer(inference: ManualInference, line: Line) -> None:
    """It has the request's id, its status and a text, and the call goes on."""
    line.send(7)
    line.settle()
    inference.requests[0].answer(ModelNotFound("m"))
    line.send(8)
    line.settle()
    inference.requests[1].answer()
    line.settle()

    failed, good = line.answers
    assert ("7", Code.NOT_FOUND, None) == (failed.id, failed.code, failed.response)
    assert "'m'" in failed.text
    assert ("8", "") == (good.id, good.text)
    assert line.ended is None


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"\xff", ""),
        (b"", ""),
        (b"\x0a\x01m\x1a\x03abc\x2a\x02\x0a\xff", "abc"),
    ],
    ids=["no protobuf", "empty", "bad tensor"],
)
def test_what_cannot_be_read_is_answered_too(line: Line, message: bytes, expected: str) -> None:
    """With the id, if that can be read; the call goes on."""
    line.send_raw(message)
    line.settle()

    (answer,) = line.answers
    assert (expected, Code.INVALID_ARGUMENT) == (answer.id, answer.code)
    assert answer.text
    assert line.ended is None


def test_fault_of_ours_tells_no_secret(inference: ManualInference, line: Line) -> None:
    """It is logged under an id, and the call goes on."""
    line.send(1)
    line.settle()
    inference.requests[0].answer(ZeroDivisionError("a secret"))
    line.settle()

    (answer,) = line.answers
    assert ("1", Code.INTERNAL) == (answer.id, answer.code)
    assert "request id" in answer.text
    assert "secret" not in answer.text


def test_empty_last_answers_are_not_needed(inference: ManualInference, line: Line) -> None:
    """Asking for one changes nothing; asking wrongly is told."""
    line.send(1, {"triton_enable_empty_final_response": True})
    line.send(2, {"triton_enable_empty_final_response": 1})
    line.settle()
    inference.requests[0].answer()
    line.settle()

    good, bad = line.answers
    assert inference.requests[0].request.parameters == {}
    assert (good.id, good.text) == ("1", "")
    assert (bad.id, bad.code) == ("2", Code.INVALID_ARGUMENT)


def test_half_close_ends_the_call_after_the_last_answer(
    inference: ManualInference, line: Line
) -> None:
    """With status OK."""
    line.send(1)
    line.half_close()
    line.settle()
    assert line.ended is None

    inference.requests[0].answer()
    line.settle()
    assert (["1"], 0) == (_ids(line), _code(line))


def test_call_without_requests_ends_well(line: Line) -> None:
    """Half-close alone is status OK."""
    line.half_close()
    line.settle()

    assert _code(line) == 0


def test_requests_that_are_answered_at_once_end_well(
    inference: ManualInference, line: Line
) -> None:
    """Answers from within the reading of the request, and the half-close in the same packet."""
    inference.at_once = lambda held: held.answer()
    for number in range(600):
        line.send(number)
    line.half_close()
    line.settle()

    assert list(map(str, range(600))) == _ids(line)
    assert _code(line) == 0


def test_requests_that_are_answered_at_once_leave_others_their_turn(
    inference: ManualInference, line: Line
) -> None:
    """256 of them are taken per turn of the loop, however many have come."""
    inference.at_once = lambda held: held.answer(ModelNotFound("m"))
    for number in range(1_000):
        line.send(number)
    line.carry_up()
    assert len(inference.requests) == 256

    line.settle()
    assert list(map(str, range(1_000))) == _ids(line)


@pytest.mark.parametrize("leave", [Line.cancel, Line.lose])
def test_work_of_a_client_that_leaves_is_withdrawn(
    inference: ManualInference, line: Line, leave: object
) -> None:
    """Whether it cancels the call or is killed; what was answered before stays answered."""
    for number in range(3):
        line.send(number)
    line.settle()
    inference.requests[1].answer()

    leave(line)  # type: ignore[operator]
    line.settle()

    assert [True, False, True] == [held.is_cancelled for held in inference.requests]


def test_a_call_has_a_bounded_number_of_requests_in_flight(
    inference: ManualInference, line: Line
) -> None:
    """More wait unread, and are taken when half of them are answered."""
    for number in range(1_000):
        line.send(number)
    line.half_close()
    line.settle()
    assert len(inference.open) == 256

    for held in inference.requests[:127]:
        held.answer()
    line.settle()
    assert len(inference.open) == 129

    inference.requests[127].answer()
    line.settle()
    assert len(inference.open) == 256

    while inference.open:
        inference.open[0].answer()
        line.settle()
    assert list(map(str, range(1_000))) == _ids(line)
    assert _code(line) == 0


def test_answers_that_wait_for_their_turn_count_as_well() -> None:
    """A slow first request cannot make the server hold any number of answers."""
    inference = ManualInference(max_in_flight=4)
    line = Line(inference)
    for number in range(10):
        line.send(number)
    line.settle()
    assert len(inference.requests) == 4

    for held in inference.requests[1:]:
        held.answer()
    line.settle()
    assert (4, []) == (len(inference.requests), line.answers)

    inference.requests[0].answer()
    line.settle()
    assert (8, 4) == (len(inference.requests), len(line.answers))


def test_large_requests_are_bounded_by_their_bytes(inference: ManualInference) -> None:
    """Of 16 MiB each, four are taken."""
    limits = GrpcLimits(frame_allowance=1 << 30)
    line = Line(inference, limits)
    for number in range(5):
        line.send(number, nbytes=16 << 20)
    line.half_close()
    line.settle()
    assert len(inference.requests) == 4

    while inference.open:
        inference.open[0].answer(Overloaded("so that little comes back"))
        line.settle()
    assert (5, 0) == (len(line.answers), _code(line))


def test_client_that_does_not_read_is_read_no_further(inference: ManualInference) -> None:
    """Answers wait in bounded memory; all arrive when it reads."""
    inference.at_once = lambda held: held.answer()
    line = Line(inference, client_limits=GrpcLimits(stream_window_bytes=65_535))
    line.is_deaf = True
    for number in range(100):
        line.send(number, nbytes=100_000)
    line.half_close()
    line.settle()
    taken = len(inference.requests)
    assert 10 <= taken <= 13

    line.is_deaf = False
    line.settle()
    assert list(map(str, range(100))) == _ids(line)
    assert _code(line) == 0


def test_answer_over_the_cap_fails_its_request_alone(inference: ManualInference) -> None:
    """The call goes on."""
    line = Line(inference, GrpcLimits(max_send_msg_bytes=1_000))
    line.send(1, nbytes=2_000)
    line.send(2)
    line.settle()
    for held in inference.requests:
        held.answer()
    line.settle()

    too_large, good = line.answers
    assert ("1", Code.RESOURCE_EXHAUSTED) == (too_large.id, too_large.code)
    assert "grpc.max_send_msg_bytes" in too_large.text
    assert ("2", "") == (good.id, good.text)


def test_leaving_server_answers_what_it_has(inference: ManualInference, line: Line) -> None:
    """Then the call ends UNAVAILABLE; what comes later is not looked at."""
    line.send(1)
    line.settle()
    line.drain()
    line.send(2)
    line.settle()
    assert line.ended is None

    inference.requests[0].answer()
    line.settle()
    assert (["1"], grpc_code(Code.UNAVAILABLE)) == (_ids(line), _code(line))
    assert len(inference.requests) == 1


def test_leaving_server_ends_an_idle_call_at_once(line: Line) -> None:
    """It does not hold the drain up."""
    line.drain()
    line.settle()

    assert grpc_code(Code.UNAVAILABLE) == _code(line)


def test_leaving_server_ends_a_call_well_that_was_complete(
    inference: ManualInference, line: Line
) -> None:
    """The client had half-closed, and gets all its answers."""
    line.send(1)
    line.half_close()
    line.settle()
    line.drain()
    inference.requests[0].answer()
    line.settle()

    assert (["1"], 0) == (_ids(line), _code(line))


def test_call_whose_deadline_is_over_ends_at_once(inference: ManualInference) -> None:
    """It is read no further."""
    line = Line(inference, timeout_s=0.0)
    line.send(1)
    line.settle()

    assert grpc_code(Code.DEADLINE_EXCEEDED) == _code(line)
    assert inference.requests == []


def test_deadline_of_the_call_is_that_of_its_requests(inference: ManualInference) -> None:
    """Unless they have an earlier one."""
    line = Line(inference)
    message = codec.encode_infer_request(InferRequest("m", {}, parameters={"timeout": 5}))
    line.send_raw(message)
    line.settle()

    assert line.clock.now_ns() + 5_000 == inference.requests[0].request.deadline_ns


def test_a_full_server_is_told_per_request(inference: ManualInference, line: Line) -> None:
    """The status says that it may be sent again."""
    inference.at_once = lambda held: held.answer(Overloaded("full"))
    line.send(1)
    line.settle()

    assert [Code.RESOURCE_EXHAUSTED] == [answer.code for answer in line.answers]
