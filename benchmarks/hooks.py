"""What hook processes are worth for hooks that hold the interpreter: `python -m benchmarks.hooks`.

One server, two bundles with the same hook, 5 ms of plain Python: on threads and in two processes.
Rounds alternate; the ratio of the medians is what counts.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mlp import write_mlp_bundle
from benchmarks.processes import started_hloserve
from hloserve import Client

__all__ = ["main"]

HOOK_MS = 5
_CALLERS = 8
_MODELS = {"threads": 0, "processes": 2}
_HOOK = """
from hloserve import register_model

def preprocess(inputs):
    total = 0
    for number in range(ROUNDS):
        total += number
    return {"x": inputs["x"]}

register_model(preprocess=preprocess)
"""


def _rounds() -> int:
    """Rounds of the hook's loop that take `HOOK_MS`; counted once, so that both do the same."""
    best_s = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        total = 0
        for number in range(100_000):
            total += number
        best_s = min(best_s, time.perf_counter() - started)
    return int(100_000 * HOOK_MS / 1000 / best_s)


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Requests per second on threads and in processes, and the ratio of their medians."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "repository"
        hook = _HOOK.replace("ROUNDS", str(_rounds()))
        for name, count in _MODELS.items():
            bundle = write_mlp_bundle(root, name)
            (bundle / "model.py").write_text(hook)
            if count:
                with (bundle / "manifest.yaml").open("a") as manifest:
                    manifest.write(f"hooks: {{processes: {count}}}\n")
        with started_hloserve(root) as server:
            address = f"127.0.0.1:{server.ports['grpc']}"
            rates: dict[str, list[float]] = {name: [] for name in _MODELS}
            for _ in range(rounds):
                for name, measured in rates.items():
                    measured.append(_rate(address, name, seconds))
    medians = {name: statistics.median(measured) for name, measured in rates.items()}
    return {
        "hook_ms": HOOK_MS,
        "requests_per_s": medians,
        "times_threads": medians["processes"] / medians["threads"],
    }


def _rate(address: str, model: str, seconds: float) -> float:
    """Answers per second to callers that ask again as soon as they have one."""
    counts = [0] * _CALLERS
    end = time.perf_counter() + seconds

    def ask(number: int) -> None:
        x = np.zeros((1, 64), np.float32)
        with Client(address) as client:
            while time.perf_counter() < end:
                client.infer(model, {"x": x})
                counts[number] += 1

    callers = [threading.Thread(target=ask, args=(number,)) for number in range(_CALLERS)]
    started = time.perf_counter()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return sum(counts) / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    json.dump(measure(options.rounds, options.seconds), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
