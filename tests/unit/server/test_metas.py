"""Meta models: what `run` may do, and what becomes of it, on the fake device."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from support.meta_bundles import write_meta
from support.served import Served, serve
from support.server_worker import rows, write_scale

from hloserve.config.schema import MetasConfig
from hloserve.core.errors import (
    Code,
    HloserveError,
    HookFailed,
    InvalidInput,
    SubCallFailed,
)

FOURFOLD = """
def run(inputs, call):
    once = call("scale", {"x": inputs["x"]})
    return call("scale", {"x": once["y"]})
"""

THRESHOLD = """
def run(inputs, call):
    y = call("scale", inputs)["y"]
    if y.sum() <= 100:
        return call("scale", {"x": y})
    return {"y": y + 1}
"""


def test_run_calls_models_depending_on_what_they_answer(tmp_path: Path) -> None:
    """Small sums are doubled again, large ones get one more."""
    write_scale(tmp_path)
    write_meta(tmp_path, THRESHOLD)

    async def scenario(served: Served) -> None:
        small = await served.infer("meta", {"x": np.array([[1, 2, 3, 4]], np.float32)})
        large = await served.infer("meta", {"x": rows(40)})
        np.testing.assert_array_equal([[4, 8, 12, 16]], small["y"])
        np.testing.assert_array_equal(rows(81), large["y"])

    serve(tmp_path, scenario)


ASYNC = """
import asyncio

async def run(inputs, call):
    first, second = await asyncio.gather(
        call("scale", {"x": inputs["x"]}), call("scale", {"x": inputs["x"] + 1})
    )
    both = await call.map("scale", [{"x": first["y"]}, {"x": second["y"]}])
    assert await call.map("scale", []) == []
    return {"y": both[0]["y"] + both[1]["y"]}
"""


ASYNC_OBJECT = (
    ASYNC.replace("run(inputs", "answer(self, inputs")
    + """
class Pipeline:
    __call__ = answer

run = Pipeline()
"""
)


@pytest.mark.parametrize("run", [ASYNC, ASYNC_OBJECT], ids=["function", "object"])
def test_run_may_be_async(tmp_path: Path, run: str) -> None:
    """Its calls are awaited, several at once; an object whose `__call__` is async is no other."""
    write_scale(tmp_path)
    write_meta(tmp_path, run)

    async def scenario(served: Served) -> None:
        outputs = await served.infer("meta", {"x": rows(1)})
        np.testing.assert_array_equal(rows(4 + 8), outputs["y"])

    serve(tmp_path, scenario)


MAP = """
def run(inputs, call):
    assert call.map("scale", []) == []
    answers = call.map("scale", [{"x": inputs["x"] + n} for n in range(4)])
    return {"y": np.concatenate([answer["y"] for answer in answers])}
"""

GATHER = """
import asyncio

async def run(inputs, call):
    answers = await asyncio.gather(*(call("scale", {"x": inputs["x"] + n}) for n in range(4)))
    return {"y": np.concatenate([answer["y"] for answer in answers])}
"""

PREPROCESS = """
from hloserve import register_model

register_model(preprocess=lambda inputs: {"x": inputs["x"] + 10})
"""


@pytest.mark.parametrize("run", [MAP, GATHER], ids=["map", "gather"])
@pytest.mark.parametrize("has_hook", [False, True], ids=["plain", "with a hook"])
def test_calls_made_at_once_share_a_batch(tmp_path: Path, run: str, has_hook: bool) -> None:
    """Four calls of one row are one execution of four, also when each has a hook first."""
    write_scale(tmp_path, files={"model.py": PREPROCESS} if has_hook else {})
    write_meta(tmp_path, run)

    async def scenario(served: Served) -> None:
        outputs = await served.infer("meta", {"x": rows(1)})
        added = 10 if has_hook else 0
        np.testing.assert_array_equal(2 * (rows(1, 2, 3, 4) + added), outputs["y"])
        assert [(4, 4)] == served.executed

    serve(tmp_path, scenario)


THREADS = """
from concurrent.futures import ThreadPoolExecutor

def run(inputs, call):
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda n: call("scale", {"x": inputs["x"] + n}), range(3)))
    return {"y": np.concatenate([answer["y"] for answer in answers])}
"""


def test_run_may_call_from_several_threads(tmp_path: Path) -> None:
    """Each call waits on the thread that made it."""
    write_scale(tmp_path)
    write_meta(tmp_path, THREADS)

    async def scenario(served: Served) -> None:
        outputs = await served.infer("meta", {"x": rows(1)})
        np.testing.assert_array_equal(rows(2, 4, 6), outputs["y"])

    serve(tmp_path, scenario)


def test_inputs_and_answers_belong_to_run(tmp_path: Path) -> None:
    """It may write into both, give either form of named arrays, and ask for some outputs only."""
    write_scale(tmp_path)
    run = """
    from hloserve import NamedTensor

    def run(inputs, call):
        inputs["x"][:] += 1
        (answer,) = call("scale", [NamedTensor("x", inputs["x"][:, ::1])], ["y"])
        answer.array[0, 0] = -1
        strided = np.zeros((1, 8), np.dtype(">f4"))
        strided[:, ::2] = answer.array
        return [("y", call("scale", {"x": strided[:, ::2]})["y"])]
    """
    write_meta(tmp_path, run)

    async def scenario(served: Served) -> None:
        sent = rows(1)
        outputs = await served.infer("meta", {"x": sent})
        np.testing.assert_array_equal([[-2, 8, 8, 8]], outputs["y"])
        np.testing.assert_array_equal(rows(1), sent)

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('call("other", inputs)', r"model\.py:\d+: ValueError: model 'other' is not declared in"),
        ('call("scale", inputs["x"])', r"inputs of the call to 'scale' are a ndarray, expected"),
        ('call("scale", {"x": [1.0]})', r"input 'x' of the call to 'scale' is a list, expected"),
        ('call("scale", [("x", 1), ("x", 2)])', r"input 'x' of the call to 'scale' is a int"),
        ('call("scale", {3: inputs["x"]})', r"the call to 'scale' has 3 twice, or as no string"),
        ("1 / 0", r"model\.py:\d+: ZeroDivisionError"),
        ("raise SystemExit(3)", r"model\.py:\d+: SystemExit: 3"),
        ("return inputs['x']", r"it returned a value of type ndarray, expected a dict of arrays"),
        ("return {'z': inputs['x']}", r"it must return 'y', it returned 'z'"),
        ("return {'y': inputs['x'].astype(int)}", r"tensor 'y': dtype is int64, expected float32"),
        ("call.scratch(4, 'f4'); call.scratch(4, 'f4')", r"call\.scratch was used before"),
        ("call.scratch((2**40,), 'f4')", r"metas\.scratch_bytes"),
        ("call.scratch(0, 'f4')", r"0 bytes of scratch memory"),
        ("call.scratch((-1,), 'f4')", r"extents must not be negative"),
        ("call.scratch(4, object)", r"scratch memory holds numbers, not object"),
    ],
)
def test_fault_of_the_author_names_the_line(tmp_path: Path, body: str, text: str) -> None:
    """It is no fault of the caller: the status is INTERNAL, and the log has the text."""
    write_scale(tmp_path)
    write_meta(tmp_path, f"def run(inputs, call):\n    {body}\n")

    async def scenario(served: Served) -> None:
        with pytest.raises(HookFailed, match=f"run hook of model 'meta' failed: .*{text}"):
            await served.infer("meta", {"x": rows(1)})

    serve(tmp_path, scenario)


def test_run_may_refuse_the_input(tmp_path: Path) -> None:
    """`InvalidInput` reaches the caller as it is."""
    write_meta(tmp_path, "def run(inputs, call):\n    raise InvalidInput('too dark')\n", calls=())

    async def scenario(served: Served) -> None:
        with pytest.raises(InvalidInput, match=r"^too dark$"):
            await served.infer("meta", {"x": rows(1)})

    serve(tmp_path, scenario)


REFUSING = """
from hloserve import InvalidInput, register_model

def preprocess(inputs):
    raise InvalidInput("too dark")

register_model(preprocess=preprocess)
"""

CRASHING = """
from hloserve import register_model

register_model(preprocess=lambda inputs: 1 / 0)
"""


@pytest.mark.parametrize(
    ("scale", "inputs", "code", "text"),
    [
        ({}, "{'x': inputs['x'].astype(int)}", Code.INTERNAL, "input 'x': datatype is INT64"),
        ({}, "{'z': inputs['x']}", Code.INTERNAL, "input 'x' is missing"),
        ({"files": {"model.py": REFUSING}}, "inputs", Code.INVALID_ARGUMENT, "too dark"),
        ({"files": {"model.py": CRASHING}}, "inputs", Code.INTERNAL, "ZeroDivisionError"),
        ({"function": "boom"}, "inputs", Code.INTERNAL, "boom"),
        (None, "inputs", Code.FAILED_PRECONDITION, "model 'scale' is not served here"),
    ],
    ids=["dtype", "name", "refused", "hook", "device", "missing"],
)
def test_failed_call_names_the_stage(
    tmp_path: Path, scale: dict[str, object] | None, inputs: str, code: Code, text: str
) -> None:
    """The caller is told who called whom; whose fault it is decides the status."""
    if scale is not None:
        write_scale(tmp_path, **scale)  # type: ignore[arg-type]  # any of its arguments
    write_meta(tmp_path, f"def run(inputs, call):\n    return call('scale', {inputs})\n")

    async def scenario(served: Served) -> None:
        with pytest.raises(SubCallFailed, match=f"^meta 'meta': call to 'scale': .*{text}") as told:
            await served.infer("meta", {"x": rows(1)})
        assert code is told.value.code
        assert isinstance(told.value.__cause__, HloserveError)

    serve(tmp_path, scenario)


def test_run_may_handle_a_failed_call(tmp_path: Path) -> None:
    """It goes on with something else, and may ask what went wrong."""
    write_scale(tmp_path, function="boom")
    run = """
    from hloserve import HloserveError

    def run(inputs, call):
        try:
            return call("scale", inputs)
        except HloserveError as error:
            assert error.code.value == "INTERNAL"
            return {"y": inputs["x"]}
    """
    write_meta(tmp_path, run)

    async def scenario(served: Served) -> None:
        outputs = await served.infer("meta", {"x": rows(1)})
        np.testing.assert_array_equal(rows(1), outputs["y"])

    serve(tmp_path, scenario)


def test_one_failed_call_of_many_withdraws_the_others(tmp_path: Path) -> None:
    """The message has its number; nothing is left in the queue."""
    write_scale(tmp_path)
    run = """
    def run(inputs, call):
        return call.map("scale", [inputs, inputs, {"x": inputs["x"].astype(int)}])[0]
    """
    write_meta(tmp_path, run)

    async def scenario(served: Served) -> None:
        text = r"call to 'scale' \(number 3 of 3\): input 'x': datatype"
        with pytest.raises(SubCallFailed, match=text):
            await served.infer("meta", {"x": rows(1)})
        assert 0 == served.depth("scale")
        assert [] == served.executed

    serve(tmp_path, scenario)


def test_full_queue_is_told_as_such(tmp_path: Path) -> None:
    """The caller may come again, as of any full queue."""
    write_scale(tmp_path, sizes=(1,))
    run = """
    def run(inputs, call):
        return call.map("scale", [inputs, inputs])[0]
    """
    write_meta(tmp_path, run)

    async def scenario(served: Served) -> None:
        served.hold()
        first = asyncio.ensure_future(served.infer("scale", {"x": rows(1)}))
        await asyncio.sleep(0)
        await served.wait_running()
        second = asyncio.ensure_future(served.infer("scale", {"x": rows(1)}))
        await asyncio.sleep(0)
        with pytest.raises(SubCallFailed, match="queue of model 'scale' is full") as told:
            await served.infer("meta", {"x": rows(1)})
        assert (Code.RESOURCE_EXHAUSTED, True) == (told.value.code, told.value.retryable)
        served.backend.gate.open()
        await asyncio.gather(first, second)

    serve(tmp_path, scenario, max_queue_depth=1)


def test_counters_of_a_meta_model(tmp_path: Path) -> None:
    """One request is one row; only what succeeds counts; time in calls is its compute."""
    write_scale(tmp_path)
    write_meta(tmp_path, THRESHOLD)

    async def scenario(served: Served) -> None:
        await served.infer("meta", {"x": rows(40)})
        with pytest.raises(HloserveError):
            await served.infer("meta", {"x": rows(40, 1, 2, 3).astype(int)})
        meta = served.registry.get("meta")
        statistics = meta.device.statistics
        assert (1, 1, 1) == (
            statistics.dispatch_count,
            statistics.requests_served,
            statistics.rows_served,
        )
        assert statistics.compute_ns > 0
        assert 1 == len(statistics.waits_ns())
        assert (0, False) == (meta.device.effective_max_batch_size, meta.device.has_batch_axis)
        assert 0 == served.service.metas.in_flight

    serve(tmp_path, scenario)


HELD_BETWEEN = """
import threading

events = {name: threading.Event() for name in ("entered", "go")}

def run(inputs, call):
    once = call("scale", inputs)
    events["entered"].set()
    assert events["go"].wait(20)
    return call("scale", {"x": once["y"]})
"""


def _events(served: Served, name: str) -> dict[str, threading.Event]:
    hooks = served.registry.get(name).hooks
    assert hooks is not None
    assert hooks.run is not None
    return hooks.run.__globals__["events"]  # type: ignore[no-any-return]  # see HELD


def test_each_answer_of_a_run_comes_from_the_same_generation(tmp_path: Path) -> None:
    """A sub-model that is reloaded between two calls still answers the second."""
    write_scale(tmp_path)
    write_meta(tmp_path, HELD_BETWEEN)

    async def scenario(served: Served) -> None:
        running = asyncio.ensure_future(served.infer("meta", {"x": rows(1)}))
        await asyncio.sleep(0)
        events = _events(served, "meta")
        await asyncio.to_thread(events["entered"].wait)
        old = served.registry.get("scale")
        write_scale(tmp_path, function="first", overwrite=True)
        served.load(tmp_path / "scale")
        events["go"].set()
        np.testing.assert_array_equal(rows(4), (await running)["y"])
        np.testing.assert_array_equal(rows(1), (await served.infer("meta", {"x": rows(1)}))["y"])
        assert 0 == old.uses.count

    serve(tmp_path, scenario)


def test_removed_sub_model_fails_the_requests_that_come_then(tmp_path: Path) -> None:
    """One that was running goes on; the next is told which model is gone."""
    write_scale(tmp_path)
    write_meta(tmp_path, FOURFOLD)

    async def scenario(served: Served) -> None:
        served.hold()
        running = asyncio.ensure_future(served.infer("meta", {"x": rows(1)}))
        await served.wait_running()
        served.retire(served.registry.remove("scale"))
        served.backend.gate.open()
        np.testing.assert_array_equal(rows(4), (await running)["y"])
        with pytest.raises(SubCallFailed, match="call to 'scale': model 'scale'") as told:
            await served.infer("meta", {"x": rows(1)})
        assert Code.FAILED_PRECONDITION is told.value.code

    serve(tmp_path, scenario)


def test_meta_model_does_not_call_another(tmp_path: Path) -> None:
    """Even if both serve: the call fails, and names it."""
    write_meta(tmp_path, "def run(inputs, call):\n    return {'y': inputs['x']}\n", "b", calls=())
    write_meta(
        tmp_path, "def run(inputs, call):\n    return call('b', inputs)\n", "a", calls=("b",)
    )

    async def scenario(served: Served) -> None:
        with pytest.raises(SubCallFailed, match="call to 'b': 'b' is a meta model itself") as told:
            await served.infer("a", {"x": rows(1)})
        assert Code.FAILED_PRECONDITION is told.value.code

    serve(tmp_path, scenario)


SCRATCH = """
def run(inputs, call):
    both, counts = call.scratch([((2, 4), np.float32), (3, "int64")])
    assert (both.shape, both.dtype, counts.shape, counts.dtype) == (
        (2, 4), np.float32, (3,), np.int64
    )
    both[0] = inputs["x"][0]
    both[1] = call("scale", {"x": both[:1]})["y"][0]
    counts[:] = 1
    return {"y": both[1:]}
"""


@pytest.mark.parametrize("scratch_bytes", [0, 4096])
def test_scratch_memory_holds_what_run_works_with(tmp_path: Path, scratch_bytes: int) -> None:
    """From the pool or not, the result is the same, and what is returned outlives the request."""
    write_scale(tmp_path)
    write_meta(tmp_path, SCRATCH)

    async def scenario(served: Served) -> None:
        outputs = [await served.infer("meta", {"x": rows(n)}) for n in range(3)]
        for n, each in enumerate(outputs):
            np.testing.assert_array_equal(rows(2 * n), each["y"])
        assert 0 == served.service.metas.scratch_used_bytes

    metas = MetasConfig(scratch_bytes=scratch_bytes, scratch_slots=2)
    serve(tmp_path, scenario, metas=metas)
