"""What a hook process does: run one bundle's hook file, then call its hooks when asked.

What lives here: the child. What does not: starting, watching and ending it
(`hloserve.models.hook_processes`) and how tensors cross (`hloserve.models.hook_frames`). It imports
no jax, so it starts in a quarter of a second. One thread, but for what the author's code starts.

Rules.
1. It ends with its server: the connection closes, whatever ended that, and when a hook never comes
   back to see it, the system ends it.
2. It reads the bundle once, when it starts.
3. What the author's code starts, by fork or otherwise, neither answers nor holds the connection.
"""

import ctypes
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from hloserve.bundle.manifest import load_manifest
from hloserve.core.errors import HloserveError, HookFailed, InvalidInput
from hloserve.core.tensors import NamedTensor, TensorSpec
from hloserve.hooks.tensor_list import TensorList
from hloserve.models.hook_file import Hooks, load_hooks
from hloserve.models.hook_frames import (
    Answer,
    Move,
    Question,
    Refusal,
    SharedBlock,
    Started,
    read_tensors,
    write_tensors,
)
from hloserve.models.hook_results import call_hook, check_rows, check_tensors

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_Ask = msgspec.msgpack.Decoder(Question | Move)
_encode = msgspec.msgpack.encode


class _Serving:
    """The hooks of one bundle and what they have to return."""

    def __init__(self, bundle: Path) -> None:
        manifest = load_manifest(bundle)
        hooks = load_hooks(bundle, manifest.name)
        assert hooks is not None, "the server found a hook file"
        self.hooks: Hooks = hooks
        self.name = manifest.name
        self._specs: dict[str, Sequence[TensorSpec]] = {
            "preprocess": manifest.executable_inputs,
            "postprocess": manifest.outputs,
        }

    def move(self, moved: Move) -> None:
        self.hooks.move(Path(moved.bundle))
        self.name = moved.name

    def answer(self, question: Question, block: SharedBlock) -> Answer | Refusal:
        role = question.role
        specs = self._specs[role]
        block.follow(question.block_bytes)
        arrays = read_tensors(question.tensors, block)
        given = TensorList(
            NamedTensor(tensor.name, array)
            for tensor, array in zip(question.tensors, arrays, strict=True)
        )
        hook = self.hooks.preprocess if role == "preprocess" else self.hooks.postprocess
        assert hook is not None, "the server asks for hooks that there are"
        try:
            result = call_hook(self.name, role, self.hooks.directory, hook, given)
            checked = check_tensors(self.name, role, specs, result)
            if role == "preprocess":
                check_rows(self.name, role, specs, checked)
        except InvalidInput as error:
            return Refusal(_sendable(str(error)), is_callers_fault=True)
        except HookFailed as error:
            return Refusal(_sendable(error.reason), is_callers_fault=False)
        except (HloserveError, KeyboardInterrupt) as error:
            reason = _sendable(f"{type(error).__name__}: {error}")
            return Refusal(reason, is_callers_fault=False)
        try:
            stored = write_tensors([spec.name for spec in specs], checked, block)
        except OSError as error:
            reason = f"what it returned does not fit into memory: {error.strerror}"
            return Refusal(reason, is_callers_fault=False)
        return Answer(stored, block.nbytes)


def main(arguments: Sequence[str]) -> int:
    """Serve one bundle until the connection closes.

    Args:
        arguments: numbers of the descriptors of the connection and of the block, the number of the
            server's process, and the bundle's directory.

    Returns:
        The exit status.
    """
    connection_number, block_number, parent, bundle = arguments
    _end_with(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which still drains
    connection: Connection[Any, Any] = Connection(int(connection_number))
    block = SharedBlock(int(block_number))
    _keep_from_children(connection, block)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what hooks print is seen, however it ends
    try:
        serving = _Serving(Path(bundle))
    except HloserveError as error:
        connection.send_bytes(_encode(Started(str(error))))
        return 1
    connection.send_bytes(_encode(Started()))
    with suppress(EOFError, OSError):  # the server has closed its end
        while True:
            message = _Ask.decode(connection.recv_bytes())
            if isinstance(message, Move):
                serving.move(message)
            else:
                connection.send_bytes(_encode(serving.answer(message, block)))
    return 0


def _keep_from_children(connection: "Connection[Any, Any]", block: SharedBlock) -> None:
    """Have nothing that the author's code starts take part in the conversation."""

    def let_go() -> None:
        connection.close()  # one that returns from the hook fails to answer, and ends
        with suppress(BufferError):  # forked while tensors are laid into it: another thread does
            block.close()

    os.set_inheritable(connection.fileno(), False)
    os.set_inheritable(block.descriptor, False)
    os.register_at_fork(after_in_child=let_go)


def _sendable(text: str) -> str:
    """The text without what has no place in UTF-8."""
    return text.encode(errors="replace").decode()


def _end_with(parent: int) -> None:
    """Have the system end this process when the server's thread that started it has ended."""
    with suppress(OSError, AttributeError):  # not on Linux: the closed connection must do
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it ended before that


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
