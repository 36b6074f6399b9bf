"""Meta models, plain models and hooks mixed, with callers that leave: nothing waits for itself.

`META_REQUESTS` sets how many requests there are; 100,000 take some minutes.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from support.meta_bundles import write_meta
from support.served import Served, serve
from support.server_worker import rows, write_scale

from hloserve.config.schema import MetasConfig
from hloserve.core.clock import SystemClock
from hloserve.core.errors import Code, HloserveError
from hloserve.core.requests import NEVER_NS, InferRequest, InferResponse
from hloserve.core.tensors import Array

pytestmark = pytest.mark.stress

REQUESTS = int(os.environ.get("META_REQUESTS", "3000"))
AT_ONCE = 48
CHANGES = 15

HOOKS = """
from hloserve import InvalidInput, register_model

def preprocess(inputs):
    if inputs["x"][0, 0] < 0:
        raise InvalidInput("negative")
    return {"x": inputs["x"] + 1}

register_model(preprocess=preprocess, postprocess=lambda outputs: {"y": outputs["y"] + 1})
"""

RUNS = {
    "chain": """
        def run(inputs, call):
            return {"y": call("hooked", {"x": call("scale", inputs)["y"]})["y"]}
        """,
    "fan": """
        def run(inputs, call):
            answers = call.map("hooked", [inputs] * 5)
            return {"y": sum(answer["y"] for answer in answers)}
        """,
    "gather": """
        import asyncio

        async def run(inputs, call):
            first, second = await asyncio.gather(call("scale", inputs), call("hooked", inputs))
            return {"y": first["y"] + second["y"]}
        """,
    "scratch": """
        def run(inputs, call):
            buffer = call.scratch(inputs["x"].shape, np.float32)
            buffer[:] = inputs["x"]
            buffer[:] = call("scale", {"x": buffer})["y"]
            return {"y": buffer}
        """,
}
COMPUTE = """
    def run(inputs, call):
        buffer = call.scratch((32,), np.float32)
        return {"y": inputs["x"] * 3}
    """
ANSWERS: dict[str, Callable[[Array], Array]] = {
    "scale": lambda x: 2 * x,
    "hooked": lambda x: 2 * (x + 1) + 1,
    "chain": lambda x: 2 * (2 * x + 1) + 1,
    "fan": lambda x: 5 * (2 * (x + 1) + 1),
    "gather": lambda x: 2 * x + 2 * (x + 1) + 1,
    "scratch": lambda x: 2 * x,
    "compute": lambda x: 3 * x,
}


def _write_models(repository: Path) -> None:
    write_scale(repository)
    write_scale(repository, "hooked", files={"model.py": HOOKS})
    for name, run in RUNS.items():
        write_meta(repository, run, name, calls=("scale", "hooked"))
    write_meta(repository, COMPUTE, "compute", calls=())


async def _one(served: Served, random: Random) -> str:
    """Send one request, perhaps leave before its answer; what became of it."""
    name = random.choice(list(ANSWERS))
    value = random.randint(-1, 100)
    deadline_ns = NEVER_NS
    if random.random() < 0.1:
        deadline_ns = SystemClock().now_ns() + random.randint(0, 3_000_000)
    sent = rows(*[value] * random.randint(1, 3))
    answer, handle = served.start(InferRequest(name, {"x": sent}, deadline_ns=deadline_ns))
    if random.random() < 0.25:
        for _ in range(random.randint(0, 10)):
            await asyncio.sleep(0)
        if not answer.done():
            handle.cancel()
            return "cancelled"
    (result,) = await asyncio.gather(answer, return_exceptions=True)
    if isinstance(result, HloserveError):
        if result.code is Code.DEADLINE_EXCEEDED:
            assert deadline_ns != NEVER_NS
            return "late"
        assert (True, Code.INVALID_ARGUMENT) == (value < 0, result.code), result
        return "refused"
    assert isinstance(result, InferResponse), result
    np.testing.assert_array_equal(ANSWERS[name](sent), result.outputs["y"])
    return "answered"


def _has_come_to(outcomes: Counter[str], enough: int) -> bool:
    return sum(outcomes.values()) >= enough


@pytest.mark.timeout(3600)
def test_mixed_requests_never_wait_for_each_other(tmp_path: Path) -> None:
    """Whoever stays is answered rightly, nothing is left behind, and models change meanwhile."""
    _write_models(tmp_path)
    outcomes: Counter[str] = Counter()
    total = REQUESTS // AT_ONCE * AT_ONCE

    async def client(served: Served, number: int) -> None:
        random = Random(number)
        for _ in range(REQUESTS // AT_ONCE):
            outcomes[await _one(served, random)] += 1

    async def change(served: Served) -> None:
        for step in range(1, CHANGES + 1):
            enough = step * total // (CHANGES + 1)
            await served.until(partial(_has_come_to, outcomes, enough))
            served.load(tmp_path / ("scale", "hooked", "fan")[step % 3])

    async def scenario(served: Served) -> None:
        changes = asyncio.ensure_future(change(served))
        await asyncio.gather(*(client(served, number) for number in range(AT_ONCE)))
        await changes
        models = served.registry.models()
        await served.until(lambda: not served.service.metas.scratch_used_bytes)
        assert {0} == {model.uses.count for model in models}
        assert {0} == {served.scheduler.depth(model.device) for model in models}
        assert (0, 0) == (served.service.in_flight, served.service.metas.in_flight)

    metas = MetasConfig(concurrency=3, scratch_bytes=2048, scratch_slots=4)
    serve(tmp_path, scenario, metas=metas)

    assert total == sum(outcomes.values())
    assert {"answered", "cancelled", "late", "refused"} == set(outcomes), outcomes
