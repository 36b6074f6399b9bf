"""`make bench`: load on hloserve and, in the same run, on what it is compared with.

    python -m benchmarks [--rounds 3] [--seconds 2] [--out build/bench.json]

The rounds are interleaved over the servers, so a busy minute hits all of them; figures are medians.
Read the ratios: absolute figures do not carry over to another machine.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.mlp import write_mlp_bundle
from hloserve.core.requests import InferRequest
from hloserve.wire.v2_protobuf import encode_infer_request

_GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_GRPC_SHAPES = ((1, 1), (1, 8), (8, 8), (16, 16))
_REST_CONNECTIONS = (1, 64, 256)


@dataclass(frozen=True, slots=True)
class Target:
    """A server under load."""

    name: str
    kind: str
    port: int
    metrics_url: str | None = None


def grpc_body() -> bytes:
    """One row for the MLP, as a protobuf message."""
    row = np.random.default_rng(1).standard_normal((1, 64)).astype("float32")
    return bytes(encode_infer_request(InferRequest("mlp", {"x": row}, id="1")))


def rest_body() -> bytes:
    """The same row as JSON."""
    row = np.random.default_rng(1).standard_normal(64).astype("float32").round(4)
    tensor = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": row.tolist()}
    return json.dumps({"id": "1", "inputs": [tensor]}).encode()


@contextmanager
def started(module: str) -> Iterator[int]:
    """Run a comparison server; gives its port."""
    with subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.servers.{module}"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def started_hloserve(directory: Path) -> Iterator[Mapping[str, int]]:
    """Run `hloserve serve` with the MLP; gives its ports once it is ready."""
    write_mlp_bundle(directory / "repository")
    ports = directory / "ports.json"
    command = [
        sys.executable, "-m", "hloserve", "serve", str(directory / "repository"),
        "--http-port", "0", "--grpc-port", "0", "--admin-port", "0", "--ports-file", str(ports),
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "startup_done" in line:
                    break
            yield json.loads(ports.read_text())
        finally:
            process.terminate()


def measure(target: Target, connections: int, streams: int, seconds: float) -> dict[str, float]:
    """One load run against one target, with the mean batch where the target tells it."""
    is_grpc = target.kind == "grpc"
    plan = {
        "kind": target.kind,
        "port": target.port,
        "connections": connections,
        "streams": streams,
        "seconds": seconds,
        "target": _GRPC_METHOD if is_grpc else "/v2/models/mlp/infer",
        "body_hex": (grpc_body() if is_grpc else rest_body()).hex(),
    }
    before = counters(target)
    command = [sys.executable, "-m", "benchmarks.load", json.dumps(plan)]
    result: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    after = counters(target)
    if after:
        dispatches = after["dispatch"] - before["dispatch"]
        result["mean_batch"] = (after["rows_served"] - before["rows_served"]) / max(dispatches, 1)
    return result


def counters(target: Target) -> dict[str, float]:
    """Dispatch and row counters of the target, empty when it has none."""
    if target.metrics_url is None:
        return {}
    with urllib.request.urlopen(target.metrics_url) as response:
        text = response.read().decode()
    pattern = r'^worker_(dispatch|rows_served)_total\{model="mlp"\} (\S+)$'
    return {name: float(value) for name, value in re.findall(pattern, text, re.MULTILINE)}


def run(rounds: int, seconds: float) -> list[dict[str, object]]:
    """Measure everything; one record per target and shape."""
    samples: dict[tuple[str, int, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = stack.enter_context(started_hloserve(directory))
        metrics = f"http://127.0.0.1:{ports['admin']}/metrics"
        grpc_targets = [
            Target("hloserve", "grpc", ports["grpc"], metrics),
            Target("bare loop", "grpc", stack.enter_context(started("bare_loop"))),
            Target("echo", "grpc", stack.enter_context(started("grpc_echo"))),
            Target("grpcio echo", "grpc", stack.enter_context(started("grpcio_echo"))),
        ]
        rest_targets = [
            Target("hloserve REST", "rest", ports["http"], metrics),
            Target("REST echo", "rest", stack.enter_context(started("rest_echo"))),
        ]
        plans = [(t, c, s) for c, s in _GRPC_SHAPES for t in grpc_targets]
        plans += [(t, c, 1) for c in _REST_CONNECTIONS for t in rest_targets]
        for number in range(rounds):
            for target, connections, streams in plans:
                print(
                    f"\rround {number + 1}/{rounds}: {target.name} {connections}x{streams}     ",
                    end="", file=sys.stderr, flush=True,
                )  # fmt: skip
                result = measure(target, connections, streams, seconds)
                samples.setdefault((target.name, connections, streams), []).append(result)
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return [summarise(*key, results) for key, results in samples.items()]


def summarise(
    name: str, connections: int, streams: int, results: Sequence[Mapping[str, float]]
) -> dict[str, object]:
    """Medians over the rounds; errors add up."""
    record: dict[str, object] = {"server": name, "connections": connections, "streams": streams}
    for field in ("rate", "p50_s", "p99_s", "mean_batch"):
        values = [result[field] for result in results if field in result]
        if values:
            record[field] = statistics.median(values)
    record["errors"] = sum(result["errors"] for result in results)
    return record


def table(records: Sequence[Mapping[str, object]]) -> str:
    """The figures for people, with each server's ratio to hloserve at the same load."""
    rates = {(r["server"], r["connections"], r["streams"]): r["rate"] for r in records}
    lines = [
        f"{'server':<15}{'load':>8}{'req/s':>10}{'p50 us':>9}{'p99 us':>9}{'batch':>7}"
        f"{'errors':>8}{'hloserve / it':>15}"
    ]
    for r in records:
        ours = "hloserve REST" if "REST" in str(r["server"]) else "hloserve"
        ratio = float(str(rates[ours, r["connections"], r["streams"]])) / float(str(r["rate"]))
        batch = f"{r['mean_batch']:.1f}" if "mean_batch" in r else "-"
        lines.append(
            f"{r['server']:<15}{r['connections']:>5}x{r['streams']:<2}{r['rate']:>10,.0f}"
            f"{float(str(r['p50_s'])) * 1e6:>9,.0f}{float(str(r['p99_s'])) * 1e6:>9,.0f}"
            f"{batch:>7}{r['errors']:>8}{ratio:>15.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time of each load")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    records = run(options.rounds, options.seconds)
    print(table(records))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "cpus": os.cpu_count()}
    document = {"machine": machine, "rounds": options.rounds, "results": records}
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
