"""Large tensors through shared memory, against a plain copy of the same bytes.

    python -m benchmarks.shared_memory [--rounds 9] [--mib 16] [--out FILE]

A real server on the CPU, one client, one request at a time. "in" is a model that looks at four
numbers of its input, "out" one that repeats them, "in and out" an identity. The last two have XLA
write all of their output as well, which costs as much as a copy: "without the program" leaves out
the time that the server's statistics say the execution took. Rounds are interleaved with a copy of
the same size from shared memory to memory and, for comparison, with the same tensors inside of
messages. The ratio is bytes per second over those of the copy: medians of the rounds' ratios.

Tensors and copies take turns over so many places that no cache holds them (`--places`), as they
would with more than one client: a copy from cache to cache says nothing of memory. With
`--places 1` everything stays in the last level of a large cache, and a copy of 16 MB takes about as
long as a request does without any.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np

from benchmarks.processes import started_hloserve
from hloserve import Client, IOSpec, write_bundle

_LOOK = """
module @look {{
  func.func public @main(%x: tensor<1x{n}xf32>) -> tensor<1x4xf32> {{
    %0 = stablehlo.slice %x [0:1, 0:4] : (tensor<1x{n}xf32>) -> tensor<1x4xf32>
    return %0 : tensor<1x4xf32>
  }}
}}
"""

_REPEAT = """
module @repeat {{
  func.func public @main(%x: tensor<1x4xf32>) -> tensor<1x{n}xf32> {{
    %0 = stablehlo.broadcast_in_dim %x, dims = [0, 2]
      : (tensor<1x4xf32>) -> tensor<1x{quarter}x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x{quarter}x4xf32>) -> tensor<1x{n}xf32>
    return %1 : tensor<1x{n}xf32>
  }}
}}
"""

_SAME = """
module @same {{
  func.func public @main(%x: tensor<1x{n}xf32>) -> tensor<1x{n}xf32> {{
    return %x : tensor<1x{n}xf32>
  }}
}}
"""


def write_models(repository: Path, extent: int) -> None:
    """Write "look" (four numbers of x), "repeat" (four, often) and "same" (x).

    Args:
        repository: an empty directory.
        extent: of the long tensors, in float32 numbers; a multiple of 4.
    """
    programs = (
        ("look", _LOOK, extent, 4),
        ("repeat", _REPEAT, 4, extent),
        ("same", _SAME, extent, extent),
    )
    for name, text, width, result in programs:
        x = IOSpec("x", "f32", (1, width), batch_axis=0)
        y = IOSpec("y", "f32", (1, result), batch_axis=0)
        program = text.format(n=extent, quarter=extent // 4)
        write_bundle(repository / name, name, [x], [y], {1: program}, {})


@dataclass(frozen=True, slots=True)
class Way:
    """One way of moving bytes.

    Attributes:
        call: moves them once.
        nbytes: how many.
        model: whose executions are told apart; empty for none.
    """

    call: Callable[[], object]
    nbytes: int
    model: str = ""


def executing_s(client: Client, model: str) -> float:
    """How long the programs of a model have run so far; 0 without a model."""
    if not model:
        return 0.0
    (report,) = client.model_statistics(model)
    return report.compute_infer.ns / 1e9


def rate(way: Way, client: Client, seconds: float) -> tuple[float, float]:
    """Bytes per second of a way, and the same without the time in which its program ran."""
    executed_s = executing_s(client, way.model)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not count:
        way.call()
        count += 1
    executed_s = executing_s(client, way.model) - executed_s
    return count * way.nbytes / elapsed, count * way.nbytes / (elapsed - executed_s)


def measure(
    address: str, nbytes: int, places: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Rates of all ways by name, one per round; the first round warms up and does not count."""
    extent = nbytes // 4
    values = np.random.default_rng(0).random((1, extent), np.float32)
    four = values[:, :4]
    rates: dict[str, list[float]] = {}
    room = places * 2 * (nbytes + 4096)
    with Client(address) as client, client.shared_memory(room) as memory:
        xs = cycle([memory.copy(values) for _ in range(places)])
        ys = cycle([memory.array((1, extent), np.float32) for _ in range(places)])
        own = cycle([np.ones_like(values) for _ in range(places)])
        y = next(ys)
        assert (client.infer("same", {"x": next(xs)}, into={"y": y})["y"] == values).all()

        def repeat() -> object:
            return client.infer("repeat", {"x": four}, into={"y": next(ys)})

        def same() -> object:
            return client.infer("same", {"x": next(xs)}, into={"y": next(ys)})

        ways = {
            "copy": Way(lambda: np.copyto(next(own), next(xs).array), nbytes),
            "in": Way(lambda: client.infer("look", {"x": next(xs)}), nbytes),
            "out": Way(repeat, nbytes, "repeat"),
            "in and out": Way(same, 2 * nbytes, "same"),
            "in, inside of messages": Way(lambda: client.infer("look", {"x": values}), nbytes),
            "in and out, inside": Way(lambda: client.infer("same", {"x": values}), 2 * nbytes),
        }
        for _ in range(rounds + 1):
            for name, way in ways.items():
                whole, without = rate(way, client, seconds)
                rates.setdefault(name, []).append(whole)
                if way.model:
                    rates.setdefault(f"{name} without the program", []).append(without)
    return {name: found[1:] for name, found in rates.items()}


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="per way and round")
    parser.add_argument("--mib", type=int, default=16, help="size of a tensor")
    parser.add_argument("--places", type=int, default=8, help="of tensors, used in turn")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/shared_memory.json"))
    options = parser.parse_args()
    nbytes = options.mib * 2**20
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory) / "models"
        repository.mkdir()
        write_models(repository, nbytes // 4)
        with started_hloserve(repository, {"HLOSERVE_SHARED_MEMORY_ENABLED": "true"}) as served:
            address = f"127.0.0.1:{served.ports['grpc']}"
            rates = measure(address, nbytes, options.places, options.rounds, options.seconds)
    copy = rates["copy"]
    table = {
        name: {
            "gb_per_s": round(statistics.median(found) / 1e9, 2),
            "ratio": round(statistics.median(a / b for a, b in zip(found, copy, strict=True)), 3),
        }
        for name, found in rates.items()
    }
    for name, row in table.items():
        print(f"{name:33} {row['gb_per_s']:7.2f} GB/s  {row['ratio']:6.2f} of a copy")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "tensor_bytes": nbytes,
        "places": options.places,
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
    }
    options.out.write_text(json.dumps({**record, "ways": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
