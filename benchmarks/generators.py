"""What makes the load: wrk and h2load where they are installed, this project's own otherwise.

One generator per protocol serves a whole run, so all servers meet the same one. Those two are the
cheaper ones, and nobody's relatives.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

__all__ = ["Load", "grpc_generator", "rest_generator"]


@dataclass(frozen=True, slots=True)
class Load:
    """What came of one run: requests per second, and how many were not answered well."""

    rate: float
    requests: int
    errors: int


Generate: TypeAlias = Callable[[int, str, int, int, int], Load]
"""Sends requests to a port and target, over so many connections of so many streams, for seconds."""


def rest_generator(body: bytes, directory: Path) -> tuple[str, Generate]:
    """Name and function of what posts a JSON body."""
    if shutil.which("wrk") is None:
        return "own", lambda *plan: _own("rest", body, *plan)
    script = directory / "post.lua"
    head = 'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
    script.write_text(f"{head}wrk.body = [[{body.decode()}]]\n")

    def generate(port: int, target: str, connections: int, streams: int, seconds: int) -> Load:
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script)]
        text = subprocess.check_output([*command, f"http://127.0.0.1:{port}{target}"], text=True)
        done = re.search(r"(\d+) requests in ([\d.]+)(ms|s|m)", text)
        assert done is not None, text
        elapsed_s = float(done[2]) * {"ms": 1e-3, "s": 1.0, "m": 60.0}[done[3]]
        refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
        broken = re.search(r"connect (\d+), read (\d+), write (\d+)", text)
        errors = int(refused[1]) if refused else 0
        errors += sum(map(int, broken.groups())) if broken else 0
        return Load(int(done[1]) / elapsed_s, int(done[1]), errors)

    return "wrk", generate


def grpc_generator(message: bytes, directory: Path) -> tuple[str, Generate]:
    """Name and function of what calls a unary method."""
    if shutil.which("h2load") is None:
        return "own", lambda *plan: _own("grpc", message, *plan)
    body = directory / "message"
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)

    def generate(port: int, target: str, connections: int, streams: int, seconds: int) -> Load:
        command = [
            "h2load", f"-c{connections}", f"-m{streams}", f"-D{seconds}s", "-d", str(body),
            "-H", "content-type: application/grpc", "-H", "te: trailers",
            f"http://127.0.0.1:{port}{target}",
        ]  # fmt: skip
        text = subprocess.check_output(command, text=True, stderr=subprocess.STDOUT)
        rate = re.search(r"finished in .*?, ([\d.]+) req/s", text)
        counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", text)
        assert rate is not None, text
        assert counts is not None, text
        succeeded, *bad = map(int, counts.groups())
        return Load(float(rate[1]), succeeded, sum(bad))

    return "h2load", generate


def _own(
    kind: str, body: bytes, port: int, target: str, connections: int, streams: int, seconds: int
) -> Load:
    plan = {
        "kind": kind, "port": port, "connections": connections, "streams": streams,
        "seconds": seconds, "target": target, "bodies_hex": [body.hex()],
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.load", json.dumps(plan)]
    result = json.loads(subprocess.check_output(command, text=True))
    return Load(result["rate"], result["requests"], result["errors"])
