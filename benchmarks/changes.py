"""What it costs that models come and go: `python -m benchmarks.changes`.

Start with a cold and a warm executable cache, one look at many bundles, and the time from a rename
into the repository to the first answer. Run it on a quiet machine; figures of one run compare with
each other only.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mlp import write_mlp_bundle
from hloserve import Client
from hloserve.core.errors import HloserveError
from hloserve.engine.programs.executable_cache import ExecutableCache
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.loader import LoadOptions, load_model
from hloserve.models.repository_look import look_at

__all__ = ["main"]

BUNDLES = 1000
PERIOD_S = 15.0


def cold_and_warm(bundle: Path, rounds: int) -> dict[str, float]:
    """Seconds of a load that compiles, and of one that restores: medians."""
    backend = XlaBackend("cpu")
    cold_s: list[float] = []
    warm_s: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            options = LoadOptions(cache=ExecutableCache(Path(directory), 1 << 34))
            for seconds in (cold_s, warm_s):
                started = time.perf_counter()
                load_model(bundle, backend, options).free()
                seconds.append(time.perf_counter() - started)
    cold, warm = statistics.median(cold_s), statistics.median(warm_s)
    return {"cold_s": cold, "warm_s": warm, "times_quicker": cold / warm}


def look_at_many(bundles: int = BUNDLES) -> dict[str, float]:
    """Seconds of one look at unchanged bundles, and the share of a core at the default period."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for number in range(bundles):
            bundle = root / f"model-{number}"
            bundle.mkdir()
            for name in ("manifest.yaml", "model.b1.mlir", "model.b8.mlir", "model.py", "x.txt"):
                (bundle / name).write_text("x")
            (bundle / "weights.safetensors").write_text("x")
        look = look_at([root])
        seconds = min(_seconds(lambda: look_at([root], before=look)) for _ in range(5))
    return {"bundles": bundles, "look_s": seconds, "share_of_a_core": seconds / PERIOD_S}


def _seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def served_after(rounds: int) -> dict[str, float]:
    """Seconds from a rename into the repository to the first answer of the model."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "repository"
        write_mlp_bundle(root)
        ports_file = Path(directory) / "ports.json"
        command = [
            sys.executable, "-m", "hloserve", "serve", str(root), "--ports-file", str(ports_file),
            "--http-port", "0", "--grpc-port", "0", "--admin-port", "0", "--log-level", "error",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while not ports_file.exists():
                threading.Event().wait(0.05)
            with Client(f"127.0.0.1:{json.loads(ports_file.read_text())['grpc']}") as client:
                while not client.is_server_ready():
                    threading.Event().wait(0.05)
                seconds = [_serve_one(client, root, f"late-{number}") for number in range(rounds)]
            process.terminate()
    return {"rounds": rounds, "median_s": statistics.median(seconds), "worst_s": max(seconds)}


def _serve_one(client: Client, root: Path, name: str) -> float:
    made = write_mlp_bundle(root / f".{name}", name)
    x = np.zeros((1, 64), np.float32)
    started = time.perf_counter()
    made.rename(root / name)
    while True:
        try:
            client.infer(name, {"x": x})
        except HloserveError:
            threading.Event().wait(0.005)
        else:
            return time.perf_counter() - started


def main() -> None:
    """Measure and print; `--bundle` names one that compiles for seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, help="for cold and warm loads")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures: dict[str, Any] = {"look": look_at_many()}
    if options.bundle is not None:
        figures["load"] = cold_and_warm(options.bundle, options.rounds)
    figures["change"] = served_after(options.rounds)
    json.dump(figures, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
