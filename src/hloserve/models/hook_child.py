"""A hook process as its server sees it: started, connected, ended.

What lives here: `HookChild`. What does not: what is said to it (`hloserve.models.hook_processes`)
and what runs in it (`hloserve.models.hook_process`). One thread per child, but for `kill`.
"""

import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hloserve.models.hook_frames import SharedBlock

__all__ = ["HookChild"]


class HookChild:
    """One process, its connection and the memory that it shares.

    Args:
        bundle: whose hook file it is to run.

    Raises:
        OSError: the machine has no room for another process.
    """

    def __init__(self, bundle: Path) -> None:
        ours, theirs = socket.socketpair()
        block = os.memfd_create("hloserve-hooks")
        try:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hloserve.models.hook_process"),
                    *(str(theirs.fileno()), str(block), str(os.getpid()), str(bundle)),
                ],
                pass_fds=(theirs.fileno(), block),
                stdin=subprocess.DEVNULL,
            )
        except OSError:
            ours.close()
            os.close(block)
            raise
        finally:
            theirs.close()
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        self.block = SharedBlock(block)
        self._descriptor = block

    def end(self) -> str:
        """End it if it has not ended, and say how it did."""
        self.connection.close()
        self.process.kill()
        status = self.process.wait()
        self.block.follow(0)
        os.close(self._descriptor)
        if status >= 0:
            return f"exit status {status}"
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
