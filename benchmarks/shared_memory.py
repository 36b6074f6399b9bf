"""Large tensors through shared memory, against a plain copy of the same bytes.

    python -m benchmarks.shared_memory [--rounds 9] [--mib 16] [--out FILE]

A real server on the CPU, one client, one request at a time. "in" is a model that looks at four
numbers of its input, so nearly nothing but the way in is measured; "in and out" is an identity,
which costs XLA a copy of its own, into fresh memory: "without XLA" leaves out what the same program
takes alone. Rounds are interleaved with a copy of the same size from shared memory to memory and,
for comparison, with the same tensors inside of messages. The ratio is bytes per second over those
of the copy: medians of the rounds' ratios.

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
from itertools import cycle
from pathlib import Path

import numpy as np

from benchmarks.processes import started_hloserve
from hloserve import Client, IOSpec, write_bundle
from hloserve.core.tensors import Array
from hloserve.engine.xla_backend import XlaBackend

_LOOK = """
module @look {{
  func.func public @main(%x: tensor<1x{n}xf32>) -> tensor<1x4xf32> {{
    %0 = stablehlo.slice %x [0:1, 0:4] : (tensor<1x{n}xf32>) -> tensor<1x4xf32>
    return %0 : tensor<1x4xf32>
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
    """Write "look" (four numbers of x) and "same" (x), of `extent` float32 numbers."""
    x = IOSpec("x", "f32", (1, extent), batch_axis=0)
    for name, text, width in (("look", _LOOK, 4), ("same", _SAME, extent)):
        y = IOSpec("y", "f32", (1, width), batch_axis=0)
        write_bundle(repository / name, name, [x], [y], {1: text.format(n=extent)}, {})


def program_alone(values: Array) -> Callable[[], object]:
    """What runs "same" without a server."""
    backend = XlaBackend("cpu", 0)
    text = _SAME.format(n=values.shape[1]).encode()
    executable = backend.compile(backend.read_program(text, "same"), "same")
    aligned = np.empty(values.nbytes + 64, np.uint8)
    skip = -aligned.ctypes.data % 64
    array = aligned[skip : skip + values.nbytes].view(np.float32).reshape(values.shape)
    array[...] = values
    return lambda: backend.to_host(backend.execute(executable, backend.to_device([array])))


def rate(call: Callable[[], object], nbytes: int, seconds: float) -> float:
    """Bytes per second of a call that moves `nbytes`."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not count:
        call()
        count += 1
    return count * nbytes / elapsed


def measure(
    address: str, nbytes: int, places: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Rates of all ways by name, one per round; the first round warms up and does not count."""
    extent = nbytes // 4
    values = np.random.default_rng(0).random((1, extent), np.float32)
    rates: dict[str, list[float]] = {}
    room = places * 2 * (nbytes + 4096)
    with Client(address) as client, client.shared_memory(room) as memory:
        xs = cycle([memory.copy(values) for _ in range(places)])
        ys = cycle([memory.array((1, extent), np.float32) for _ in range(places)])
        own = cycle([np.ones_like(values) for _ in range(places)])
        y = next(ys)
        assert (client.infer("same", {"x": next(xs)}, into={"y": y})["y"] == values).all()
        ways: dict[str, tuple[Callable[[], object], int]] = {
            "copy": (lambda: np.copyto(next(own), next(xs).array), nbytes),
            "in": (lambda: client.infer("look", {"x": next(xs)}), nbytes),
            "in and out": (
                lambda: client.infer("same", {"x": next(xs)}, into={"y": next(ys)}), 2 * nbytes,
            ),
            "XLA alone": (program_alone(values), 2 * nbytes),
            "in, inside of messages": (lambda: client.infer("look", {"x": values}), nbytes),
            "in and out, inside": (lambda: client.infer("same", {"x": values}), 2 * nbytes),
        }  # fmt: skip
        for _ in range(rounds + 1):
            for name, (call, moved) in ways.items():
                rates.setdefault(name, []).append(rate(call, moved, seconds))
    rates = {name: found[1:] for name, found in rates.items()}
    both = zip(rates["in and out"], rates["XLA alone"], strict=True)
    rates["in and out without XLA"] = [1 / (1 / whole - 1 / xla) for whole, xla in both]
    return rates


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
        print(f"{name:26} {row['gb_per_s']:7.2f} GB/s  {row['ratio']:6.2f} of a copy")
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
