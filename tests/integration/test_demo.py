"""`hloserve demo` as its user meets it: the lines it prints, the page, every client."""

import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.demo_clients import CLIENTS
from support.direct_run import run_program
from support.server_process import ServerProcess, running_server

import hloserve
from examples.digits.make_bundle import BATCH_SIZES, LEAST_ACCURACY
from examples.digits.training import Digits, load_split

pytestmark = [pytest.mark.integration, pytest.mark.xla]

_BUNDLE = Path(hloserve.__file__).parent / "demo_repository" / "digits"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running demo, which must end with status 0."""
    with running_server(tmp_path_factory.mktemp("demo"), "demo") as server:
        yield server


@pytest.fixture(scope="module")
def digits() -> Digits:
    """The data, of which the last fifth was held out."""
    return load_split()


@pytest.fixture(scope="module")
def direct(digits: Digits) -> dict[int, dict[str, Any]]:
    """What each program answers without a server, by batch size."""
    return {
        size: run_program(_BUNDLE, f"model.b{size}.mlir", [digits.test_images[:size]])
        for size in BATCH_SIZES
    }


def _printed(server: ServerProcess, start: str) -> str:
    (line,) = (line for line in server.output.splitlines() if re.match(start, line))
    return line


def test_printed_curl_line_works_when_pasted(demo: ServerProcess) -> None:
    """A shell takes the line as it is, and the answer is the digit that was promised."""
    done = subprocess.run(
        _printed(demo, "curl "), shell=True, capture_output=True, text=True, timeout=30, check=True
    )

    assert '"name":"digit","datatype":"INT32","shape":[1],"data":[3]' in done.stdout
    assert "digit 3" in demo.output


def test_printed_python_line_works_when_pasted(demo: ServerProcess, tmp_path: Path) -> None:
    """It works from any directory and prints the digit."""
    done = subprocess.run(
        _printed(demo, ".*python.* -c "),
        shell=True,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=tmp_path,
    )

    assert done.stdout == "3\n"


def test_page_is_served_and_refers_to_nothing_elsewhere(demo: ServerProcess) -> None:
    """The printed address answers with a page that works without a network."""
    address = re.search(r"page +(\S+)", demo.output)
    assert address is not None

    with urllib.request.urlopen(address[1], timeout=10) as response:
        page = response.read().decode()
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"

    assert "<canvas" in page
    assert not re.search(r"""(src|href)=(?!["']?data:)|https?://(?!\$)|@import|url\(""", page)


def test_page_asks_for_a_token_and_does_not_show_it(demo: ServerProcess) -> None:
    """It is typed into a field that hides it, and the shell's line has a variable instead."""
    with urllib.request.urlopen(f"http://{demo.http}/demo", timeout=10) as response:
        page = response.read().decode()

    assert '<input id="token" type="password" autocomplete="off"' in page
    assert 'headers["Authorization"] = `Bearer ${token}`' in page
    assert '-H "Authorization: Bearer $TOKEN"' in page
    assert 1 == page.count("${token}")


@pytest.mark.parametrize("client", CLIENTS)
def test_answers_equal_a_direct_run_bit_for_bit(
    client: str, demo: ServerProcess, digits: Digits, direct: dict[int, dict[str, Any]]
) -> None:
    """Client, wire, queue and batch add nothing to what the program of that size computes."""
    requests = [{"image": digits.test_images[:size]} for size in BATCH_SIZES]

    answers = CLIENTS[client](demo, "digits", requests)

    for answer, wanted in zip(answers, direct.values(), strict=True):
        assert list(answer) == ["probabilities", "digit"]
        for name, array in wanted.items():
            assert answer[name].dtype == array.dtype
            np.testing.assert_array_equal(answer[name], array)


def test_rows_between_the_sizes_are_padded_and_cut(
    demo: ServerProcess, digits: Digits, direct: dict[int, dict[str, Any]]
) -> None:
    """Three rows run in the program for four, whose other row nobody sees."""
    (answer,) = CLIENTS["hloserve"](demo, "digits", [{"image": digits.test_images[:3]}])

    padded = np.concatenate([digits.test_images[:3], np.zeros((1, 8, 8), np.uint8)])
    wanted = run_program(_BUNDLE, "model.b4.mlir", [padded])
    np.testing.assert_array_equal(answer["probabilities"], wanted["probabilities"][:3])
    np.testing.assert_array_equal(answer["digit"], direct[4]["digit"][:3])


def test_held_out_digits_are_recognised(demo: ServerProcess, digits: Digits) -> None:
    """All in one request, larger than any program, so that it is split and joined again."""
    (answer,) = CLIENTS["hloserve"](demo, "digits", [{"image": digits.test_images}])

    assert np.mean(answer["digit"] == digits.test_labels) >= LEAST_ACCURACY
    np.testing.assert_array_equal(answer["digit"], answer["probabilities"].argmax(axis=1))
    np.testing.assert_allclose(answer["probabilities"].sum(axis=1), 1, atol=1e-5)


def test_ctrl_c_ends_the_demo_well(tmp_path: Path) -> None:
    """SIGINT is how people end it: status 0, no traceback."""
    with running_server(tmp_path, "demo") as server:
        assert 0 == server.terminate(signal.SIGINT)
        assert "Traceback" not in "".join(server.errors)
