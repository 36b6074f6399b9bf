"""Tensors of torch to arrays of NumPy and back, for every dtype that a bundle can hold.

What lives here: the table of dtypes, and copies between the two. What does not: JAX.

Any thread.
"""

from typing import Any

import numpy as np

from hloserve.core.dtypes import DTYPES, DType
from hloserve.core.errors import MissingExtra
from hloserve.core.tensors import Array

try:
    import torch
except ModuleNotFoundError as missing:
    raise MissingExtra("export-torch", "exporting PyTorch models", missing) from missing

# `torch` too: this is where its absence is told in our words
__all__ = ["array_of", "dtype_of", "tensor_of", "torch"]

_TORCH_NAMES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "f8_e5m2": "float8_e5m2",
    "f8_e4m3": "float8_e4m3fn",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
}
_BY_TORCH = {getattr(torch, _TORCH_NAMES[dtype.token]): dtype for dtype in DTYPES}
_TO_TORCH = {dtype: of_torch for of_torch, dtype in _BY_TORCH.items()}

# NumPy has no such types of its own: their bytes travel as integers of the same width.
_INTEGERS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
_FOREIGN = {"bf16", "f8_e5m2", "f8_e4m3"}


def dtype_of(of_torch: Any) -> DType | None:
    """The element type of a torch dtype; None for those that no bundle holds, such as complex."""
    return _BY_TORCH.get(of_torch)


def array_of(tensor: Any) -> Array:
    """Copy nothing that need not be: the result may share the tensor's memory.

    Args:
        tensor: on the CPU, dense, of a dtype that `dtype_of` knows.

    Returns:
        A C-contiguous array.
    """
    dtype = _BY_TORCH[tensor.dtype]
    # A tensor of rank 0 or of one element is contiguous with any strides; NumPy keeps them.
    plain = tensor.detach().resolve_neg().contiguous()
    if dtype.token in _FOREIGN:
        plain = plain.view(_INTEGERS[dtype.itemsize][0])
    return np.ascontiguousarray(plain.numpy()).view(dtype.numpy).reshape(tuple(tensor.shape))


def tensor_of(array: Any) -> Any:
    """Copy an array of NumPy or JAX into a new tensor.

    Raises:
        KeyError: torch has no such dtype.
    """
    host = np.array(array, order="C")  # a copy, since the model may change its inputs in place
    dtype = next(dtype for dtype in DTYPES if dtype.numpy == host.dtype.newbyteorder("="))
    host = host.astype(dtype.numpy, copy=False)
    if dtype.token in _FOREIGN:
        integers = torch.from_numpy(host.view(_INTEGERS[dtype.itemsize][1]))
        return integers.view(_TO_TORCH[dtype])
    return torch.from_numpy(host)
