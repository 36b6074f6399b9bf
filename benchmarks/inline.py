"""Large tensors inside of gRPC messages, against a server written with grpcio.

    python -m benchmarks.inline [--rounds 9] [--mib 16] [--out FILE]

Both servers get the same bytes from the same grpcio client, one request at a time, in turns. "in"
is a model that looks at four numbers of its input; "in and out" is an identity, for which XLA makes
a copy, and grpcio's server NumPy; "echo" is the transports alone, without a message being read. The
ratio is bytes per second over those of grpcio's server in the same round: the median. CPU is what
the server's process used per megabyte: the least of the rounds.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np

from benchmarks.processes import Served, cpu_seconds, started, started_hloserve
from benchmarks.shared_memory import write_models
from hloserve.core.requests import InferRequest
from hloserve.wire.v2_protobuf import encode_infer_request

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_WAYS = (("in", "look", 1), ("in and out", "same", 2), ("echo", "same", 2))


def sample(call: Callable[[], object], pid: int, moved: int, seconds: float) -> tuple[float, float]:
    """Bytes per second of a call that moves so many, and CPU seconds of the server per byte."""
    cpu_s, start, count = cpu_seconds(pid), time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or not count:
        call()
        count += 1
    return count * moved / elapsed, (cpu_seconds(pid) - cpu_s) / (count * moved)


def run(directory: Path, nbytes: int, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """All ways by name; the first round warms up and does not count."""
    repository = directory / "models"
    write_models(repository, nbytes // 4)
    values = np.random.default_rng(0).random((1, nbytes // 4), np.float32)
    bodies = {
        model: bytes(encode_infer_request(InferRequest(model, {"x": values})))
        for model in ("look", "same")
    }
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:

        def channel(served: Served) -> tuple[int, Callable[[bytes], bytes]]:
            address = f"127.0.0.1:{served.ports['grpc']}"
            opened = stack.enter_context(grpc.insecure_channel(address, _OPTIONS))
            return served.pid, opened.unary_unary(_METHOD)

        ours = channel(stack.enter_context(started_hloserve(repository)))
        theirs = channel(stack.enter_context(started("grpcio_tensors")))
        our_echo = channel(stack.enter_context(started("grpc_echo")))
        their_echo = channel(stack.enter_context(started("grpcio_echo")))
        for _ in range(rounds + 1):
            for way, model, times in _WAYS:
                pair = (our_echo, their_echo) if way == "echo" else (ours, theirs)
                for name, (pid, call) in zip(("hloserve", "grpcio"), pair, strict=True):
                    found = sample(lambda: call(bodies[model]), pid, times * nbytes, seconds)  # noqa: B023
                    samples.setdefault((way, name), []).append(found)
    return {way: summarise(samples[way, "hloserve"], samples[way, "grpcio"]) for way, *_ in _WAYS}


def summarise(
    ours: list[tuple[float, float]], theirs: list[tuple[float, float]]
) -> dict[str, float]:
    """Figures of one way, without its first round."""
    ours, theirs = ours[1:], theirs[1:]
    return {
        "gb_per_s": statistics.median(rate for rate, _ in ours) / 1e9,
        "grpcio_gb_per_s": statistics.median(rate for rate, _ in theirs) / 1e9,
        "ratio": statistics.median(a / b for (a, _), (b, _) in zip(ours, theirs, strict=True)),
        "cpu_us_per_mb": min(cpu for _, cpu in ours) * 1e12,
        "grpcio_cpu_us_per_mb": min(cpu for _, cpu in theirs) * 1e12,
    }


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="per way, server and round")
    parser.add_argument("--mib", type=int, default=16, help="size of a tensor")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/inline.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        table = run(Path(directory), options.mib * 2**20, options.rounds, options.seconds)
    for way, row in table.items():
        print(
            f"{way:12} {row['gb_per_s']:6.2f} GB/s, grpcio {row['grpcio_gb_per_s']:6.2f},"
            f" ratio {row['ratio']:5.2f}; CPU {row['cpu_us_per_mb']:6.0f} us/MB,"
            f" grpcio {row['grpcio_cpu_us_per_mb']:6.0f}"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"mib": options.mib, "machine": platform.platform(), "cpus": os.cpu_count()}
    options.out.write_text(json.dumps({**record, "ways": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
