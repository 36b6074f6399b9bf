"""The request path, from an `InferRequest` to a reply, on the fake device."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.served import Served, serve
from support.server_worker import fake_program, rows, write_scale

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.clock import SystemClock
from hloserve.core.errors import (
    BackendFailed,
    BadRequest,
    DeadlineExceeded,
    DuplicateTensor,
    HookFailed,
    InvalidInput,
    MissingTensor,
    ModelNotFound,
    ModelNotReady,
    QueueFull,
    TensorMismatch,
    TooManyInFlight,
    UnknownTensor,
)
from hloserve.core.requests import InferRequest
from hloserve.core.tensors import Tensors


def test_answers_carry_the_rows_that_were_asked(tmp_path: Path) -> None:
    """Each caller gets its own rows, whatever was batched with them."""
    write_scale(tmp_path)

    async def scenario(served: Served) -> None:
        served.hold()
        first = asyncio.ensure_future(served.infer("scale", {"x": rows(1)}))
        await asyncio.sleep(0)
        await served.wait_running()
        others = [
            asyncio.ensure_future(served.infer("scale", {"x": rows(*range(n, 2 * n))}))
            for n in (1, 2, 3)
        ]
        await asyncio.sleep(0)
        served.backend.gate.open()
        np.testing.assert_array_equal(rows(2), (await first)["y"])
        for n, other in zip((1, 2, 3), others, strict=True):
            np.testing.assert_array_equal(2 * rows(*range(n, 2 * n)), (await other)["y"])

    serve(tmp_path, scenario)


def test_request_larger_than_any_program_is_split_and_joined(tmp_path: Path) -> None:
    """More rows than the largest program holds run in several dispatches."""
    write_scale(tmp_path, sizes=(1, 4))

    async def scenario(served: Served) -> None:
        outputs = await served.infer("scale", {"x": rows(*range(11))})
        np.testing.assert_array_equal(2 * rows(*range(11)), outputs["y"])

    serve(tmp_path, scenario)


def test_request_of_no_rows_is_answered_empty_without_the_device(tmp_path: Path) -> None:
    """Zero rows in, zero rows out."""
    write_scale(tmp_path)

    async def scenario(served: Served) -> None:
        outputs = await served.infer("scale", {"x": np.zeros((0, 4), np.float32)})
        assert outputs["y"].shape == (0, 4)
        assert outputs["y"].dtype == np.float32
        assert served.registry.get("scale").device.statistics.dispatch_count == 0

    serve(tmp_path, scenario)


def test_request_of_no_rows_is_refused_when_an_output_has_none(tmp_path: Path) -> None:
    """An output without a batch axis has a value that nobody computed."""
    write_bundle(
        tmp_path / "sum",
        "sum",
        [IOSpec("x", "f32", (2, 4), batch_axis=0)],
        [IOSpec("total", "f32", ())],
        {2: fake_program("total", ["2x4xf32"], ["f32"])},
        {},
    )

    async def scenario(served: Served) -> None:
        with pytest.raises(BadRequest, match=r"no rows.*'total' has no batch axis"):
            await served.infer("sum", {"x": np.zeros((0, 4), np.float32)})
        assert (await served.infer("sum", {"x": rows(1, 2)}))["total"] == 12
        with pytest.raises(BadRequest, match="3 rows"):
            await served.infer("sum", {"x": rows(1, 2, 3)})

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("inputs", "more", "problem", "text"),
    [
        ({}, {}, MissingTensor, "input 'x' is missing"),
        ({"x": rows(1), "z": rows(1)}, {}, UnknownTensor, "input 'z'.*it has x"),
        ({"x": rows(1).astype("f8")}, {}, TensorMismatch, "'x': datatype is FP64, expected FP32"),
        ({"x": rows(1)[0]}, {}, TensorMismatch, "'x': rank is 1, expected 2"),
        ({"x": rows(1)[:, :3]}, {}, TensorMismatch, "'x': extent of axis 1 .* is 3, expected 4"),
        ({"x": rows(1)}, {"outputs": ("q",)}, UnknownTensor, "output 'q'.*it has y"),
        ({"x": rows(1)}, {"outputs": ("y", "y")}, DuplicateTensor, "output 'y'"),
        ({"x": rows(1)}, {"version": "7"}, ModelNotFound, "version '7'"),
    ],
)
def test_request_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, inputs: Tensors, more: dict[str, Any], problem: type[Exception], text: str
) -> None:
    """What is wrong is named before anything is queued."""
    write_scale(tmp_path)

    async def scenario(served: Served) -> None:
        with pytest.raises(problem, match=text):
            await served.infer("scale", inputs, **more)
        assert served.scheduler.in_flight == 0

    serve(tmp_path, scenario)


def test_unknown_and_unready_models_differ(tmp_path: Path) -> None:
    """A model that is loading or has failed is not the same as none."""
    write_scale(tmp_path)

    async def scenario(served: Served) -> None:
        served.registry.set_loading("slow")
        served.registry.set_failed("broken", "no weights")
        with pytest.raises(ModelNotFound, match="'nobody'"):
            await served.infer("nobody", {})
        with pytest.raises(ModelNotReady, match="loading"):
            await served.infer("slow", {})
        with pytest.raises(ModelNotReady, match="no weights"):
            await served.infer("broken", {})

    serve(tmp_path, scenario)


def test_deadline_is_answered_while_the_device_is_busy(tmp_path: Path) -> None:
    """A late request does not wait for the running dispatch to learn that it is late."""
    write_scale(tmp_path)

    async def scenario(served: Served) -> None:
        served.hold()
        blocked = asyncio.ensure_future(served.infer("scale", {"x": rows(1)}))
        await asyncio.sleep(0)
        deadline_ns = SystemClock().now_ns() + 30_000_000
        with pytest.raises(DeadlineExceeded):
            await served.infer("scale", {"x": rows(2)}, deadline_ns=deadline_ns)
        assert served.depth("scale") == 0
        served.backend.gate.open()
        await blocked

    serve(tmp_path, scenario)


def test_request_that_comes_late_is_not_begun(tmp_path: Path) -> None:
    """A deadline in the past is answered at once."""
    write_scale(tmp_path)

    async def scenario(served: Served) -> None:
        with pytest.raises(DeadlineExceeded):
            await served.infer("scale", {"x": rows(1)}, deadline_ns=1)

    serve(tmp_path, scenario)


def test_cancelled_request_leaves_the_queue_and_gets_no_reply(tmp_path: Path) -> None:
    """When the caller goes, its queued work goes too, and its batch mates stay."""
    write_scale(tmp_path)

    async def scenario(served: Served) -> None:
        served.hold()
        blocked = asyncio.ensure_future(served.infer("scale", {"x": rows(1)}))
        await asyncio.sleep(0)
        await served.wait_running()
        gone, handle = served.start(InferRequest("scale", {"x": rows(2)}))
        mate = asyncio.ensure_future(served.infer("scale", {"x": rows(3)}))
        await asyncio.sleep(0)
        assert served.depth("scale") == 2

        handle.cancel()
        handle.cancel()

        assert served.depth("scale") == 1
        served.backend.gate.open()
        np.testing.assert_array_equal(rows(6), (await mate)["y"])
        await blocked
        assert not gone.done()
        assert served.service.in_flight == 0

    serve(tmp_path, scenario)


def test_caps_on_queue_and_concurrency_are_named(tmp_path: Path) -> None:
    """A full queue and too many requests in flight are told apart, and end."""
    write_scale(tmp_path)

    async def scenario(served: Served) -> None:
        served.hold()
        running = [asyncio.ensure_future(served.infer("scale", {"x": rows(1)}))]
        await asyncio.sleep(0)
        await served.wait_running()
        running += [asyncio.ensure_future(served.infer("scale", {"x": rows(n)})) for n in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await served.infer("scale", {"x": rows(1)})
        running.append(asyncio.ensure_future(served.infer("scale", {"x": np.zeros((0, 4), "f4")})))
        extra = [served.start(InferRequest("scale", {"x": rows(1)}))[0] for _ in range(2)]
        for future in extra:
            with pytest.raises((QueueFull, TooManyInFlight)):
                await future
        served.backend.gate.open()
        await asyncio.gather(*running)
        assert served.service.in_flight == 0

    serve(tmp_path, scenario, max_in_flight=4, max_queue_depth=2)


HOOK = """
from hloserve import InvalidInput, register_model

def preprocess(inputs):
    x = inputs[0].array
    if x[0, 0] < 0:
        raise InvalidInput("x must not be negative")
    if x[0, 0] == 13:
        raise KeyError("unlucky")
    return {"x": x + 1}

def postprocess(outputs):
    return {"y": outputs[0].array * 10}

register_model(preprocess=preprocess, postprocess=postprocess)
"""


def test_hooks_run_around_the_device_and_fail_alone(tmp_path: Path) -> None:
    """Answers are 10 * 2(x + 1); a hook's refusal is the caller's error, its crash is ours."""
    write_scale(tmp_path, files={"model.py": HOOK})

    async def scenario(served: Served) -> None:
        good = served.infer("scale", {"x": rows(1)})
        refused = served.infer("scale", {"x": rows(-1)})
        crashed = served.infer("scale", {"x": rows(13)})
        results = await asyncio.gather(good, refused, crashed, return_exceptions=True)
        assert isinstance(results[0], dict)
        np.testing.assert_array_equal(rows(40), results[0]["y"])
        assert isinstance(results[1], InvalidInput)
        assert isinstance(results[2], HookFailed)
        assert "unlucky" in str(results[2])

    serve(tmp_path, scenario)


def test_failing_device_fails_the_request_and_nothing_else(tmp_path: Path) -> None:
    """A program that fails ends its request with an error of ours."""
    write_scale(tmp_path, "bad", function="boom")
    write_scale(tmp_path, "good")

    async def scenario(served: Served) -> None:
        with pytest.raises(BackendFailed):
            await served.infer("bad", {"x": rows(1)})
        np.testing.assert_array_equal(rows(2), (await served.infer("good", {"x": rows(1)}))["y"])

    serve(tmp_path, scenario)


def test_outcomes_are_counted_by_status(tmp_path: Path) -> None:
    """Metrics count each request once, and never under a name that a client made up."""
    write_scale(tmp_path)

    async def scenario(served: Served) -> None:
        await served.infer("scale", {"x": rows(1)})
        for name in ("scale", "made-up"):
            with pytest.raises((MissingTensor, ModelNotFound)):
                await served.infer(name, {})
        counted = {
            tuple(sample.labels.values()): sample.value
            for family in served.metrics.families()
            if family.name == "worker_requests"
            for sample in family.samples
        }
        expected = {
            ("scale", "OK"): 1,
            ("scale", "INVALID_ARGUMENT"): 1,
            ("_unknown", "NOT_FOUND"): 1,
        }
        assert expected == counted

    serve(tmp_path, scenario)


def test_request_of_no_rows_passes_the_hooks_and_spares_the_device(tmp_path: Path) -> None:
    """Hooks see zero rows like any other number of them."""
    hook = HOOK.replace("x[0, 0] < 0", "(x < 0).any()").replace("x[0, 0] == 13", "(x == 13).any()")
    write_scale(tmp_path, files={"model.py": hook})

    async def scenario(served: Served) -> None:
        outputs = await served.infer("scale", {"x": np.zeros((0, 4), np.float32)})
        assert outputs["y"].shape == (0, 4)

    serve(tmp_path, scenario)
