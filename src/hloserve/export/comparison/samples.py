"""Samples on disk: inputs of a model, and the outputs that are expected of them.

What lives here: which files belong to which sample, and reading them. What does not: comparing
(`hloserve.export.comparison.comparing`). One thread.

Rules.
1. A directory in DIR is a sample, with ``<input>.npy`` per input. A file ``NAME.npy`` in DIR is a
   sample of a model with one input. A directory called ``expected`` is none.
2. Expected outputs of ``DIR/NAME/`` are ``DIR/NAME/expected/<output>.npy``, or lie beside the
   inputs; those of ``DIR/NAME.npy`` are ``DIR/expected/NAME/<output>.npy``, or, of a model with one
   output, ``DIR/expected/NAME.npy``.
3. A batch axis that an array lacks is added, with one row.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hloserve.bundle.findings import listing
from hloserve.core.array_files import load_array
from hloserve.core.dtypes import by_numpy
from hloserve.core.errors import BadRequest
from hloserve.core.tensors import Array, Tensors, TensorSpec

__all__ = ["EXPECTED", "Sample", "find_samples", "read_expected", "read_inputs"]

EXPECTED = "expected"


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample.

    Attributes:
        name: of its file or directory.
        inputs: file per input.
        expected: files per output, of which the first that exists counts.
    """

    name: str
    inputs: Mapping[str, Path]
    expected: Mapping[str, tuple[Path, ...]]


def find_samples(
    directory: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> list[Sample]:
    """List the samples of a directory, by name.

    Raises:
        BadRequest: there are none, or a file is one sample of a model with several inputs.
        OSError: the directory cannot be read.
    """
    samples = []
    for name in sorted(os.listdir(directory)):
        path = directory / name
        if path.is_dir() and name != EXPECTED and not name.startswith("."):
            files = {spec.name: path / f"{spec.name}.npy" for spec in inputs}
            expected = {
                spec.name: _others((path / EXPECTED, path), spec, files.values())
                for spec in outputs
            }
            samples.append(Sample(name, files, expected))
        elif path.suffix == ".npy" and path.is_file():
            if len(inputs) != 1:
                names = listing(spec.name for spec in inputs)
                raise BadRequest(
                    f"{path}: the model has {len(inputs)} inputs ({names}); make a directory per"
                    " sample, with one file per input"
                )
            place = directory / EXPECTED
            expected = {spec.name: (place / path.stem / f"{spec.name}.npy",) for spec in outputs}
            if len(outputs) == 1:
                expected[outputs[0].name] += (place / name,)
            samples.append(Sample(path.stem, {inputs[0].name: path}, expected))
    if not samples:
        wanted = ", ".join(f"{spec.name}.npy" for spec in inputs)
        raise BadRequest(
            f"{directory}: holds no samples; put a directory per sample there, with {wanted}"
        )
    return samples


def read_inputs(sample: Sample, inputs: Sequence[TensorSpec]) -> Tensors:
    """Read what a client would send.

    Raises:
        BadRequest: a file is missing, is no array, or does not fit the model's input.
    """
    arrays: Tensors = {}
    for spec in inputs:
        path = sample.inputs[spec.name]
        array = with_batch_axis(_load(path, spec), spec)
        if array.dtype != spec.dtype.numpy:
            raise BadRequest(
                f"{path}: dtype is {array.dtype}, the model's input {spec.name!r} is"
                f" {spec.dtype.numpy.name}"
            )
        if not spec.fits(array.shape):
            raise BadRequest(
                f"{path}: shape is {list(array.shape)}, the model's input is {spec} (n is the batch"
                " axis, ? an axis of any size)"
            )
        arrays[spec.name] = array
    return arrays


def read_expected(sample: Sample, outputs: Sequence[TensorSpec]) -> Tensors:
    """Read the expected outputs, those that are there.

    Raises:
        BadRequest: there are none, or a file is no array.
    """
    arrays: Tensors = {}
    for spec in outputs:
        path = next((path for path in sample.expected[spec.name] if path.is_file()), None)
        if path is not None:
            arrays[spec.name] = _load(path, spec)
    if not arrays:
        wanted = " or ".join(str(files[0]) for files in sample.expected.values())
        raise BadRequest(
            f"there is no expected output, such as {wanted}; put one there, or name a reference"
        )
    return arrays


def with_batch_axis(array: Array, spec: TensorSpec) -> Array:
    """Add the batch axis, of one row, that an array lacks."""
    if spec.batch_axis is not None and array.ndim == len(spec.shape) - 1:
        return np.expand_dims(array, spec.batch_axis)
    return array


def _others(places: Sequence[Path], spec: TensorSpec, inputs: Iterable[Path]) -> tuple[Path, ...]:
    """Where an output may lie; not in the file of an input that has its name."""
    files = [place / f"{spec.name}.npy" for place in places]
    return tuple(file for file in files if file not in set(inputs))


def _load(path: Path, spec: TensorSpec) -> Array:
    try:
        array = load_array(path)
    except FileNotFoundError:
        raise BadRequest(f"{path}: the file is missing") from None
    except OSError as error:
        raise BadRequest(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BadRequest(f"{path}: {error}") from error
    return np.asarray(_typed(array, spec), order="C")


def _typed(array: Array, spec: TensorSpec) -> Array:
    """The array in native byte order; numpy saves bfloat16 and float8 as words without a type."""
    want = spec.dtype.numpy
    if array.dtype.kind == "V" and array.dtype.itemsize == want.itemsize and want.kind in "fV":
        return array.view(want)
    try:
        return array.astype(by_numpy(array.dtype).numpy, copy=False)
    except KeyError:
        return array
