"""A hook process as its server sees it: started, connected, ended.

What lives here: `HookChild`. What does not: what is said to it (`hloserve.models.hook_processes`)
and what runs in it (`hloserve.models.hook_process`). One thread per child, but for `kill`.

It has a process group to itself: what the author's code starts ends with it, and Ctrl-C on the
server's terminal, which lets calls end, does not reach it.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hloserve.models.hook_frames import SharedBlock

__all__ = ["HookChild"]

_LOOK_S = 0.005


class HookChild:
    """One process, its connection and the memory that it shares.

    Args:
        bundle: whose hook file it is to run.

    Raises:
        OSError: the machine has no room for another process.
    """

    def __init__(self, bundle: Path) -> None:
        block = os.memfd_create("hloserve-hooks")
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            os.close(block)
            raise
        try:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hloserve.models.hook_process"),
                    *(str(theirs.fileno()), str(block), str(os.getpid()), str(bundle)),
                ],
                pass_fds=(theirs.fileno(), block),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError:
            ours.close()
            os.close(block)
            raise
        finally:
            theirs.close()
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        self.block = SharedBlock(block)
        self._ending = threading.Lock()
        self._is_killed = False

    def kill(self) -> None:
        """End it and what it has started, at once. Idempotent. Any thread."""
        with self._ending:
            is_first, self._is_killed = not self._is_killed, True
            if is_first:  # later, the number may be that of another one
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def has_ended(self) -> bool:
        """True when the process is no more, whoever still holds its end of the connection."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT  # its number stays its own until `end`
        return os.waitid(os.P_PID, self.process.pid, how) is not None

    def end(self, patience_s: float = 0.0) -> str:
        """End it and what it has started, and say how it ended.

        Args:
            patience_s: how long it may take to end by itself, so that its own reason is said.
        """
        self.connection.close()
        until = time.monotonic() + patience_s
        while not (has_ended := self.has_ended) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        self.kill()
        status = self.process.wait()
        self.block.close()
        if patience_s and not has_ended:
            return "it closed its connection"
        if status >= 0:
            return f"exit status {status}"
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
