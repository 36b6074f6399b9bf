"""Hooks in processes of their own: what they answer, and what becomes of them when they do not."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.hook_loop import PATIENCE_S, Loop
from support.models_bundles import write_fake

from hloserve.bundle import IOSpec
from hloserve.core.errors import (
    DeadlineExceeded,
    HookFailed,
    HookProblem,
    InvalidInput,
    Unavailable,
)
from hloserve.core.requests import NEVER_NS
from hloserve.core.tensors import Array
from hloserve.core.tickets import Call
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.hook_frames import SharedBlock, read_tensors, write_tensors
from hloserve.models.hook_processes import HookProcesses
from hloserve.models.loader import LoadOptions, load_model

GRACE_S = 0.1
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)

HOOKS = """
import os, signal, threading
import numpy as np
from hloserve import InvalidInput, register_model

calls = 0

def preprocess(inputs):
    global calls
    calls += 1
    x = inputs["x"]
    what = int(x[0, 0])
    if what == -1:
        raise InvalidInput("x must not be -1")
    if what == -2:
        raise ValueError("two")
    if what == -3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == -4:
        threading.Event().wait()
    if what == -5:
        return {"x": np.full((len(x), 4), os.getpid(), np.float32)}
    if what == -6:
        return {"x": x.astype(np.float64)}
    if what == -7:
        return {"x": np.full((len(x), 4), calls, np.float32)}
    x += 1  # it is the hook's own
    return {"x": x}

def postprocess(outputs):
    return {"label": np.array([[str(value).encode()] for value in outputs["y"][:, 0]], object)}

register_model(preprocess=preprocess, postprocess=postprocess)
"""


@pytest.fixture
def loop() -> Loop:
    """A loop that the test drives."""
    return Loop()


def _bundle(root: Path, hooks: str = HOOKS) -> Path:
    return write_fake(
        root, files={"model.py": hooks},
        client_outputs=[IOSpec("label", "bytes", (1, 1), batch_axis=0)],
    )  # fmt: skip


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose hooks do as the first number of their input says."""
    return _bundle(tmp_path)


@pytest.fixture
def processes(bundle: Path, loop: Loop) -> Iterator[HookProcesses]:
    """One process."""
    pool = HookProcesses(1, bundle, "m", loop.post, GRACE_S)
    pool.start(PATIENCE_S)
    yield pool
    pool.close()


def _told(what: float) -> dict[str, Array]:
    return {"x": np.full((1, 4), what, np.float32)}


def _later(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def test_arrays_and_strings_cross_both_ways(loop: Loop, processes: HookProcesses) -> None:
    """The hook gets copies that it may write into, and its results are arrays of our own."""
    given = ROWS.copy()

    (prepared,) = loop.outcome(processes.run("preprocess", {"x": given}))
    (labels,) = loop.outcome(processes.run("postprocess", {"y": ROWS}))

    np.testing.assert_array_equal(prepared, ROWS + 1)
    np.testing.assert_array_equal(given, ROWS)
    assert prepared.flags.writeable
    assert labels.tolist() == [[b"0.0"], [b"4.0"]]


def test_what_a_hook_raises_comes_back_as_from_a_thread(
    loop: Loop, processes: HookProcesses
) -> None:
    """A refusal is the caller's; anything else names the author's line; results are checked."""
    refused = loop.outcome(processes.run("preprocess", _told(-1)))
    failed = loop.outcome(processes.run("preprocess", _told(-2)))
    wrong = loop.outcome(processes.run("preprocess", _told(-6)))

    assert isinstance(refused, InvalidInput)
    assert str(refused) == "x must not be -1"
    assert isinstance(failed, HookFailed)
    assert "model.py:16: ValueError: two" in str(failed)
    assert "dtype is float64, expected float32; use .astype(np.float32)" in str(wrong)
    assert processes.restarts == 0


def test_process_that_dies_fails_its_request_and_is_started_again(
    loop: Loop, processes: HookProcesses
) -> None:
    """The message names the signal; the next request is served by another process."""
    (before,) = processes.process_ids

    died = loop.outcome(processes.run("preprocess", _told(-3)))
    (after,) = loop.outcome(processes.run("preprocess", {"x": ROWS}))

    assert isinstance(died, HookFailed)
    assert "SIGSEGV" in str(died)
    np.testing.assert_array_equal(after, ROWS + 1)
    assert processes.restarts == 1
    assert processes.process_ids != [before]


def test_process_killed_while_idle_fails_at_most_one_request(
    loop: Loop, processes: HookProcesses
) -> None:
    """As when the system is short of memory: who comes next may be told, who comes then is not."""
    os.kill(processes.process_ids[0], signal.SIGKILL)

    outcomes = [loop.outcome(processes.run("preprocess", {"x": ROWS})) for _ in range(3)]

    assert sum(isinstance(outcome, HookFailed) for outcome in outcomes) <= 1
    np.testing.assert_array_equal(outcomes[-1][0], ROWS + 1)


def test_hook_that_does_not_return_fails_at_its_deadline_and_is_ended(
    loop: Loop, processes: HookProcesses
) -> None:
    """Nobody else waits for ever: the process gives way to another one."""
    stuck = loop.outcome(processes.run("preprocess", _told(-4), _later(0.05)))
    (after,) = loop.outcome(processes.run("preprocess", {"x": ROWS}))

    assert isinstance(stuck, DeadlineExceeded)
    np.testing.assert_array_equal(after, ROWS + 1)
    assert processes.restarts == 1


def test_hook_whose_caller_went_away_is_ended_too(loop: Loop, processes: HookProcesses) -> None:
    """A cancelled request does not hold its process for ever, without any deadline."""
    ticket = processes.run("preprocess", _told(-4), NEVER_NS)
    ticket.cancel()
    gone = processes.run("preprocess", _told(-4), NEVER_NS)

    async def wait() -> Any:
        return await gone

    call = Call(wait(), lambda value, error: None)
    call.step()
    call.cancel()
    (after,) = loop.outcome(processes.run("preprocess", {"x": ROWS}))

    np.testing.assert_array_equal(after, ROWS + 1)


def test_request_whose_deadline_passed_while_it_waited_is_not_run(
    loop: Loop, processes: HookProcesses
) -> None:
    """The hook is not called for nobody."""
    late = loop.outcome(processes.run("preprocess", {"x": ROWS}, _later(-1)))
    (calls,) = loop.outcome(processes.run("preprocess", _told(-7)))

    assert isinstance(late, DeadlineExceeded)
    assert calls[0, 0] == 1


def test_each_process_serves_while_another_is_stuck(bundle: Path, loop: Loop) -> None:
    """A hook that does not return holds its own process only."""
    pool = HookProcesses(2, bundle, "m", loop.post, GRACE_S)
    pool.start(PATIENCE_S)
    stuck = pool.run("preprocess", _told(-4), NEVER_NS)

    pids = {float(loop.outcome(pool.run("preprocess", _told(-5)))[0][0, 0]) for _ in range(5)}

    assert len(pids) == 1
    assert pids < {float(np.float32(pid)) for pid in pool.process_ids}
    assert not stuck.is_settled
    stuck.cancel()
    pool.close()


def test_renamed_bundle_goes_on_under_its_new_name(
    tmp_path: Path, bundle: Path, loop: Loop, processes: HookProcesses
) -> None:
    """The process is told; its messages name the new place, and it can be started there again."""
    moved = tmp_path / "other"
    bundle.rename(moved)
    processes.move(moved, "other")

    failed = loop.outcome(processes.run("preprocess", _told(-2)))
    died = loop.outcome(processes.run("preprocess", _told(-3)))
    (after,) = loop.outcome(processes.run("preprocess", {"x": ROWS}))

    assert "model 'other' failed: model.py:16" in str(failed)
    assert isinstance(died, HookFailed)
    np.testing.assert_array_equal(after, ROWS + 1)


def test_changed_bundle_is_not_mixed_with_the_loaded_one(
    bundle: Path, loop: Loop, processes: HookProcesses
) -> None:
    """A process that died is not started with files that were never loaded."""
    (bundle / "model.py").write_text(HOOKS.replace("x += 1", "x += 2"))
    loop.outcome(processes.run("preprocess", _told(-3)))

    refused = loop.outcome(processes.run("preprocess", {"x": ROWS}))

    assert isinstance(refused, Unavailable)
    assert "no longer those that were loaded" in str(refused)


@pytest.mark.parametrize(
    ("hooks", "timeout_s", "complaint"),
    [
        ("import nothing_of_that_name", PATIENCE_S, "nothing_of_that_name"),
        ("import os\nos._exit(3)", PATIENCE_S, "exit status 3"),
        ("import threading\nthreading.Event().wait()", 0.5, "still runs after 0.5 s"),
    ],
    ids=["raises", "ends", "waits"],
)
def test_hook_file_that_cannot_run_fails_the_load(
    tmp_path: Path, loop: Loop, hooks: str, timeout_s: float, complaint: str
) -> None:
    """The bundle's finding says what a hook on a thread would say, or how the process ended."""
    bundle = _bundle(tmp_path, hooks)
    pool = HookProcesses(1, bundle, "m", loop.post)

    with pytest.raises(HookProblem, match=complaint):
        pool.start(timeout_s)

    assert not pool.process_ids or _ended(pool)


def _ended(pool: HookProcesses) -> bool:
    """True once no process is left; they end on threads of their own."""
    deadline = time.monotonic() + PATIENCE_S
    while pool.process_ids and time.monotonic() < deadline:
        os.sched_yield()
    return not pool.process_ids


def test_closed_processes_end(bundle: Path, loop: Loop) -> None:
    """Nothing is left of an unloaded model."""
    pool = HookProcesses(2, bundle, "m", loop.post)
    pool.start(PATIENCE_S)
    pids = pool.process_ids

    pool.close()

    assert len(pids) == 2
    assert _ended(pool)


def test_loaded_bundle_has_the_processes_that_operator_and_author_agree_on(
    tmp_path: Path, loop: Loop
) -> None:
    """The author asks, the operator's limit holds, and an unloaded model leaves none behind."""
    bundle = write_fake(tmp_path, files={"model.py": HOOKS}, hook_processes=2)
    backend = FakeBackend()

    for most, count in ((0, 0), (1, 1), (8, 2)):
        options = LoadOptions(post=loop.post, max_hook_processes=most)
        model = load_model(bundle, backend, options)
        pool = model.hook_processes
        assert (0 if pool is None else len(pool.process_ids)) == count
        model.free()
        assert pool is None or _ended(pool)


@pytest.mark.parametrize("kept", [0, 64, 1 << 20])
def test_block_holds_what_was_laid_into_it(kept: int) -> None:
    """Every dtype, rank and size comes back, also after the block grew and shrank."""
    descriptor = os.memfd_create("test")
    mine, theirs = SharedBlock(descriptor), SharedBlock(descriptor)
    random = np.random.default_rng(0)

    for size in (1, 100_000, 3):
        arrays: list[Array] = [
            random.standard_normal((size, 2)).astype(np.float32),
            np.array(7, np.int64),
            np.zeros((0, 4), np.uint8),
            random.standard_normal(size).astype(ml_dtypes.bfloat16),
            np.asfortranarray(random.standard_normal((3, size))),
            np.array([b"", b"x" * size], object),
        ]
        names = [str(number) for number in range(len(arrays))]
        stored = write_tensors(names, arrays, mine)
        theirs.follow(mine.nbytes)
        for want, got in zip(arrays, read_tensors(stored, theirs), strict=True):
            assert want.dtype == got.dtype
            np.testing.assert_array_equal(want, got)
        mine.shrink(kept)
        assert mine.nbytes <= max(kept, 0)
    for block in (mine, theirs):
        block.follow(0)
    os.close(descriptor)
