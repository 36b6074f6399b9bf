"""`make bench`: load on hloserve and, in the same run, on what it is compared with.

    python -m benchmarks [--rounds 5] [--seconds 1.5] [--out .benchmarks/load.json]

The rounds are interleaved over the servers, so a busy minute hits all of them; figures are medians,
and a ratio is the median of the rounds' ratios. Read the ratios: absolute figures do not carry over
to another machine.
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
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import numpy as np

from benchmarks.mlp import write_mlp_bundle
from benchmarks.processes import started, started_hloserve
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


@dataclass(slots=True)
class Record:
    """Medians of one server under one load; ratios are hloserve's over this server's."""

    server: str
    connections: int
    streams: int
    rate: float
    p50_s: float
    p99_s: float
    errors: float
    mean_batch: float | None
    rate_ratio: float = 1.0
    p50_ratio: float = 1.0


def grpc_body() -> bytes:
    """One row for the MLP, as a protobuf message."""
    row = np.random.default_rng(1).standard_normal((1, 64)).astype("float32")
    return bytes(encode_infer_request(InferRequest("mlp", {"x": row}, id="1")))


def rest_body() -> bytes:
    """The same row as JSON."""
    row = np.random.default_rng(1).standard_normal(64).astype("float32").round(4)
    tensor = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": row.tolist()}
    return json.dumps({"id": "1", "inputs": [tensor]}).encode()


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
        "bodies_hex": [(grpc_body() if is_grpc else rest_body()).hex()],
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


def run(rounds: int, seconds: float) -> tuple[list[Record], Mapping[str, float]]:
    """Measure everything: one record per target and shape, and the unloaded latency."""
    samples: dict[tuple[str, int, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_mlp_bundle(directory / "repository")
        ports = stack.enter_context(started_hloserve(directory / "repository")).ports

        def port(module: str) -> int:
            return next(iter(stack.enter_context(started(module)).ports.values()))

        metrics = f"http://127.0.0.1:{ports['admin']}/metrics"
        grpc_targets = [
            Target("hloserve", "grpc", ports["grpc"], metrics),
            Target("bare loop", "grpc", port("bare_loop")),
            Target("echo", "grpc", port("grpc_echo")),
            Target("grpcio echo", "grpc", port("grpcio_echo")),
        ]
        rest_targets = [
            Target("hloserve REST", "rest", ports["http"], metrics),
            Target("REST echo", "rest", port("rest_echo")),
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
        latency = one_at_a_time(ports["grpc"], grpc_targets[2].port)
    records = [summarise(*key, results) for key, results in samples.items()]
    for record in records:
        ours = samples[_ours(record), record.connections, record.streams]
        its = samples[record.server, record.connections, record.streams]
        record.rate_ratio = _median(a["rate"] / b["rate"] for a, b in zip(ours, its, strict=True))
        record.p50_ratio = _median(a["p50_s"] / b["p50_s"] for a, b in zip(ours, its, strict=True))
    return records, latency


def one_at_a_time(infer_port: int, echo_port: int) -> Mapping[str, float]:
    """Latency on an idle server as a grpcio client sees it: inference, echo, and their ratio."""
    body = grpc_body()
    found: dict[str, list[float]] = {"infer_s": [], "echo_s": []}
    with (
        grpc.insecure_channel(f"127.0.0.1:{infer_port}") as infer_channel,
        grpc.insecure_channel(f"127.0.0.1:{echo_port}") as echo_channel,
    ):
        calls = {
            "infer_s": infer_channel.unary_unary(_GRPC_METHOD),
            "echo_s": echo_channel.unary_unary(_GRPC_METHOD),
        }
        for _ in range(7):
            for name, call in calls.items():
                times = []
                for _ in range(500):
                    began = time.perf_counter()
                    call(body)
                    times.append(time.perf_counter() - began)
                found[name].append(statistics.median(times))
    ratio = _median(a / b for a, b in zip(found["infer_s"], found["echo_s"], strict=True))
    medians = {name: statistics.median(values) for name, values in found.items()}
    return {**medians, "ratio": ratio}


def summarise(
    name: str, connections: int, streams: int, results: Sequence[Mapping[str, float]]
) -> Record:
    """Medians over the rounds; errors add up."""
    batches = [result["mean_batch"] for result in results if "mean_batch" in result]
    return Record(
        name,
        connections,
        streams,
        rate=_median(result["rate"] for result in results),
        p50_s=_median(result["p50_s"] for result in results),
        p99_s=_median(result["p99_s"] for result in results),
        errors=sum(result["errors"] for result in results),
        mean_batch=statistics.median(batches) if batches else None,
    )


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _ours(record: Record) -> str:
    return "hloserve REST" if "REST" in record.server else "hloserve"


def table(records: Sequence[Record]) -> str:
    """The figures for people."""
    lines = [
        f"{'':<14}{'load':>8}{'req/s':>9}{'p50 us':>8}{'p99 us':>8}{'batch':>6}{'errors':>7}"
        f"{'hloserve/it: rate':>19}{'p50':>6}"
    ]
    for r in records:
        batch = "-" if r.mean_batch is None else f"{r.mean_batch:.1f}"
        lines.append(
            f"{r.server:<14}{r.connections:>5}x{r.streams:<2}{r.rate:>9,.0f}{r.p50_s * 1e6:>8,.0f}"
            f"{r.p99_s * 1e6:>8,.0f}{batch:>6}{r.errors:>7.0f}{r.rate_ratio:>19.2f}"
            f"{r.p50_ratio:>6.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="measured time of each load")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/load.json"))
    options = parser.parse_args()
    records, latency = run(options.rounds, options.seconds)
    print(table(records))
    print(
        "one request at a time, grpcio client: infer {infer_s:.0f} us, echo {echo_s:.0f} us,"
        " ratio {ratio:.2f}".format(
            infer_s=latency["infer_s"] * 1e6,
            echo_s=latency["echo_s"] * 1e6,
            ratio=latency["ratio"],
        )
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "cpus": os.cpu_count()}
    document = {
        "machine": machine,
        "rounds": options.rounds,
        "results": [asdict(record) for record in records],
        "one_at_a_time": latency,
    }
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
