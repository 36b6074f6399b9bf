"""Meta models among other requests: turns, deadlines, cancellation, on the fake device."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.meta_bundles import write_meta
from support.served import Served, serve
from support.server_worker import rows, write_scale

from hloserve.config.schema import MetasConfig
from hloserve.core.clock import SystemClock
from hloserve.core.errors import (
    DeadlineExceeded,
)
from hloserve.core.requests import InferRequest
from hloserve.core.tensors import Array, Tensors
from hloserve.engine.fake_backend import FakeBackend

FOURFOLD = """
def run(inputs, call):
    once = call("scale", {"x": inputs["x"]})
    return call("scale", {"x": once["y"]})
"""

PREPROCESS = """
from hloserve import register_model

register_model(preprocess=lambda inputs: {"x": inputs["x"] + 10})
"""


def test_deadline_that_has_passed_spares_the_device(tmp_path: Path) -> None:
    """Before `run`, nothing is called; one in the future, or none, changes nothing."""
    write_scale(tmp_path)
    write_meta(tmp_path, FOURFOLD)

    async def scenario(served: Served) -> None:
        now_ns = SystemClock().now_ns()
        with pytest.raises(DeadlineExceeded):
            await served.infer("meta", {"x": rows(1)}, deadline_ns=now_ns)
        assert [] == served.executed
        later_ns = now_ns + 60 * 10**9
        outputs = await served.infer("meta", {"x": rows(1)}, deadline_ns=later_ns)
        np.testing.assert_array_equal(rows(4), outputs["y"])

    serve(tmp_path, scenario)


def _events(served: Served, name: str) -> dict[str, threading.Event]:
    hooks = served.registry.get(name).hooks
    assert hooks is not None
    assert hooks.run is not None
    return hooks.run.__globals__["events"]  # type: ignore[no-any-return]  # see HELD


def _is_deeper(served: Served, before: int) -> bool:
    return served.depth("scale") > before


def test_cancelled_request_frees_its_place_and_its_memory(tmp_path: Path) -> None:
    """Whoever waits for an answer that nobody wants is woken; the next request gets its turn."""
    write_scale(tmp_path, sizes=(1,))
    run = """
    def run(inputs, call):
        buffer = call.scratch((1, 4), np.float32)
        buffer[:] = inputs["x"]
        return call("scale", {"x": buffer})
    """
    write_meta(tmp_path, run)

    async def scenario(served: Served) -> None:
        served.hold()
        busy = asyncio.ensure_future(served.infer("scale", {"x": rows(1)}))
        await asyncio.sleep(0)
        await served.wait_running()
        gone = [served.start(InferRequest("meta", {"x": rows(1)}))[1] for _ in range(3)]
        await served.until(lambda: served.depth("scale"))
        for handle in gone:
            handle.cancel()
        assert (0, 0) == (served.depth("scale"), served.service.metas.in_flight)
        served.backend.gate.open()
        outputs = await served.infer("meta", {"x": rows(3)})
        np.testing.assert_array_equal(rows(6), outputs["y"])
        await busy
        assert 0 == served.registry.get("scale").uses.count
        assert 0 == served.service.metas.scratch_used_bytes

    metas = MetasConfig(concurrency=1, scratch_bytes=64, scratch_slots=1)
    serve(tmp_path, scenario, metas=metas)


@pytest.mark.parametrize(
    "wait",
    ["await asyncio.sleep(3600)", "await call('scale', inputs)"],
    ids=["sleeping", "calling"],
)
def test_cancelled_async_run_is_ended_wherever_it_waits(tmp_path: Path, wait: str) -> None:
    """Its task is cancelled; `finally` blocks run, and the thread is free."""
    write_scale(tmp_path, sizes=(1,))
    run = f"""
    import asyncio
    from pathlib import Path

    async def run(inputs, call):
        if inputs["x"][0, 0] == 1:
            Path(__file__).with_name("began").touch()
            {wait}
        return {{"y": inputs["x"]}}
    """
    write_meta(tmp_path, run)

    async def scenario(served: Served) -> None:
        served.hold()
        busy = asyncio.ensure_future(served.infer("scale", {"x": rows(1)}))
        await asyncio.sleep(0)
        await served.wait_running()
        _, handle = served.start(InferRequest("meta", {"x": rows(1)}))
        await served.until((tmp_path / "meta/began").exists)
        handle.cancel()
        outputs = await served.infer("meta", {"x": rows(2)})
        np.testing.assert_array_equal(rows(2), outputs["y"])
        served.backend.gate.open()
        await busy

    serve(tmp_path, scenario, metas=MetasConfig(concurrency=1))


def test_run_cannot_go_on_when_nobody_waits(tmp_path: Path) -> None:
    """A `run` that handles every exception is ended all the same."""
    write_scale(tmp_path, sizes=(1,))
    run = """
    def run(inputs, call):
        while True:
            try:
                call("scale", inputs)
            except Exception:
                pass
    """
    write_meta(tmp_path, run, "stubborn")
    write_meta(tmp_path, FOURFOLD)

    async def scenario(served: Served) -> None:
        _, handle = served.start(InferRequest("stubborn", {"x": rows(1)}))
        await served.until(lambda: served.executed)
        handle.cancel()
        outputs = await served.infer("meta", {"x": rows(1)})
        np.testing.assert_array_equal(rows(4), outputs["y"])

    serve(tmp_path, scenario, metas=MetasConfig(concurrency=1))


def test_run_that_goes_on_though_nobody_waits_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others wait for the turn that it has, so the log says who has it."""
    run = """
    import threading

    has_begun, may_return = threading.Event(), threading.Event()

    def run(inputs, call):
        has_begun.set()
        may_return.wait()
        return {"y": inputs["x"]}
    """
    write_scale(tmp_path)
    write_meta(tmp_path, run)

    def is_told() -> bool:
        return [record.msg for record in caplog.records] == ["meta_did_not_return"]

    async def scenario(served: Served) -> None:
        served.service.metas.grace_s = 0.0
        hooks = served.registry.get("meta").hooks
        assert hooks is not None
        assert hooks.run is not None
        names = hooks.run.__globals__
        _, handle = served.start(InferRequest("meta", {"x": rows(1)}))
        await served.until(names["has_begun"].is_set)
        handle.cancel()
        await served.until(is_told)
        names["may_return"].set()
        await served.infer("meta", {"x": rows(1)})

    serve(tmp_path, scenario, metas=MetasConfig(concurrency=1))

    assert is_told()


def test_calls_end_at_the_deadline_of_the_request(tmp_path: Path) -> None:
    """What `run` waits for ends with it, and the device never sees it."""
    write_scale(tmp_path, sizes=(1,))
    write_meta(tmp_path, FOURFOLD)

    async def scenario(served: Served) -> None:
        served.hold()
        busy = asyncio.ensure_future(served.infer("scale", {"x": rows(1)}))
        await asyncio.sleep(0)
        await served.wait_running()
        soon_ns = SystemClock().now_ns() + 20_000_000
        with pytest.raises(DeadlineExceeded):
            await served.infer("meta", {"x": rows(1)}, deadline_ns=soon_ns)
        assert 0 == served.depth("scale")
        served.backend.gate.open()
        await busy
        assert [(1, 4)] == served.executed

    serve(tmp_path, scenario)


HELD = """
import threading

events = {name: threading.Event() for name in ("entered", "go")}

def run(inputs, call):
    events["entered"].set()
    assert events["go"].wait(20)
    return {"y": inputs["x"]}
"""


def test_gate_holds_meta_models_and_nobody_else(tmp_path: Path) -> None:
    """While one computes, plain models and those that call none are served; a second one waits."""
    write_scale(tmp_path, files={"model.py": PREPROCESS})
    write_meta(tmp_path, HELD, "held")
    write_meta(tmp_path, FOURFOLD, "next")
    write_meta(tmp_path, "def run(inputs, call):\n    return {'y': inputs['x']}", "free", calls=())

    async def scenario(served: Served) -> None:
        held = asyncio.ensure_future(served.infer("held", {"x": rows(1)}))
        await asyncio.sleep(0)
        events = _events(served, "held")
        await asyncio.to_thread(events["entered"].wait)
        waiting = asyncio.ensure_future(served.infer("next", {"x": rows(1)}))
        np.testing.assert_array_equal(rows(22), (await served.infer("scale", {"x": rows(1)}))["y"])
        np.testing.assert_array_equal(rows(1), (await served.infer("free", {"x": rows(1)}))["y"])
        late_ns = SystemClock().now_ns() + 5_000_000
        with pytest.raises(DeadlineExceeded):
            await served.infer("next", {"x": rows(1)}, deadline_ns=late_ns)
        assert not waiting.done()
        assert 0 == served.registry.get("next").device.statistics.dispatch_count
        events["go"].set()
        np.testing.assert_array_equal(rows(1), (await held)["y"])
        np.testing.assert_array_equal(rows(2 * (22 + 10)), (await waiting)["y"])

    serve(tmp_path, scenario, metas=MetasConfig(concurrency=1))


def test_calls_go_before_requests_that_wait(tmp_path: Path) -> None:
    """Those of two meta models reach the device first, in the order of their coming."""
    seen: list[float] = []

    def note(arguments: Sequence[Array]) -> Sequence[Array]:
        seen.append(float(arguments[0][0, 0]))
        return [arguments[0]]

    write_scale(tmp_path, sizes=(1,), function="note")
    run = "def run(inputs, call):\n    return call('scale', inputs)\n"
    for name in ("first", "second"):
        write_meta(tmp_path, run, name)

    async def scenario(served: Served) -> None:
        seen.clear()  # what warmed it up
        served.hold()
        values = iter(range(10))

        def begin(model: str) -> asyncio.Future[Tensors]:
            return asyncio.ensure_future(served.infer(model, {"x": rows(next(values))}))

        answers = [begin("scale")]
        await asyncio.sleep(0)
        await served.wait_running()
        answers += [begin("scale") for _ in range(3)]
        await asyncio.sleep(0)
        for name in ("first", "second"):
            before = served.depth("scale")
            answers.append(begin(name))
            await served.until(partial(_is_deeper, served, before))
        waiting = served.depth("scale")
        served.backend.gate.open()
        await asyncio.gather(*answers)
        # Those that the device had taken already, the committed ones, the rest.
        assert [4, 5] == seen[len(seen) - waiting :][:2]
        assert list(range(6)) == sorted(seen)
        assert 0 == served.depth("scale")

    serve(tmp_path, scenario, backend=FakeBackend({"note": note}))


def test_hooks_of_sub_models_find_a_thread_while_metas_fill_theirs(tmp_path: Path) -> None:
    """More meta models at once than there are hook threads do not wait for each other."""
    write_scale(tmp_path, files={"model.py": PREPROCESS})
    write_meta(tmp_path, FOURFOLD)

    async def scenario(served: Served) -> None:
        answers = await asyncio.gather(*(served.infer("meta", {"x": rows(1)}) for _ in range(20)))
        for answer in answers:
            np.testing.assert_array_equal(rows(2 * (22 + 10)), answer["y"])

    serve(tmp_path, scenario, metas=MetasConfig(concurrency=8))


def test_thread_that_run_leaves_behind_calls_no_more(tmp_path: Path) -> None:
    """A call after the end of the request ends that thread, reaches no model and holds nothing."""
    write_scale(tmp_path)
    run = """
    kept = {}

    def run(inputs, call):
        kept["call"] = call
        return {"y": inputs["x"]}
    """
    write_meta(tmp_path, run)

    async def scenario(served: Served) -> None:
        await served.infer("meta", {"x": rows(1)})
        hooks = served.registry.get("meta").hooks
        assert hooks is not None
        assert hooks.run is not None
        call: Any = hooks.run.__globals__["kept"]["call"]
        late: list[Callable[[], object]] = [
            lambda: call("scale", {"x": rows(1)}),
            lambda: call.scratch((4,), np.float32),
        ]
        for use in late:
            with pytest.raises(BaseException, match=r"^$") as raised:
                use()
            assert not isinstance(raised.value, Exception)
        assert [] == served.executed
        assert served.service.metas.scratch_used_bytes == 0

    serve(tmp_path, scenario)
