"""How much of a saturated device is left to programs: batches of 2 ms and more against a bare loop.

    python -m benchmarks.saturation [--rounds 15] [--seconds 0.5] [--layers 1 2 6] [--threads 1 2]

The bare loop transfers, executes and fetches one batch after the other on the synchronous device
and does nothing else. The served side is the scheduler and the dispatcher of a worker on the same
program, driven in the same process: a loop that answers each reply with the next request, without
network and codecs, so that the load takes as little of the shared cores as can be. All take turns,
and two figures are given: the rate of batches over that of the bare loop, and the share of the time
in which the device has something to compute.

The device is as many threads as `--threads` says. With fewer than there are cores it has its cores
to itself, as an accelerator has, and so has the engine; with all of them, each takes time from the
other, which shows in the rate and not in the share.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from typing_extensions import override

from hloserve.core.clock import SystemClock
from hloserve.core.dtypes import F32
from hloserve.core.tensors import Array, Axis, AxisKind, TensorSpec
from hloserve.engine.assembly import StagingArea
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.dispatcher import Dispatcher
from hloserve.engine.scheduling.discipline import Fifo
from hloserve.engine.scheduling.queued_request import QueuedRequest
from hloserve.engine.scheduling.scheduler import Scheduler
from hloserve.engine.xla_backend import XlaBackend

_ROWS, _WIDTH = 64, 1024


def program_text(layers: int) -> str:
    """StableHLO of `layers` matrix products of 1,024, each followed by tanh, for 64 rows."""
    x, w = f"tensor<{_ROWS}x{_WIDTH}xf32>", f"tensor<{_WIDTH}x{_WIDTH}xf32>"
    arguments = ", ".join(f"%w{layer}: {w}" for layer in range(layers))
    lines = [f"module @wide {{ func.func public @main(%x0: {x}, {arguments}) -> {x} {{"]
    for layer in range(layers):
        lines += [
            f"%y{layer} = stablehlo.dot_general %x{layer}, %w{layer}, contracting_dims = [1] x [0]"
            f" : ({x}, {w}) -> {x}",
            f"%x{layer + 1} = stablehlo.tanh %y{layer} : {x}",
        ]
    return "\n".join([*lines, f"return %x{layers} : {x} }} }}"])


class Side:
    """One of the two: a device and a model on it."""

    def __init__(self, layers: int, threads: int, *, runs_ahead: bool) -> None:
        self.backend = XlaBackend("cpu", runs_ahead=runs_ahead, cpu_threads=threads)
        program = self.backend.read_program(program_text(layers).encode(), "wide.mlir")
        self.executable = self.backend.compile(program, "wide")
        generator = np.random.default_rng(0)
        shape = (_WIDTH, _WIDTH)
        self._arrays = [
            generator.standard_normal(shape).astype("float32") / 32 for _ in range(layers)
        ]
        self.weights = self.backend.to_device(self._arrays)


class BareLoop(Side):
    """Batch after batch of the same rows."""

    def run(self, seconds: float) -> tuple[float, float]:
        """Batches a second, and the share of the time in which the device computes: all of it."""
        backend = self.backend
        staged = StagingArea().take((_ROWS, _WIDTH), np.dtype(np.float32))
        staged[...] = 0.5
        batches, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            inputs = backend.to_device([staged])
            results = backend.execute(self.executable, [*inputs, *self.weights])
            backend.to_host(results)
            backend.free([*inputs, *results])
            batches += 1
        return batches / (time.perf_counter() - began), 1.0


class _LoadedRequest(QueuedRequest):
    """A request that reports its answer, so that the next one is sent."""

    __slots__ = ("answered",)

    answered: "list[_LoadedRequest]"

    @override
    def resolve(self, value: list[Array]) -> None:
        """Take the answer."""
        super().resolve(value)
        self.answered.append(self)


class Served(Side):
    """The engine of a worker, with as many requests in flight as fill two batches."""

    def __init__(self, layers: int, threads: int, rows: int, *, runs_ahead: bool) -> None:
        super().__init__(layers, threads, runs_ahead=runs_ahead)
        axes = (Axis("n", AxisKind.BATCH), Axis("c", AxisKind.FIXED, _WIDTH))
        self._model = DeviceModel(
            "wide",
            (TensorSpec("x", F32, axes),),
            (TensorSpec("y", F32, axes),),
            {(): {_ROWS: self.executable}},
            self.weights,
        )
        self._rows = rows
        self._callers = 2 * _ROWS // rows
        self._row = np.full((rows, _WIDTH), 0.5, np.float32)
        self._in_flight = 2 if runs_ahead else 1

    def run(self, seconds: float) -> tuple[float, float]:
        """Batches a second, and the share of the time in which the device computed."""
        clock = SystemClock()
        posted: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        scheduler = Scheduler(clock, Fifo(), 1024)
        scheduler.add(self._model)
        dispatcher = Dispatcher(
            self.backend,
            scheduler,
            clock,
            lambda callback, *arguments: posted.put((callback, arguments)),
            in_flight=self._in_flight,
        )
        answered: list[_LoadedRequest] = []
        self._send(scheduler, answered, self._callers)
        dispatcher.start()
        statistics_ = self._model.statistics
        before = statistics_.dispatch_count, statistics_.compute_ns
        began = time.perf_counter()
        while (took_s := time.perf_counter() - began) < seconds:
            callback, arguments = posted.get()
            callback(*arguments)
            count = len(answered)
            answered.clear()
            self._send(scheduler, answered, count)
        batches = statistics_.dispatch_count - before[0]
        compute_s = (statistics_.compute_ns - before[1]) / 1e9
        scheduler.stop()
        dispatcher.join()
        return batches / took_s, compute_s / took_s

    def _send(self, scheduler: Scheduler, answered: list[_LoadedRequest], count: int) -> None:
        for _ in range(count):
            request = _LoadedRequest(self._model, [self._row], self._rows)
            request.answered = answered
            scheduler.submit([request])


@dataclass(frozen=True, slots=True)
class Record:
    """Medians of one load; `rate_ratio` is the median of the rounds' ratios."""

    threads: int
    device: str
    rows_per_request: int
    batch_ms: float
    rate_ratio: float
    busy_fraction: float


def measure(layers: int, threads: int, rows: int, rounds: int, seconds: float) -> list[Record]:
    """Let the bare loop and the engine on both kinds of CPU devices take turns."""
    bare = BareLoop(layers, threads, runs_ahead=False)
    served = {ahead: Served(layers, threads, rows, runs_ahead=ahead) for ahead in (False, True)}
    loops: list[float] = []
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(rounds + 1):
        rate, _ = bare.run(seconds)
        turns = {ahead: side.run(seconds) for ahead, side in served.items()}
        if number:  # the first is the warm-up
            loops.append(rate)
            for ahead, turn in turns.items():
                found[ahead].append(turn)
    return [
        Record(
            threads,
            "runs ahead, 2 in flight" if ahead else "synchronous, 1 in flight",
            rows,
            _median([1e3 / rate for rate in loops]),
            _median([ours / rate for (ours, _), rate in zip(turns, loops, strict=True)]),
            _median([busy for _, busy in turns]),
        )
        for ahead, turns in found.items()
    ]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def main() -> None:
    """Run, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saturation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    cores = sorted({max(1, (os.cpu_count() or 1) - 1), os.cpu_count() or 1})
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 6], help="of the program")
    parser.add_argument("--threads", type=int, nargs="+", default=cores, help="of the device")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/saturation.json"))
    options = parser.parse_args()
    records = []
    print(
        f"{'threads':<9}{'CPU device':<26}{'rows/request':>13}{'bare loop ms':>14}"
        f"{'rate ratio':>12}{'busy':>8}"
    )
    for threads, layers, rows in product(options.threads, options.layers, (1, 8, 64)):
        for record in measure(layers, threads, rows, options.rounds, options.seconds):
            records.append(record)
            print(
                f"{record.threads:<9}{record.device:<26}{record.rows_per_request:>13}"
                f"{record.batch_ms:>14.2f}{record.rate_ratio:>12.3f}{record.busy_fraction:>8.1%}",
                flush=True,
            )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "cpus": os.cpu_count()}
    document = {"machine": machine, "results": [asdict(record) for record in records]}
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
