"""What authors' code may do in a hook process without harm to anybody's next request."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.hook_loop import PATIENCE_S, Loop
from support.models_bundles import write_fake

from hloserve.core.errors import HookFailed, InvalidInput
from hloserve.core.tensors import Array
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.hook_processes import HookProcesses
from hloserve.models.loader import LoadOptions, load_model
from hloserve.server.hook_metrics import hook_families

HOOKS = """
import os, signal, subprocess
import numpy as np
from hloserve import InvalidInput, register_model

class Odd(Exception):
    def __str__(self):
        raise RuntimeError

class Final(BaseException):
    pass

def preprocess(inputs):
    x = inputs["x"]
    what = int(x[0, 0])
    if what == -1 and not os.fork():
        return {"x": x - 1000}  # a second answer to one question
    if what in (-2, -3):
        holder = subprocess.Popen(["sleep", "600"], close_fds=False)
        (open(os.path.join(os.path.dirname(__file__), "holder"), "w")).write(str(holder.pid))
        if what == -2:
            os.kill(os.getpid(), signal.SIGKILL)
    if what == -4:
        raise Final("no Exception")
    if what == -5:
        raise KeyboardInterrupt
    if what == -6:
        raise Odd
    if what == -7:
        raise InvalidInput("half a pair: \\ud800")
    if what == -8:
        os.closerange(3, 64)
        signal.pause()
    if what == -9:
        os._exit(3)
    return {"x": x + 1}

register_model(preprocess=preprocess)
"""


@pytest.fixture
def loop() -> Loop:
    """A loop that the test drives."""
    return Loop()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose hooks do as the first number of their input says."""
    return write_fake(tmp_path, files={"model.py": HOOKS})


@pytest.fixture
def processes(bundle: Path, loop: Loop) -> Iterator[HookProcesses]:
    """One process."""
    pool = HookProcesses(1, bundle, "m", loop.post)
    pool.start(PATIENCE_S)
    yield pool
    pool.close()


def _told(what: float) -> dict[str, Array]:
    return {"x": np.full((1, 4), what, np.float32)}


def test_hook_that_forks_gives_one_answer(loop: Loop, processes: HookProcesses) -> None:
    """The child that returns from the hook as well answers nobody: the next answers are right."""
    outcomes = [
        loop.outcome(processes.run("preprocess", _told(what))) for what in (-1, 5, -1, -1, 6, 7, 8)
    ]

    assert [float(arrays[0][0, 0]) for arrays in outcomes] == [0, 6, 0, 0, 7, 8, 9]
    assert processes.restarts == 0


def _is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _wait_for_end_of(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while _is_there(pid):
        assert time.monotonic() < deadline, "it is still there"
        os.sched_yield()


@pytest.mark.parametrize("what", [-2, -3], ids=["dies", "closes"])
def test_what_a_hook_has_started_ends_with_its_process(
    bundle: Path, loop: Loop, processes: HookProcesses, what: int
) -> None:
    """It neither outlives the process nor hides its end, though it has all its descriptors."""
    outcome = loop.outcome(processes.run("preprocess", _told(what)))
    holder = int((bundle / "holder").read_text())
    processes.close()

    _wait_for_end_of(holder)
    assert isinstance(outcome, HookFailed) == (what == -2)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (-4, "model.py:24: Final: no Exception"),
        (-5, "KeyboardInterrupt"),
        (-6, "Odd: (its text cannot be made: RuntimeError)"),
    ],
)
def test_whatever_a_hook_raises_leaves_its_process_alive(
    loop: Loop, processes: HookProcesses, what: int, text: str
) -> None:
    """It says what was raised, and where."""
    failed = loop.outcome(processes.run("preprocess", _told(what)))
    loop.outcome(processes.run("preprocess", _told(1)))

    assert isinstance(failed, HookFailed)
    assert text in str(failed)
    assert processes.restarts == 0


def test_refusal_that_is_no_text_is_still_a_refusal(loop: Loop, processes: HookProcesses) -> None:
    """Half a surrogate pair has no place in UTF-8."""
    refused = loop.outcome(processes.run("preprocess", _told(-7)))

    assert isinstance(refused, InvalidInput)
    assert str(refused) == "half a pair: ?"


@pytest.mark.parametrize(("what", "how"), [(-8, "it closed its connection"), (-9, "exit status 3")])
def test_end_of_a_process_is_told_as_it_was(
    loop: Loop, processes: HookProcesses, what: int, how: str
) -> None:
    """Not by the signal that makes sure of it."""
    failed = loop.outcome(processes.run("preprocess", _told(what)))
    (after,) = loop.outcome(processes.run("preprocess", _told(1)))

    assert how in str(failed)
    assert after[0, 0] == 2


def test_process_that_has_ended_while_idle_fails_nobody(
    loop: Loop, processes: HookProcesses
) -> None:
    """The next request finds out before it asks."""
    (pid,) = processes.process_ids
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    (after,) = loop.outcome(processes.run("preprocess", _told(1)))

    assert after[0, 0] == 2
    assert processes.restarts == 1


def test_request_that_cannot_be_asked_fails_alone(loop: Loop, processes: HookProcesses) -> None:
    """An error of whatever kind ends the process, and not the thread that waits for it."""
    unknown = {"x": np.zeros((1, 4), "M8[s]")}
    failed = loop.outcome(processes.run("preprocess", unknown))
    (after,) = loop.outcome(processes.run("preprocess", _told(1)))

    assert isinstance(failed, HookFailed)
    assert after[0, 0] == 2


def test_killed_processes_take_along_what_they_have_started(
    bundle: Path, loop: Loop, processes: HookProcesses
) -> None:
    """As at the end of a server, which waits for nothing."""
    loop.outcome(processes.run("preprocess", _told(-3)))
    holder = int((bundle / "holder").read_text())

    processes.kill()

    _wait_for_end_of(holder)


def test_restarts_and_processes_are_metrics(tmp_path: Path, loop: Loop) -> None:
    """Only models that have processes appear."""
    options = LoadOptions(post=loop.post, max_hook_processes=8)
    names = {"threads": 0, "processes": 1}
    models = [
        load_model(
            write_fake(tmp_path, name, files={"model.py": HOOKS}, hook_processes=count),
            FakeBackend(),
            options,
        )
        for name, count in names.items()
    ]
    pool = models[1].hook_processes
    assert pool is not None
    loop.outcome(pool.run("preprocess", _told(-9)))
    loop.outcome(pool.run("preprocess", _told(1)))

    samples = {
        (sample.name, sample.labels["model"]): sample.value
        for family in hook_families(models)
        for sample in family.samples
    }
    for model in models:
        model.free()

    assert samples == {
        ("worker_hook_processes", "processes"): 1,
        ("worker_hook_process_restarts_total", "processes"): 1,
    }
