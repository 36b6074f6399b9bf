"""Meta models: what `run` may do, and what becomes of it, on the fake device."""

from pathlib import Path

import numpy as np
from support.meta_bundles import write_meta
from support.served import Served, serve
from support.server_worker import rows, write_scale

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
    return {"y": both[0]["y"] + both[1]["y"]}
"""


def test_run_may_be_async(tmp_path: Path) -> None:
    """Its calls are awaited, several at once."""
    write_scale(tmp_path)
    write_meta(tmp_path, ASYNC)

    async def scenario(served: Served) -> None:
        outputs = await served.infer("meta", {"x": rows(1)})
        np.testing.assert_array_equal(rows(4 + 8), outputs["y"])

    serve(tmp_path, scenario)
