"""The safetensors format: a bounded reader for hostile files, and the header for writing.

A file is a little-endian u64 (the header's length), a JSON object, and the tensors' bytes. The
object maps each name to dtype, shape and begin and end within the bytes; ``__metadata__`` maps
strings to strings.

What lives here: the header. What does not: what bundles put in it, and reading the tensors
(`hloserve.bundle.weights`). Why not the library: docs/decisions/05-safetensors.md. Any thread.

Rules.
1. Nothing is allocated for a size that the file only claims: the header must fit in the file.
2. The tensors cover the bytes exactly: no gap, no overlap, nothing beyond the end, none left over.
3. A tensor is as long as its shape and dtype say, in exact integers.
4. Each fault is a `WeightsProblem`, whatever the bytes are.
"""

import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from hloserve.bundle.axes import is_whole
from hloserve.bundle.findings import describe, listing, raise_findings, repeated
from hloserve.core.dtypes import DTYPES, DType, by_safetensors
from hloserve.core.errors import WeightsProblem

__all__ = [
    "MAX_HEADER_BYTES",
    "MAX_RANK",
    "METADATA_KEY",
    "Header",
    "TensorEntry",
    "encode_header",
    "parse_header",
    "read_header",
]

MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 32  # what every numpy holds
METADATA_KEY = "__metadata__"
_LENGTH = struct.Struct("<Q")
_FIELDS = ("dtype", "shape", "data_offsets")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file: `begin` and `end` count from the start of the tensors' bytes."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header.

    Attributes:
        metadata: the file's own string to string map.
        tensors: by name, in the header's order.
        data_start: where the tensors' bytes begin in the file.
    """

    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorEntry]
    data_start: int


def read_header(fd: int, source: str) -> Header:
    """Read and check the header of an open file.

    Args:
        fd: a regular file, open for reading; its position is neither used nor moved.
        source: what errors call the file.

    Raises:
        WeightsProblem: it is not a safetensors file, or its header and its bytes disagree.
    """
    try:
        file_bytes = os.fstat(fd).st_size
        prefix = os.pread(fd, _LENGTH.size, 0)
        if len(prefix) < _LENGTH.size:
            raise WeightsProblem(
                source, f"not a safetensors file: it has {file_bytes} bytes, a header needs more"
            )
        header_bytes = _LENGTH.unpack(prefix)[0]
        _check_header_length(header_bytes, file_bytes, source)
        text = os.pread(fd, header_bytes, _LENGTH.size)
    except OSError as error:
        raise WeightsProblem(source, f"cannot be read: {error.strerror}") from error
    if len(text) < header_bytes:  # pragma: no cover  # cut off between two system calls
        raise WeightsProblem(source, "the file became shorter while it was read; write it again")
    data_start = _LENGTH.size + header_bytes
    metadata, tensors = parse_header(text, file_bytes - data_start, source)
    return Header(metadata, tensors, data_start)


def _check_header_length(header_bytes: int, file_bytes: int, source: str) -> None:
    if header_bytes > MAX_HEADER_BYTES:
        raise WeightsProblem(
            source,
            f"not a safetensors file: the header would be {header_bytes} bytes long,"
            f" the limit is {MAX_HEADER_BYTES}",
        )
    if header_bytes > file_bytes - _LENGTH.size:
        raise WeightsProblem(
            source,
            f"the header claims {header_bytes} bytes, but the file has only {file_bytes};"
            " it was cut off or is not a safetensors file",
        )


def parse_header(
    text: bytes, data_bytes: int, source: str
) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    """Parse a header's JSON and check it against the number of bytes that follow it.

    Raises:
        WeightsProblem: holds all findings.
    """
    root = _parse_json(text, source)
    findings: list[str] = []
    metadata = _parse_metadata(root.pop(METADATA_KEY, {}), findings)
    entries = [_parse_entry(name, entry, findings) for name, entry in root.items()]
    tensors = {entry.name: entry for entry in entries if entry is not None}
    if not findings:
        findings = _check_cover(tensors.values(), data_bytes)
    raise_findings(WeightsProblem, source, findings)
    return metadata, tensors


class _Fault(Exception):
    """Raised inside the JSON parser's callbacks."""


def _parse_json(text: bytes, source: str) -> dict[str, Any]:
    if text[:1] != b"{":
        raise WeightsProblem(source, "not a safetensors file: the header does not begin with '{'")
    try:
        root = json.loads(
            text.decode(),
            object_pairs_hook=_without_repeats,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except _Fault as fault:
        raise WeightsProblem(source, f"header: {fault}") from None
    except UnicodeDecodeError as error:
        raise WeightsProblem(source, f"header is not UTF-8 (at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise WeightsProblem(
            source, f"header is not JSON: {error.msg} (at character {error.pos})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise WeightsProblem(source, f"header: {str(error)[:200]}") from error
    return root  # type: ignore[no-any-return]  # '{' came first, so it is an object


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = listing(repeated(key for key, _ in pairs))
        raise _Fault(f"{twice} appears twice; names are unique")
    return mapping


def _refuse_number(text: str) -> NoReturn:
    raise _Fault(f"number {text[:40]} is not an integer")


def _parse_metadata(value: object, findings: list[str]) -> dict[str, str]:
    if not isinstance(value, dict):
        findings.append(f"{METADATA_KEY} must map strings to strings, got {describe(value)}")
        return {}
    strange = [key for key, item in value.items() if not isinstance(item, str)]
    if strange:
        findings.append(f"{METADATA_KEY}: the values of {listing(strange)} are not strings")
    return {key: item for key, item in value.items() if isinstance(item, str)}


def _parse_entry(name: str, entry: object, findings: list[str]) -> TensorEntry | None:
    where = f"tensor {name[:80]!r}"
    if not isinstance(entry, dict) or set(entry) != set(_FIELDS):
        got = f"the keys {listing(entry)}" if isinstance(entry, dict) else describe(entry)
        findings.append(f"{where}: must be an object of {', '.join(_FIELDS)}; got {got}")
        return None
    before = len(findings)
    if not name.isascii() and not _is_utf8(name):
        findings.append(f"{where}: the name holds half of a surrogate pair")
    dtype = _parse_dtype(entry["dtype"], where, findings)
    shape = _parse_extents(entry["shape"], f"{where}: shape", findings)
    offsets = _parse_extents(entry["data_offsets"], f"{where}: data_offsets", findings)
    if len(shape) > MAX_RANK:
        findings.append(f"{where}: has {len(shape)} axes, at most {MAX_RANK} are supported")
    if len(findings) > before or dtype is None:
        return None
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        findings.append(
            f"{where}: data_offsets must be [begin, end], got {describe(list(offsets))}"
        )
        return None
    expected = prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != expected:
        findings.append(
            f"{where}: data_offsets span {offsets[1] - offsets[0]} bytes, but {dtype.safetensors}"
            f" of shape {list(shape)} takes {listing([expected])}"
        )
        return None
    return TensorEntry(name, dtype, shape, *offsets)


def _parse_dtype(value: object, where: str, findings: list[str]) -> DType | None:
    if isinstance(value, str):
        try:
            return by_safetensors(value)
        except KeyError:
            pass
    supported = ", ".join(dtype.safetensors for dtype in DTYPES)
    findings.append(f"{where}: dtype {describe(value)} is not one of {supported}")
    return None


def _parse_extents(value: object, where: str, findings: list[str]) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(is_whole(item) and item >= 0 for item in value):
        findings.append(f"{where} must be a list of integers from 0 on, got {describe(value)}")
        return ()
    return tuple(value)


def _check_cover(tensors: Iterable[TensorEntry], data_bytes: int) -> list[str]:
    at, before = 0, "the header"
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin != at:
            fault = "overlaps" if tensor.begin < at else "leaves a gap after"
            return [
                f"tensor {tensor.name!r} {fault} {before}: it begins at {tensor.begin},"
                f" expected {at}"
            ]
        at, before = tensor.end, f"tensor {tensor.name!r}"
    if at != data_bytes:
        more = "is cut off or not complete" if at > data_bytes else "has bytes that belong to none"
        return [f"the tensors take {at} bytes, but {data_bytes} follow the header; the file {more}"]
    return []


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_header(tensors: Sequence[TensorEntry], metadata: Mapping[str, str]) -> bytes:
    """Write the length and the JSON of a header, padded to a multiple of eight bytes.

    Args:
        tensors: in the order of their bytes, with offsets that leave no gap.
        metadata: keys in the order to write; left out when empty.
    """
    root: dict[str, object] = {METADATA_KEY: dict(metadata)} if metadata else {}
    for tensor in tensors:
        root[tensor.name] = {
            "dtype": tensor.dtype.safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [tensor.begin, tensor.end],
        }
    text = json.dumps(root, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text
