"""hloserve and other model servers under the same load, in the same run.

    python -m benchmarks.peers [--peers triton,mlserver] [--environments DIR] [--rounds 7]

The model is the small MLP. REST: V2 JSON, 64 numbers in, 10 out, 256 connections. gRPC: V2, 16
connections of 16 streams. Every server first answers one request, which must be right. Rounds are
interleaved over the servers, so a busy minute hits all of them; a ratio is the median of the
rounds' ratios, and CPU is the least that the server's processes used per request. The echoes show
what the generator can send: if hloserve comes near its echo, the generator is what is measured.

Peers are installed by pip into environments of their own: a temporary directory, or DIR, which is
kept. Versions: `benchmarks.peer_servers.PINS`. Load is made by wrk and h2load (apt-get install wrk
nghttp2-client), or by `benchmarks.load` where they are not installed.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.__main__ import grpc_body, rest_body
from benchmarks.generators import Load, grpc_generator, rest_generator
from benchmarks.mlp import weights, write_mlp_bundle
from benchmarks.peer_servers import PINS, STARTERS, environment
from benchmarks.processes import Served, cpu_seconds, started, started_hloserve
from hloserve.core.tensors import Array
from hloserve.wire.v2_protobuf import decode_infer_response

_GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_REST_TARGET = "/v2/models/mlp/infer"
_REST_LOAD = (256, 1)
_GRPC_LOAD = (16, 16)


@dataclass(frozen=True, slots=True)
class Target:
    """One server and protocol under load."""

    name: str
    protocol: str
    served: Served
    path: str


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one target; the ratios are hloserve's over this one's."""

    server: str
    protocol: str
    rate: float
    cpu_us: float
    errors: int
    ratio: float
    worst_ratio: float


def expected() -> Array:
    """What the model makes of the row of `rest_body`."""
    row = np.array(json.loads(rest_body())["inputs"][0]["data"], np.float32)
    layers = dict(weights())
    result: Array = np.tanh(row @ layers["w1"]) @ layers["w2"]
    return result


def answer(target: Target) -> Array:
    """What a server makes of that row, or of one that differs in the fourth digit."""
    address = f"127.0.0.1:{target.served.ports[target.protocol]}"
    if target.protocol == "http":
        headers = {"Content-Type": "application/json"}
        url = f"http://{address}{target.path}"
        with urllib.request.urlopen(urllib.request.Request(url, rest_body(), headers)) as response:
            return np.array(json.load(response)["outputs"][0]["data"], np.float32).reshape(-1)
    with grpc.insecure_channel(address) as channel:
        message = channel.unary_unary(target.path)(grpc_body())
    (array,) = decode_infer_response(message).outputs.values()
    return array.reshape(-1)


def collect(
    stack: ExitStack, directory: Path, environments: Path, peers: list[str]
) -> list[Target]:
    """Start everything."""
    repository = directory / "repository"
    write_mlp_bundle(repository)
    servers = {"hloserve": stack.enter_context(started_hloserve(repository))}
    for peer in peers:
        home = environment(environments, peer)
        place = directory / peer
        place.mkdir()
        servers[peer] = stack.enter_context(STARTERS[peer](home, place))
    found = []
    for name, served in servers.items():
        if "http" in served.ports:
            path = "/inference" if name == "mosec" else _REST_TARGET
            found.append(Target(name, "http", served, path))
        if "grpc" in served.ports:
            found.append(Target(name, "grpc", served, _GRPC_METHOD))
    for target in found:
        if not np.allclose(answer(target), expected(), atol=2e-3):
            raise SystemExit(f"{target.name} gives another answer over {target.protocol}")
    echoes = {name: stack.enter_context(started(f"{name}_echo")) for name in ("rest", "grpc")}
    found.append(Target("echo", "http", echoes["rest"], "/echo"))
    found.append(Target("echo", "grpc", echoes["grpc"], _GRPC_METHOD))
    return found


def run(targets: list[Target], directory: Path, rounds: int, seconds: int) -> tuple[list[Row], Any]:
    """Measure all targets; the first round warms up and does not count."""
    rest_name, rest = rest_generator(rest_body(), directory)
    grpc_name, calls = grpc_generator(grpc_body(), directory)
    samples: dict[tuple[str, str], list[tuple[Load, float]]] = {}
    for number in range(rounds + 1):
        for target in targets:
            label = f"round {number}/{rounds}: {target.name} {target.protocol}"
            print(f"\r{label:50}", end="", file=sys.stderr, flush=True)
            is_rest = target.protocol == "http"
            generate, load = (rest, _REST_LOAD) if is_rest else (calls, _GRPC_LOAD)
            before_s = cpu_seconds(target.served.pid)
            came = generate(target.served.ports[target.protocol], target.path, *load, seconds)
            used_s = cpu_seconds(target.served.pid) - before_s
            if number:
                samples.setdefault((target.name, target.protocol), []).append((came, used_s))
    print("\r" + " " * 50 + "\r", end="", file=sys.stderr)
    rows = [summarise(*key, found, samples["hloserve", key[1]]) for key, found in samples.items()]
    return rows, {"http": rest_name, "grpc": grpc_name}


def summarise(
    name: str, protocol: str, its: list[tuple[Load, float]], ours: list[tuple[Load, float]]
) -> Row:
    """Figures of one target."""
    ratios = [a.rate / max(b.rate, 1e-9) for (a, _), (b, _) in zip(ours, its, strict=True)]
    return Row(
        name,
        protocol,
        rate=statistics.median(load.rate for load, _ in its),
        cpu_us=min(cpu_s / max(load.requests, 1) for load, cpu_s in its) * 1e6,
        errors=sum(load.errors for load, _ in its),
        ratio=statistics.median(ratios),
        worst_ratio=min(ratios),
    )


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", default="triton,mlserver", help=f"of {', '.join(PINS)}")
    parser.add_argument(
        "--environments", type=Path, help="where the peers are, or are to be, installed"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=2, help="per server, protocol and round")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/peers.json"))
    options = parser.parse_args()
    peers = [name for name in options.peers.split(",") if name]
    if unknown := set(peers) - PINS.keys():
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PINS)}")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environments = options.environments or directory / "environments"
        targets = collect(stack, directory, environments.absolute(), peers)
        rows, generators = run(targets, directory, options.rounds, options.seconds)
    for protocol, shape in (("http", "REST, 256 connections"), ("grpc", "gRPC, 16 x 16 streams")):
        print(f"{shape}, by {generators[protocol]}")
        for row in rows:
            if row.protocol == protocol:
                print(
                    f"  {row.server:10}{row.rate:9,.0f}/s  CPU {row.cpu_us:7.1f} us"
                    f"  hloserve/it {row.ratio:6.2f} (worst round {row.worst_ratio:.2f})"
                    f"  errors {row.errors}"
                )
    machine = {"platform": platform.platform(), "cpus": os.cpu_count()}
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "python": platform.python_version(),
        "versions": {peer: PINS[peer] for peer in peers},
        "generators": generators,
        "rounds": options.rounds,
        "results": [asdict(row) for row in rows],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
