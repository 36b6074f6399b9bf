"""The text of `hloserve demo`."""

import json
import shlex

import pytest

from hloserve.config import load
from hloserve.server.demo import (
    Sample,
    announcement,
    curl_line,
    draw,
    load_samples,
    python_line,
    what_else_is_needed,
)
from hloserve.server.listeners import Addresses

_SAMPLE = Sample(7, [[0, 8, 16]] * 8)


def _addresses(host: str) -> Addresses:
    return Addresses(http=(host, 11), grpc=(host, 22), admin=(host, 33))


def test_package_brings_one_sample_per_digit() -> None:
    """Ten images of 8x8 pixels, none empty."""
    samples = load_samples()

    assert [sample.label for sample in samples] == list(range(10))
    for sample in samples:
        assert [len(row) for row in sample.image] == [8] * 8
        assert 0 < max(map(max, sample.image)) <= 16


def test_curl_line_carries_the_whole_request() -> None:
    """Its body is one JSON argument, which needs no file."""
    *command, body = shlex.split(curl_line("http://localhost:11", _SAMPLE))

    assert command == ["curl", "-s", "http://localhost:11/v2/models/digits/infer", "-d"]
    (tensor,) = json.loads(body)["inputs"]
    assert tensor["shape"] == [1, 8, 3]
    assert tensor["data"] == [0, 8, 16] * 8


def test_python_line_is_one_program_for_the_given_interpreter() -> None:
    """An interpreter in a directory with a space is quoted for the shell."""
    interpreter, flag, program = shlex.split(
        python_line("localhost:22", _SAMPLE, python="/my envs/bin/python")
    )

    assert (interpreter, flag) == ("/my envs/bin/python", "-c")
    compile(program, "<line>", "exec")
    assert '"localhost:22"' in program
    assert str([_SAMPLE.image]).replace(" ", "") in program


@pytest.mark.parametrize(
    ("bound", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("box.example", "box.example"),
    ],
)
def test_addresses_can_be_used_from_this_machine(bound: str, shown: str) -> None:
    """An address that stands for every interface is shown as loopback."""
    text = announcement(_addresses(bound), _SAMPLE, python="python", shades=" #")

    assert f"page   http://{shown}:11/demo\n" in text
    assert f"gRPC   {shown}:22\n" in text
    assert f"admin  http://{shown}:33/metrics\n" in text
    assert f"curl -s http://{shown}:11/" in text


def test_announcement_says_what_to_expect() -> None:
    """The answer's digit is the sample's label."""
    text = announcement(_addresses("127.0.0.1"), _SAMPLE, python="python", shades=" #")

    assert "digit 7" in text
    assert "prints 7" in text


@pytest.mark.parametrize(
    ("shades", "line"), [(" ░▒▓█", "  ▒▒██"), (" .:+#", "  ::##"), (" #", "    ##")]
)
def test_drawing_goes_from_paper_to_ink(shades: str, line: str) -> None:
    """Each pixel is two characters wide, because characters are tall."""
    assert draw(_SAMPLE, shades) == (line,) * 8


def test_what_the_lines_lack_is_told_where_the_server_is_guarded() -> None:
    """Nothing without settings, and a line for tokens and for TLS."""
    settings = {"access.tokens_file": "/dev/null", "tls.certificate": "/dev/null"}

    assert "" == what_else_is_needed(load(None, {}, {}).config)
    text = what_else_is_needed(load(None, {}, settings).config)
    assert "Authorization: Bearer TOKEN" in text
    assert "--cacert" in text
