"""Whatever comes in whatever order on a stream, its answers are in order and nothing is left."""

from hypothesis import given
from hypothesis import strategies as st
from support.infer_streams import Line, ManualInference

from hloserve.core.errors import Code, QueueFull
from hloserve.wire.status import grpc_code

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("send at once"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["answer", "fail"]), st.integers(0, 30)),
        st.tuples(st.sampled_from(["settle", "settle", "spoil"]), st.just(0)),
        st.tuples(st.sampled_from(["half-close", "cancel", "lose", "drain", "deaf"]), st.just(0)),
    ),
    max_size=40,
)


class _Story:
    """One call, told step by step, and what must hold all along."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.inference = ManualInference(most)
        self.line = Line(self.inference)
        self.sent = 0
        self.has_closed = self.has_left = self.has_drained = False
        self.inference.at_once = lambda held: (
            held.answer() if held.request.parameters.get("at once") else None
        )

    def do(self, step: str, number: int) -> None:
        """Take a step."""
        line = self.line
        if step.startswith("send"):
            for _ in range(0 if self.has_closed else number):
                line.send(self.sent, {"at once": True} if step == "send at once" else None)
                self.sent += 1
        elif step == "spoil" and not self.has_closed:
            line.send_raw(b"\x1a" + bytes([len(str(self.sent))]) + str(self.sent).encode())
            self.sent += 1
        elif step in ("answer", "fail") and self.inference.open:
            held = self.inference.open[number % len(self.inference.open)]
            held.answer(QueueFull("m", 1) if step == "fail" else None)
        elif step == "settle":
            line.settle()
        elif step == "half-close" and not self.has_closed:
            self.has_closed = True
            line.half_close()
        elif step == "drain":
            self.has_drained = True
            line.drain()
        elif step == "deaf":
            line.is_deaf = not line.is_deaf
        elif step in ("cancel", "lose"):
            line.settle()  # what was sent before is on the way
            self.has_left = self.has_closed = True
            (line.cancel if step == "cancel" else line.lose)()
            line.settle()

    def check(self) -> None:
        """Answers are a beginning of what was sent, in order; the bound holds."""
        ids = [answer.id for answer in self.line.answers]
        assert list(map(str, range(len(ids)))) == ids
        assert len(self.inference.open) <= self.most

    def end(self) -> None:
        """Bring the call to its end, if it has none yet."""
        self.line.is_deaf = False
        if not self.has_closed:
            self.line.half_close()
        self.line.settle()
        while self.inference.open:
            self.inference.open[-1].answer()
            self.line.settle()
            self.check()


@given(_STEPS, st.integers(1, 6))
def test_every_story_of_a_stream_ends_with_nothing_left(
    steps: list[tuple[str, int]], most: int
) -> None:
    """A call that nobody leaves has all its answers and OK; any other leaves no work behind."""
    story = _Story(most)
    for step, number in steps:
        story.do(step, number)
        story.check()
        if story.has_left:
            assert story.inference.open == []
            return
    story.end()

    ended = story.line.ended
    assert ended is not None
    if ended.code == 0:
        assert story.sent == len(story.line.answers)
    else:
        assert story.has_drained
        assert grpc_code(Code.UNAVAILABLE) == ended.code
        assert sum(held.is_answered for held in story.inference.requests) <= len(story.line.answers)
