"""`hloserve pin`, `unpin`, `weight` and `compact`: what is wrong before a server is asked."""

import socket

import pytest

from hloserve.cli.main import run

COMMANDS = [["pin", "m"], ["unpin", "m"], ["weight", "m", "2"], ["compact"]]


@pytest.mark.parametrize("weight", ["0", "-1", "-0.5", "nan", "inf", "1e999", "1000001", "two", ""])
def test_weight_that_is_no_share_is_a_usage_error(
    weight: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Negative numbers are told as numbers, not as options."""
    assert 2 == run(["weight", "m", weight])
    assert f"{weight!r} is not a number above 0 and up to 1000000.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pin"], "Missing argument 'MODEL'"),
        (["pin", "m", "--to", "disk"], "'disk' is not one of 'device', 'system'"),
        (["pin", "m", "--timeout", "soon"], "--timeout: 'soon'"),
        (["unpin"], "Missing argument 'MODEL'"),
        (["weight", "m"], "Missing argument 'WEIGHT'"),
        (["weight", "m", "1", "--nope"], "--nope"),
        (["compact", "--timeout", "-1s"], "--timeout"),
    ],
)
def test_usage_errors_are_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2, and nothing is asked of a server."""
    assert 2 == run(arguments)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_server_that_does_not_answer_is_told(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 1 and its address."""
    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"

        assert 1 == run([*command, "--url", address])

    assert address in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_help_has_examples_that_begin_with_the_command(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a reader need not guess the order of arguments."""
    assert 0 == run([command[0], "--help"])
    assert f"  hloserve {command[0]}" in capsys.readouterr().out.partition("Example")[2]
