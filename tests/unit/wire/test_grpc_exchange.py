"""Calls between the two ends of a gRPC connection, without I/O."""

import pytest
from support.grpc_pair import ECHO, Pair


@pytest.mark.parametrize("nbytes", [0, 1, 300, 16_379, 16_380, 70_000, 3_000_000])
def test_a_unary_call_brings_the_message_there_and_back(nbytes: int) -> None:
    """Messages of every size cross unchanged, in one frame or in many."""
    message = bytes(range(256)) * (nbytes // 256) + b"x" * (nbytes % 256)

    ended = Pair().call(message)

    assert ended.code == 0
    assert ended.message == message


def test_many_calls_share_a_connection() -> None:
    """A thousand calls at once are each answered with their own message."""
    pair = Pair()
    sent = {pair.client.start(ECHO, b"%d" % i): b"%d" % i for i in range(1000)}

    for rpc in pair.received():
        pair.server.respond(rpc.stream_id, rpc.message)

    assert sent == {event.stream_id: event.message for event in pair.ended()}
