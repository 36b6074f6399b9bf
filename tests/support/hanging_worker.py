"""A worker process whose device hangs: `python -m support.hanging_worker REPOSITORY PORTS_FILE`.

It is the fake device, and never ends an execution whose first value is -1.
"""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from hloserve.config import load
from hloserve.core.tensors import Array
from hloserve.engine.fake_backend import FakeBackend
from hloserve.server.serving import serve

TIMEOUT_S = 1.0
"""After that long an execution counts as hanging."""


def _hang(arguments: Sequence[Array]) -> bool:
    if arguments[0].flat[0] == -1:
        threading.Event().wait()
    return False


def _main(repository: str, ports_file: str) -> int:
    settings = {
        "model_dirs": [repository],
        "endpoints.http_port": 0,
        "endpoints.grpc_port": 0,
        "endpoints.admin_port": 0,
        "logging.format": "json",
        "runtime.execution_timeout_seconds": TIMEOUT_S,
    }
    return serve(
        load(None, {}, settings),
        ports_file=Path(ports_file),
        open_device=lambda _: FakeBackend(fail_when=_hang),
    )


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
