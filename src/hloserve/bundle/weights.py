"""The weights of a bundle: which tensors, in which order, and their bytes in program order.

A weights file has one of two layouts, which its own metadata declares. With ``axis_order: xla``
the bytes are the program's arguments as they are. Without the key it is a legacy file: header
shapes are reversed, and the data is the row-major form of the transposed array, so each tensor of
rank 2 or more is permuted while it is read. Nothing else tells the layouts apart; never guess.

What lives here: `WeightsFile`. What does not: the header's syntax (`hloserve.bundle.safetensors`),
which file of a bundle it is (`hloserve.bundle.active_weights`), memory (`hloserve.engine.arena`). A
`WeightsFile` belongs to whoever opened it; `read_into` may be called from several threads.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from hloserve.bundle.files import open_regular
from hloserve.bundle.findings import describe, listing, raise_findings, repeated
from hloserve.bundle.safetensors import Header, TensorEntry, read_header
from hloserve.core.dtypes import BOOL, DType
from hloserve.core.errors import WeightsProblem

__all__ = [
    "ARGUMENT_ORDER",
    "AXIS_ORDER",
    "PROGRAM_AXIS_ORDER",
    "WeightTensor",
    "WeightsFile",
]

ARGUMENT_ORDER = "argument_order"
AXIS_ORDER = "axis_order"
PROGRAM_AXIS_ORDER = "xla"

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """One weight argument of a program.

    Attributes:
        shape: in program order, whatever the file's layout.
        offset: where its bytes begin in the file.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class WeightsFile:
    """An open weights file; close it, or use it as a context manager.

    Attributes:
        path: the file.
        arguments: the program's weight arguments, in order.
        tensors: all tensors in the file by name, listed as arguments or not.
        metadata: the file's own metadata.
        is_legacy: True when reading permutes the data.
        warnings: what was ignored, one sentence each.
    """

    def __init__(self, path: Path, fd: int, header: Header, warnings: Sequence[str] = ()) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = header.metadata
        self._fd = fd
        findings: list[str] = []
        self.is_legacy = _is_legacy(header, findings)
        names = _argument_order(header, findings)
        raise_findings(WeightsProblem, path, findings)
        self.tensors: Mapping[str, WeightTensor] = {
            name: _argument(header, entry, self.is_legacy) for name, entry in header.tensors.items()
        }
        self.arguments = tuple(self.tensors[name] for name in names)
        listed = set(names)
        unlisted = [name for name in header.tensors if name not in listed]
        self.warnings: tuple[str, ...] = tuple(warnings)
        if unlisted:
            self.warnings += (
                f"{path.name}: tensors that {ARGUMENT_ORDER} does not list are ignored:"
                f" {listing(unlisted)}",
            )

    @classmethod
    def open(cls, path: str | Path, *, warnings: Sequence[str] = ()) -> "WeightsFile":
        """Open a file, and check its header and its metadata.

        Args:
            path: the file.
            warnings: what there is to say about the choice of this file.

        Raises:
            WeightsProblem: it is missing, not a regular file, not safetensors, or its metadata
                does not say which tensors are arguments. Holds all findings of one kind.
        """
        path = Path(path)
        try:
            fd = open_regular(path)
        except FileNotFoundError as error:
            raise WeightsProblem(
                path, "the file is missing; a bundle needs it even without tensors"
            ) from error
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise WeightsProblem(path, f"cannot be opened: {reason}") from error
        try:
            return cls(path, fd, read_header(fd, str(path)), warnings)
        except BaseException:
            os.close(fd)
            raise

    @property
    def fd(self) -> int:
        """The open file; stays the same file whatever becomes of its name."""
        return self._fd

    @property
    def nbytes(self) -> int:
        """Bytes of all arguments together."""
        return sum(tensor.nbytes for tensor in self.arguments)

    def read_into(self, tensor: WeightTensor, destination: memoryview | Bytes) -> None:
        """Read an argument in program order into memory that the caller provides.

        A tensor in program order is read straight into it. A legacy tensor of rank 2 or more takes
        a temporary copy of its own size.

        Args:
            tensor: one of `arguments`.
            destination: writable, contiguous, of exactly `tensor.nbytes` bytes.

        Raises:
            WeightsProblem: the file cannot be read, became shorter, or holds a bool that is
                neither 0 nor 1.
        """
        target = np.frombuffer(destination, np.uint8)
        if target.nbytes != tensor.nbytes or not target.flags.writeable:
            raise ValueError(
                f"the destination of {tensor.name!r} must be writable and hold {tensor.nbytes}"
                f" bytes, it holds {target.nbytes}"
            )
        if self._is_permuted(tensor):
            raw = np.empty(tensor.nbytes, np.uint8)
            self._read(tensor, raw, 0)
            _permute(raw, target, tensor)
        else:
            self._read(tensor, target, 0)
        self._check(tensor, target)

    def read_pieces(self, tensor: WeightTensor, buffer: Bytes) -> Iterator[Bytes]:
        """Read an argument in program order, from front to back.

        Args:
            tensor: one of `arguments`.
            buffer: what pieces are read into; not empty.

        Yields:
            Its bytes, each piece good until the next. A legacy tensor of rank 2 or more is one
            piece, with memory of its own.

        Raises:
            WeightsProblem: as `read_into`.
        """
        if self._is_permuted(tensor):
            whole = np.empty(tensor.nbytes, np.uint8)
            self.read_into(tensor, whole)
            yield whole
            return
        for start in range(0, tensor.nbytes, buffer.nbytes):
            piece = buffer[: tensor.nbytes - start]
            self._read(tensor, piece, start)
            self._check(tensor, piece)
            yield piece

    def _is_permuted(self, tensor: WeightTensor) -> bool:
        return self.is_legacy and len(tensor.shape) > 1

    def _check(self, tensor: WeightTensor, content: Bytes) -> None:
        if tensor.dtype is BOOL and content.size and content.max() > 1:
            raise WeightsProblem(
                self.path, f"tensor {tensor.name!r} is bool, but holds bytes other than 0 and 1"
            )

    def _read(self, tensor: WeightTensor, target: Bytes, start: int) -> None:
        """Fill memory with the bytes of a tensor from `start` on, as they are in the file."""
        view, done = target.data, 0
        while done < target.nbytes:
            try:
                count = os.preadv(self._fd, [view[done:]], tensor.offset + start + done)
            except OSError as error:
                raise WeightsProblem(
                    self.path, f"tensor {tensor.name!r} cannot be read: {error.strerror}"
                ) from error
            if count == 0:
                raise WeightsProblem(
                    self.path,
                    f"the file became shorter after it was opened: tensor {tensor.name!r} ends"
                    f" {tensor.nbytes - start - done} bytes behind its end",
                )
            done += count

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> "WeightsFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _is_legacy(header: Header, findings: list[str]) -> bool:
    axis_order = header.metadata.get(AXIS_ORDER)
    if axis_order is not None and axis_order != PROGRAM_AXIS_ORDER:
        findings.append(
            f"metadata {AXIS_ORDER!r} must be {PROGRAM_AXIS_ORDER!r} or absent, got"
            f" {describe(axis_order)}; a newer bundle needs a newer server"
        )
    return axis_order is None


def _argument_order(header: Header, findings: list[str]) -> list[str]:
    text = header.metadata.get(ARGUMENT_ORDER)
    if text is None:
        if header.tensors:
            findings.append(
                f"metadata {ARGUMENT_ORDER!r} is missing; it must list the names of the"
                f" {len(header.tensors)} tensors in the order of the program's arguments"
            )
        return []
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        findings.append(
            f"metadata {ARGUMENT_ORDER!r} must be a JSON list of names, got {describe(text)}"
        )
        return []
    if len(set(names)) < len(names):
        findings.append(f"metadata {ARGUMENT_ORDER!r} lists {listing(repeated(names))} twice")
    findings += [
        f"weight {name[:80]!r} is missing: metadata {ARGUMENT_ORDER!r} lists it, but there is no"
        " such tensor"
        for name in names
        if name not in header.tensors
    ]
    return names


def _argument(header: Header, entry: TensorEntry, is_legacy: bool) -> WeightTensor:
    shape = entry.shape[::-1] if is_legacy else entry.shape
    offset = header.data_start + entry.begin
    return WeightTensor(entry.name, entry.dtype, shape, offset, entry.end - entry.begin)


def _permute(raw: Bytes, target: Bytes, tensor: WeightTensor) -> None:
    # As unsigned integers: bits are moved, whatever they mean (NaN payloads, float8).
    word = np.dtype(f"u{tensor.dtype.itemsize}")
    stored = raw.view(word).reshape(tensor.shape[::-1])
    np.copyto(target.view(word).reshape(tensor.shape), stored.T)
