"""What weights cost to load: `python -m benchmarks.weights`.

Reading them from the page cache into the memory of the host, against a plain `readinto` of the same
file; a load for a request that finds its weights evicted, and the line that fits it; and what a
lease costs when they are there. Ways take turns; figures are medians, and of one run compare with
each other only.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from hloserve.bundle.weights import WeightsFile
from hloserve.bundle.weights_writing import Layout, plan_weights
from hloserve.core.clock import SystemClock
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.budget import MemoryLimits
from hloserve.engine.residency.host_weights import HostStore, PrivateStore, WeightsSource
from hloserve.engine.residency.leasing import EverythingResident, Residency
from hloserve.engine.residency.shared_store import SharedStore
from hloserve.engine.residency.weight_cache import WeightCache
from hloserve.engine.xla_backend import XlaBackend

__all__ = ["bandwidths", "cold_loads", "fit_line", "lease_costs", "main"]

SIDE = 1024
TENSOR_BYTES = 4 * SIDE * SIDE
SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20)
"""Bytes of the models that are loaded on demand."""

LEASES = 20_000


def _write(path: Path, nbytes: int, layout: Layout = "xla") -> Path:
    """A file of tensors of at most 4 MiB."""
    rng, rows = np.random.default_rng(nbytes), min(nbytes, TENSOR_BYTES) // (4 * SIDE)
    tensors = max(1, nbytes // TENSOR_BYTES)
    arrays = [(f"w{n}", rng.random((rows, SIDE), np.float32)) for n in range(tensors)]
    path.write_bytes(b"".join(plan_weights(arrays, layout, []).chunks()))
    return path


def _take_turns(ways: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each way, after a round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in seconds.items()}


def _reader(path: Path, buffer: memoryview | None) -> Callable[[], None]:
    def read() -> None:
        with path.open("rb", buffering=0) as file:
            target = memoryview(bytearray(path.stat().st_size)) if buffer is None else buffer
            done = 0
            while done < len(target) and (count := file.readinto(target[done:])):
                done += count

    return read


def _copier(path: Path, store: HostStore) -> Callable[[], None]:
    def copy() -> None:
        with WeightsFile.open(path) as weights:
            WeightsSource("bench", weights, store).read().release(is_unused=True)

    return copy


def bandwidths(nbytes: int, rounds: int) -> dict[str, float]:
    """Bytes per second from the page cache to the memory of the host, by way."""
    with tempfile.TemporaryDirectory() as directory:
        path = _write(Path(directory) / "w", nbytes)
        legacy = _write(Path(directory) / "legacy", nbytes, "legacy")
        used = bytearray(path.stat().st_size)
        ways = {
            "readinto, memory that was used before": _reader(path, memoryview(used)),
            "readinto, new memory": _reader(path, None),
            "private copy": _copier(path, PrivateStore()),
            "shared copy": _copier(path, SharedStore()),
            "private copy, legacy layout": _copier(legacy, PrivateStore()),
        }
        seconds = _take_turns(ways, rounds)
    return {name: nbytes / each for name, each in seconds.items()}


@contextmanager
def _cached(sizes: Sequence[int]) -> Iterator[tuple[WeightCache, list[DeviceModel]]]:
    """A cache with room for all, and models of some sizes in it."""
    cache = WeightCache(XlaBackend("cpu"), MemoryLimits(cap_bytes=1 << 40), SystemClock())
    with tempfile.TemporaryDirectory() as directory, ExitStack() as held:
        models = []
        for number, nbytes in enumerate(sizes):
            model = DeviceModel(f"m{number}", (), (), {})
            cache.admit(model, WeightsFile.open(_write(Path(directory) / str(number), nbytes)))
            held.callback(cache.discard, model)
            models.append(model)
        yield cache, models


def cold_loads(rounds: int) -> dict[int, float]:
    """Seconds of a lease that has to load, by bytes; the evicted weights are freed before."""
    with _cached(SIZES) as (cache, models):
        seconds: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(rounds + 1):
            for size, model in zip(SIZES, models, strict=True):
                cache.make_room()
                started = time.perf_counter()
                cache.lease(model)
                cache.release(model)
                seconds[size].append(time.perf_counter() - started)
    return {nbytes: statistics.median(each[1:]) for nbytes, each in seconds.items()}


def fit_line(loads: Mapping[int, float]) -> tuple[float, float]:
    """Constant and bytes per second of `seconds = constant + bytes / bandwidth`, by size."""
    nbytes, seconds = np.array(list(loads), float), np.array(list(loads.values()))
    slope, constant = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return float(constant), float(1 / slope)


def lease_costs(rounds: int) -> dict[str, float]:
    """Seconds of a lease and its release when the weights are there."""
    with _cached((TENSOR_BYTES,)) as (cache, (model,)):
        cache.lease(model)

        def run(residency: Residency) -> Callable[[], None]:
            def lease() -> None:
                for _ in range(LEASES):
                    residency.lease(model)
                    residency.release(model)

            return lease

        ways = {"no budget": run(EverythingResident()), "budget": run(cache)}
        seconds = _take_turns(ways, rounds)
        cache.release(model)
    return {name: each / LEASES for name, each in seconds.items()}


def main() -> None:
    """Print all of it, as text and as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mib", type=int, default=256, help="of the file that is read")
    given = parser.parse_args()
    read = bandwidths(given.mib << 20, given.rounds)
    print(f"page cache to host memory, {given.mib} MiB")
    plain = read["readinto, new memory"]
    for name, each in read.items():
        print(f"  {name:40} {each / 1e9:6.2f} GB/s   {each / plain:5.2f} x readinto")
    loads = cold_loads(given.rounds)
    constant, bandwidth = fit_line(loads)
    print(f"load on demand: {constant * 1e3:.2f} ms + bytes / {bandwidth / 1e9:.2f} GB/s")
    for nbytes, each in loads.items():
        line = constant + nbytes / bandwidth
        print(f"  {nbytes >> 10:7} KiB  {each * 1e3:7.2f} ms, the line says {line * 1e3:7.2f} ms")
    leases = lease_costs(given.rounds)
    for name, each in leases.items():
        print(f"lease and release, {name}: {each * 1e9:.0f} ns")
    print(
        json.dumps(
            {
                "bandwidths": read,
                "loads": loads,
                "constant_s": constant,
                "bytes_per_s": bandwidth,
                "leases": leases,
            }
        )
    )


if __name__ == "__main__":
    main()
