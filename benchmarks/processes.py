"""Servers as processes of their own, and the CPU time that they use."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Served", "cpu_seconds", "started", "started_hloserve"]


@dataclass(frozen=True, slots=True)
class Served:
    """A running server.

    Attributes:
        pid: of its process, whose children belong to it.
        ports: by protocol.
    """

    pid: int
    ports: Mapping[str, int]


def cpu_seconds(pid: int) -> float:
    """CPU time that a process, its threads and its children have used; Linux only."""
    nanoseconds = 0
    waiting = [pid]
    while waiting:
        process = Path("/proc", str(waiting.pop()))
        for task in (process / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends just now
                nanoseconds += int((task / "schedstat").read_text().split()[0])
                waiting += map(int, (task / "children").read_text().split())
    return nanoseconds / 1e9


@contextmanager
def started(module: str) -> Iterator[Served]:
    """Run one of `benchmarks.servers`, which prints its port; the protocol is in its name."""
    command = [sys.executable, "-m", f"benchmarks.servers.{module}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            protocol = "http" if module.startswith("rest") else "grpc"
            yield Served(process.pid, {protocol: int(process.stdout.readline())})
        finally:
            process.kill()


@contextmanager
def started_hloserve(
    repository: Path, settings: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> Iterator[Served]:
    """Run `hloserve serve` with the bundles of a directory; ready once this is entered.

    Args:
        repository: its parent takes the file with the ports.
        settings: environment.
        flags: of the command.
    """
    ports = repository.parent / "ports.json"
    ports.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "hloserve", "serve", str(repository), "--log-format", "json",
        "--http-port", "0", "--grpc-port", "0", "--admin-port", "0", "--ports-file", str(ports),
        *flags,
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (settings or {}),
    ) as process:
        assert process.stderr is not None
        try:
            lines: list[str] = []
            for line in process.stderr:
                lines.append(line)
                if "startup_done" in line:
                    break
            else:
                raise RuntimeError("hloserve did not start:\n" + "".join(lines[-20:]))
            yield Served(process.pid, json.loads(ports.read_text()))
        finally:
            process.terminate()
