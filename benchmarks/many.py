"""What models cost that are loaded and idle: `python -m benchmarks.many`.

Two servers, one with ten bundles and one with a thousand, answer requests to the same ten models
over gRPC. Both are up at once and take turns, so that a busy minute hits both; what counts is the
CPU time that a server uses per request, and the median of the rounds' ratios. Then what a loaded
model takes in memory, and the CPU time of the servers while nobody asks. Linux only.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.mlp import write_mlp_bundle
from benchmarks.processes import Served, cpu_seconds, started_hloserve
from hloserve.core.requests import InferRequest
from hloserve.wire.v2_protobuf import encode_infer_request

__all__ = ["Report", "main", "measure"]

HOT = 10
STREAMS = 4
"""Requests in flight per hot model, which has one connection."""

SIZES = (1, 8)
"""Compiled sizes of each model; few, so that a thousand are loaded soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of it.

    Attributes:
        bundles: of the larger server; the smaller one has `HOT`.
        start_s: seconds until the larger one is ready, with a warm executable cache.
        few_us: CPU microseconds per request with few bundles, median of the rounds.
        many_us: the same with many.
        few_least_us: the least of the rounds with few.
        many_least_us: the same with many.
        ratios: of the rounds, many over few.
        ratio: their median.
        model_bytes: resident memory per further model that is loaded.
        idle_few_fraction: of a core that the server uses while nobody asks.
        idle_many_fraction: the same with many.
    """

    bundles: int
    start_s: float
    few_us: float
    many_us: float
    few_least_us: float
    many_least_us: float
    ratios: list[float]
    ratio: float
    model_bytes: float
    idle_few_fraction: float
    idle_many_fraction: float


def _name(number: int) -> str:
    return f"model-{number:04}"


def _bodies() -> list[str]:
    row = np.random.default_rng(1).standard_normal((1, 64)).astype("float32")
    requests = [InferRequest(_name(number), {"x": row}, id="1") for number in range(HOT)]
    return [bytes(encode_infer_request(request)).hex() for request in requests]


def _turn(server: Served, seconds: float) -> float:
    """CPU microseconds per request of one server under the load of one turn."""
    plan = {
        "kind": "grpc",
        "port": server.ports["grpc"],
        "connections": HOT,
        "streams": STREAMS,
        "seconds": seconds,
        "warmup_s": 0,
        "target": "/inference.GRPCInferenceService/ModelInfer",
        "bodies_hex": _bodies(),
    }
    before_s = cpu_seconds(server.pid)
    command = [sys.executable, "-m", "benchmarks.load", json.dumps(plan)]
    result = json.loads(subprocess.check_output(command, text=True))
    assert not result["errors"], result
    return (cpu_seconds(server.pid) - before_s) / result["requests"] * 1e6


def _resident_bytes(server: Served) -> int:
    text = Path("/proc", str(server.pid), "status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None, text
    return int(found[1]) * 1024


def _idle_fractions(servers: Mapping[int, Served], seconds: float) -> dict[int, float]:
    before_s = {bundles: cpu_seconds(server.pid) for bundles, server in servers.items()}
    time.sleep(seconds)
    return {
        bundles: (cpu_seconds(server.pid) - before_s[bundles]) / seconds
        for bundles, server in servers.items()
    }


def measure(bundles: int, rounds: int, seconds: float, idle_s: float) -> Report:
    """Start both servers, and let them take turns.

    Args:
        bundles: of the larger one.
        rounds: of one turn each; one more before them does not count.
        seconds: of a turn.
        idle_s: for how long nobody asks, at the end.
    """
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"HLOSERVE_RUNTIME_EXECUTABLE_CACHE_DIR": str(root / "cache")}
        servers: dict[int, Served] = {}
        start_s = 0.0
        for count in (HOT, bundles):
            repository = root / str(count) / "repository"
            for number in range(count):
                write_mlp_bundle(repository, _name(number), SIZES)
            began = time.perf_counter()
            servers[count] = stack.enter_context(started_hloserve(repository, settings))
            start_s = time.perf_counter() - began
        resident = {count: _resident_bytes(server) for count, server in servers.items()}
        found: dict[int, list[float]] = {count: [] for count in servers}
        for number in range(rounds + 1):
            for count, server in sorted(servers.items(), reverse=bool(number % 2)):
                cost_us = _turn(server, seconds)
                if number:
                    found[count].append(cost_us)
        idle = _idle_fractions(servers, idle_s)
    few, many = found[HOT], found[bundles]
    ratios = [more / less for more, less in zip(many, few, strict=True)]
    return Report(
        bundles=bundles,
        start_s=start_s,
        few_us=statistics.median(few),
        many_us=statistics.median(many),
        few_least_us=min(few),
        many_least_us=min(many),
        ratios=ratios,
        ratio=statistics.median(ratios),
        model_bytes=(resident[bundles] - resident[HOT]) / (bundles - HOT),
        idle_few_fraction=idle[HOT],
        idle_many_fraction=idle[bundles],
    )


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("--bundles", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument("--idle", type=float, default=16.0, help="seconds without requests")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/many.json"))
    options = parser.parse_args()
    report = measure(options.bundles, options.rounds, options.seconds, options.idle)
    low, _, high = statistics.quantiles(report.ratios, n=4)
    print(f"ready after {report.start_s:.1f} s with {report.bundles} bundles, warm cache")
    print(f"CPU us/request, {HOT} hot models, median and least of {options.rounds} rounds:")
    print(f"  {HOT:5d} bundles {report.few_us:7.1f} {report.few_least_us:7.1f}")
    print(f"  {report.bundles:5d} bundles {report.many_us:7.1f} {report.many_least_us:7.1f}")
    print(f"  ratio {report.ratio:.3f}, half of the rounds from {low:.3f} to {high:.3f}")
    print(f"memory per loaded model: {report.model_bytes / 1024:.0f} KiB")
    few, many = report.idle_few_fraction, report.idle_many_fraction
    print(f"share of a core while nobody asks: {few:.2%} and {many:.2%}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(asdict(report), indent=2) + "\n")


if __name__ == "__main__":
    main()
