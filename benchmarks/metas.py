"""What meta models leave of the device: `python -m benchmarks.metas`.

Two heavy meta models and plain traffic, on a device that takes 3 ms per batch and does nothing
else, so that the figures do not depend on how the machine's cores are shared out: the share of the
time in which the device was busy, with plain traffic alone and with all of it, in turns. In one
process, without sockets.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hloserve import IOSpec, write_bundle, write_meta_bundle
from hloserve.config.schema import MetasConfig, SharedMemoryConfig
from hloserve.core.clock import SystemClock
from hloserve.core.requests import InferRequest, InferResponse
from hloserve.core.tensors import Array
from hloserve.engine.dispatcher import Dispatcher
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.discipline import Fifo
from hloserve.engine.scheduling.scheduler import Scheduler
from hloserve.models.loader import load_model
from hloserve.models.registry import Registry
from hloserve.models.task_threads import TaskThreads
from hloserve.server.inference import InferenceService
from hloserve.server.metas import build_meta_threads
from hloserve.server.metrics import RequestMetrics
from hloserve.server.shared_memory import SharedMemory

__all__ = ["main"]

BATCH_S = 0.003
SIZES = (1, 2, 4, 8)
RUN = """
import numpy as np
from hloserve import register_meta_model


def run(inputs, call):
    regions = call.scratch((8, *inputs["x"].shape), np.float32)
    features = call("stage1", inputs)["y"]
    for place in range(len(regions)):
        regions[place] = np.sort(features, axis=1)  # the glue
    found = call.map("stage2", [{"x": region} for region in regions])
    return {"y": np.mean([each["y"] for each in found], axis=0)}


register_meta_model(run=run)
"""


def write_models(root: Path) -> None:
    """A plain model, two stages, and two meta models over them."""
    x, y = (IOSpec(name, "f32", (1, 256), batch_axis=0) for name in "xy")
    for name in ("plain", "stage1", "stage2"):
        kinds = {n: [f"tensor<{n}x256xf32>"] for n in SIZES}
        programs = {
            n: json.dumps({"function": "slow", "inputs": kind, "outputs": kind})
            for n, kind in kinds.items()
        }
        write_bundle(root / name, name, [x], [y], programs, {})
    for name in ("meta1", "meta2"):
        write_meta_bundle(root / name, name, ["stage1", "stage2"], [x], [y], RUN)


class Bench:
    """The request path over such a device."""

    def __init__(self, root: Path) -> None:
        self.busy_s = 0.0
        post, clock = asyncio.get_running_loop().call_soon_threadsafe, SystemClock()
        backend = FakeBackend({"slow": self._compute})
        registry, self._scheduler = Registry(), Scheduler(clock, Fifo(), 4096)
        self._threads = TaskThreads(2, post)
        self._meta_threads = build_meta_threads(MetasConfig(), 2, post)
        self.service = InferenceService(
            registry=registry,
            scheduler=self._scheduler,
            hook_threads=self._threads,
            meta_threads=self._meta_threads,
            metrics=RequestMetrics(),
            shared_memory=SharedMemory(SharedMemoryConfig(), clock, post),
            clock=clock,
            max_in_flight=0,
        )
        for bundle in sorted(root.iterdir()):
            model = load_model(bundle, backend)
            if not model.is_meta:
                self._scheduler.add(model.device)
            registry.set_ready(model)
        self._dispatcher = Dispatcher(backend, self._scheduler, clock, post)
        self._dispatcher.start()

    def _compute(self, arguments: Sequence[Array]) -> Sequence[Array]:
        started = time.perf_counter()
        time.sleep(BATCH_S)
        self.busy_s += time.perf_counter() - started
        return [arguments[0]]

    def close(self) -> None:
        """End the threads."""
        self._scheduler.stop()
        self._dispatcher.join(10)
        self._threads.close()
        self._meta_threads.close()

    async def infer(self, model: str, rows: int) -> None:
        """Serve one request."""
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def reply(response: InferResponse | None, error: Exception | None) -> None:
            if response is None:
                answer.set_exception(error or RuntimeError("no answer"))
            else:
                answer.set_result(response)

        x = np.ones((rows, 256), np.float32)
        self.service.start(InferRequest(model, {"x": x}), reply)
        await answer


async def measure(bench: Bench, clients: dict[str, int], seconds: float) -> dict[str, float]:
    """Let closed-loop clients run, so many per model; rates, and the share of busy time."""
    counts = dict.fromkeys(clients, 0)
    latencies_s: list[float] = []
    until = time.perf_counter() + seconds

    async def client(model: str) -> None:
        while (started := time.perf_counter()) < until:
            await bench.infer(model, 1)
            counts[model] += 1
            if model == "plain":
                latencies_s.append(time.perf_counter() - started)

    busy_s, started = bench.busy_s, time.perf_counter()
    await asyncio.gather(*(client(name) for name, many in clients.items() for _ in range(many)))
    elapsed_s = time.perf_counter() - started
    rates = {f"{name}_per_s": count / elapsed_s for name, count in counts.items()}
    return {
        "device_busy": (bench.busy_s - busy_s) / elapsed_s,
        "plain_median_s": statistics.median(latencies_s),
        **rates,
    }


async def _run(rounds: int, seconds: float) -> dict[str, Any]:
    loads: dict[str, dict[str, int]] = {
        "plain": {"plain": 32},
        "plain and metas": {"plain": 32, "meta1": 4, "meta2": 4},
        "metas": {"plain": 1, "meta1": 4, "meta2": 4},
    }
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in loads}
    with tempfile.TemporaryDirectory() as directory:
        write_models(Path(directory))
        bench = Bench(Path(directory))
        for _ in range(rounds):
            for name, clients in loads.items():
                figures[name].append(await measure(bench, clients, seconds))
        bench.close()
    return {name: _medians(measured) for name, measured in figures.items()}


def _medians(measured: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(each[key] for each in measured), 4) for key in measured[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    json.dump(asyncio.run(_run(options.rounds, options.seconds)), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
