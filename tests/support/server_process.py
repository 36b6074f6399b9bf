"""Real server processes.

What lives here: starting `hloserve` as a user does, waiting until it is ready, reading its log and
stopping it. What does not: workers in the process of the test (`support.server_worker`) and clients
(`support.demo_clients`).
"""

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["HLOSERVE", "ServerProcess", "running_server"]

HLOSERVE = str(Path(sys.executable).with_name("hloserve"))

_PATIENCE_S = 60.0


class ServerProcess:
    """A real `hloserve` process.

    Args:
        command: what to run; the ports and the log are taken care of.
        directory: for the ports file and what the process writes to standard output.

    Attributes:
        process: for its number, and for signals.
        ports: by name: ``http``, ``grpc``, ``admin``; set once it is ready.
        log: the JSON lines that it has written, parsed.
        errors: all lines that it has written to standard error, those of the log among them.
    """

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self._ports_file = directory / "ports.json"
        self._output_file = directory / "output"
        self.ports: Mapping[str, int]
        self.log: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._is_decided = threading.Event()
        with self._output_file.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *command, "--http-port", "0", "--grpc-port", "0", "--admin-port", "0",
                    "--ports-file", str(self._ports_file), "--log-format", "json",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        # The pipe must be emptied, or the server blocks on its log.
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None, "it is a pipe"
        for line in self.process.stderr:
            self.errors.append(line)
            if not line.startswith("{"):  # of a library, or of an interpreter that ends
                continue
            self.log.append(json.loads(line))
            if self.log[-1]["event"] == "startup_done":
                self._is_decided.set()
        self._is_decided.set()

    def wait_ready(self, start_s: float) -> None:
        """Wait until the start-up set is decided."""
        is_decided = self._is_decided.wait(start_s)
        has_started = any(record["event"] == "startup_done" for record in self.log)
        assert has_started, self._said("ended" if is_decided else f"not ready in {start_s} s")
        self.ports = json.loads(self._ports_file.read_text())
        # The event is one of several things that are done in one turn of the loop: see it end.
        urllib.request.urlopen(self.url("/v2/health/live"), timeout=start_s).close()

    def _said(self, what: str) -> str:
        return f"{what}, exit {self.process.poll()}:\n{''.join(self.errors)}"

    @property
    def output(self) -> str:
        """Standard output so far."""
        return self._output_file.read_text("utf-8")

    @property
    def http(self) -> str:
        """Host and port of REST."""
        return f"127.0.0.1:{self.ports['http']}"

    @property
    def grpc(self) -> str:
        """Host and port of gRPC."""
        return f"127.0.0.1:{self.ports['grpc']}"

    def url(self, path: str, port: str = "http") -> str:
        """An HTTP URL on one of its ports."""
        return f"http://127.0.0.1:{self.ports[port]}{path}"

    def terminate(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal that ends it; the exit status. The log is complete then."""
        self.process.send_signal(number)
        status = self.process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        return status

    def end_well(self) -> None:
        """Terminate it, if it runs: with status 0."""
        if self.process.poll() is None:
            status = self.terminate()
            assert status == 0, self._said("SIGTERM")

    def kill(self) -> None:
        """Leave nothing of it behind."""
        self.process.kill()
        self.process.wait()
        self._reader.join(_PATIENCE_S)
        assert self.process.stderr is not None, "it is a pipe"
        self.process.stderr.close()


@contextmanager
def running_server(
    directory: Path, *arguments: str, prefix: Sequence[str] = (), start_s: float = _PATIENCE_S
) -> Iterator[ServerProcess]:
    """Run `hloserve ARGUMENTS` on ports of the system's choice; it must end well, too.

    Args:
        directory: for the ports file and its output.
        arguments: the command, and what belongs to it.
        prefix: a command that runs it, given its words.
        start_s: how long it may take to be ready.
    """
    server = ServerProcess([*prefix, HLOSERVE, *arguments], directory)
    try:
        server.wait_ready(start_s)
        yield server
        server.end_well()
    finally:
        server.kill()
