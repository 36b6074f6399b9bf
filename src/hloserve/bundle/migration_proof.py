"""Proof that a weights file in program order holds what a legacy file holds, byte for byte.

What lives here: the comparison, and the one door to the `safetensors` library, which reads the
original a second time, independently of our own reader. What does not: when a proof is needed
(`hloserve.bundle.migration`). Any thread.

Rules.
1. Names, dtypes, byte counts and metadata are equal, each shape is reversed, every byte of every
   tensor is the same as in the original's array. Bytes, not values: NaN payloads and -0.0 count.
2. The original's array is made twice: by our legacy reader, and from what the library reads.
3. Files are named by open descriptors, so that no rename changes what is compared.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hloserve.bundle.active_weights import RECORD_KEYS
from hloserve.bundle.findings import listing, raise_findings
from hloserve.bundle.weights import AXIS_ORDER, WeightsFile, WeightTensor
from hloserve.core.errors import MissingExtra, WeightsProblem
from hloserve.core.tensors import Array

__all__ = ["SecondReader", "open_with_library", "prove_equal"]

_WHOLE_FILE = frozenset(("BF16", "F8_E5M2", "F8_E4M3"))
"""Dtypes that the library's numpy side does not read; raw bytes of a whole file it always gives."""

Facts: TypeAlias = tuple[str, tuple[int, ...]]
"""A tensor as a header has it: dtype in safetensors' words, shape."""


class SecondReader(Protocol):
    """Another reader of safetensors than ours: what is in an open file."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, Facts]

    def read(self, name: str) -> Array:
        """A tensor's elements, in the shape of the header; unsigned words of the dtype's size."""
        ...


class _LibraryReader:
    """The `safetensors` library."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path
        self.metadata: Mapping[str, str] = file.metadata() or {}
        slices = {name: file.get_slice(name) for name in file.offset_keys()}
        self.tensors: Mapping[str, Facts] = {
            name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()
        }
        self._raw: dict[str, Any] = {}

    def read(self, name: str) -> Array:
        dtype, shape = self.tensors[name]
        if dtype in _WHOLE_FILE:
            word = np.dtype(np.uint16 if dtype == "BF16" else np.uint8)
            raw: Array = np.frombuffer(self._whole()[name]["data"], word).reshape(shape)
            return raw
        array: Array = self._file.get_tensor(name)
        return array.view(np.dtype(f"u{array.dtype.itemsize}"))

    def _whole(self) -> Mapping[str, Any]:
        from safetensors import deserialize

        if not self._raw:
            with open(self._path, "rb") as file:
                self._raw = dict(deserialize(file.read()))  # type: ignore[no-untyped-call]  # its stub has no types
        return self._raw


@contextlib.contextmanager
def open_with_library(weights: WeightsFile) -> Iterator[SecondReader]:
    """Open the same file, whatever its name is now, with the `safetensors` library.

    Raises:
        WeightsProblem: the library refuses the file.
        MissingExtra: it is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as missing:
        raise MissingExtra("server", "proving migrated weights", missing) from missing
    path = f"/proc/self/fd/{weights.fd}"
    try:
        # pread and not mmap: a file that shrinks while it is mapped would end the process.
        with safe_open(path, framework="numpy", backend="pread") as file:
            yield _LibraryReader(file, path)
    except (SafetensorError, OSError) as error:
        reason = f"the safetensors library cannot read it: {error}"
        raise WeightsProblem(weights.path, reason) from error


def prove_equal(original: WeightsFile, copy: WeightsFile) -> None:
    """Compare a copy in program order with its legacy original.

    Raises:
        WeightsProblem: they differ in anything but what makes the copy a copy; all differences of
            the headers, or the first tensor whose bytes differ.
        MissingExtra: the second reader is not installed.
    """
    with open_with_library(original) as second, open_with_library(copy) as second_of_copy:
        findings = _compare_metadata(original, copy)
        findings += _compare_headers(original, copy, second, second_of_copy)
        raise_findings(WeightsProblem, copy.path, findings)
        for name, tensor in original.tensors.items():
            _compare_bytes(original, copy, tensor, copy.tensors[name], second.read(name))


def _compare_metadata(original: WeightsFile, copy: WeightsFile) -> list[str]:
    findings = []
    if not original.is_legacy:
        findings.append(f"its original {original.path.name} is in program order already")
    if copy.is_legacy:
        findings.append(f"metadata {AXIS_ORDER!r} is missing, so it is no copy in program order")
    strip = RECORD_KEYS | {AXIS_ORDER}
    before = {key: value for key, value in original.metadata.items() if key not in strip}
    after = {key: value for key, value in copy.metadata.items() if key not in strip}
    if before != after:
        differing = sorted(dict(before.items() ^ after.items()))
        findings.append(f"metadata {listing(differing)} is not that of the original")
    return findings


def _compare_headers(
    original: WeightsFile, copy: WeightsFile, second: SecondReader, second_of_copy: SecondReader
) -> list[str]:
    findings = []
    expected = {n: (t.dtype.safetensors, t.shape) for n, t in original.tensors.items()}
    by_second = {name: (dtype, shape[::-1]) for name, (dtype, shape) in second.tensors.items()}
    ours = {n: (t.dtype.safetensors, t.shape) for n, t in copy.tensors.items()}
    found = {
        "the original, read by the safetensors library": by_second,
        "the copy": ours,
        "the copy, read by the safetensors library": dict(second_of_copy.tensors),
    }
    for what, tensors in found.items():
        if tensors != expected:
            differing = sorted({name for name, _ in tensors.items() ^ expected.items()})
            findings.append(f"dtype or shape of {listing(differing)} differs in {what}")
    for file, reader in ((original, second), (copy, second_of_copy)):
        if dict(file.metadata) != dict(reader.metadata):
            findings.append(f"two readers disagree on the metadata of {file.path.name}")
    return findings


def _compare_bytes(
    original: WeightsFile,
    copy: WeightsFile,
    tensor: WeightTensor,
    copied: WeightTensor,
    second: Array,
) -> None:
    """Compare one tensor; in memory are four of it at most."""
    there = np.empty(tensor.nbytes, np.uint8)
    copy.read_into(copied, there)
    word = np.dtype(f"u{tensor.dtype.itemsize}")
    array: npt.NDArray[Any] = there.view(word).reshape(tensor.shape)
    _refuse_unless(np.array_equal(array, second.T), copy, tensor, "the safetensors library reads")
    expected = np.empty(tensor.nbytes, np.uint8)
    original.read_into(tensor, expected)
    _refuse_unless(np.array_equal(there, expected), copy, tensor, "this server reads")


def _refuse_unless(is_equal: bool, copy: WeightsFile, tensor: WeightTensor, reader: str) -> None:
    if not is_equal:
        reason = f"tensor {tensor.name[:80]!r} differs from what {reader} in the original"
        raise WeightsProblem(copy.path, reason)
