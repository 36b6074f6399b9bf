"""Programs of the device that is not there.

What lives here: how they are written and read, what they may compute, and the check of their
arguments. What does not: running them (`hloserve.engine.fake_backend`). Any thread.

A program is a JSON text::

    {"function": "scale", "inputs": ["tensor<4x3xf32>", "tensor<3xf32>"], "outputs": ["tensor<4x3xf32>"]}

`inputs` are the executable inputs, then the weights. An open extent, ``?``, fits any.
"""  # noqa: E501  # a program is one line

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from hloserve.core.errors import BackendFailed, ProgramProblem
from hloserve.core.tensors import Array
from hloserve.engine.programs.notes import NO_NOTES, ProgramNotes
from hloserve.engine.programs.signature import Signature, parse_tensor_type

__all__ = ["FUNCTIONS", "FakeProgram", "Function", "check_arguments", "read_fake_program"]

Function: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
"""What a program computes: arguments to results, weights last."""


def _boom(arguments: Sequence[Array]) -> Sequence[Array]:
    raise RuntimeError("boom")


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "identity": lambda arguments: list(arguments),
        "first": lambda arguments: [arguments[0]],
        "scale": lambda arguments: [arguments[0] * arguments[1]],
        "affine": lambda arguments: [arguments[0] * arguments[1] + arguments[2]],
        "add": lambda arguments: [arguments[0] + arguments[1]],
        "total": lambda arguments: [arguments[0].sum(dtype=arguments[0].dtype)],
        "row_sum": lambda arguments: [
            arguments[0].reshape(len(arguments[0]), -1).sum(axis=1, dtype=arguments[0].dtype)
        ],
        "boom": _boom,
    }
)


@dataclass(frozen=True, slots=True)
class FakeProgram:
    """A program and, since there is nothing to compile, an executable as well."""

    signature: Signature
    function: str
    notes: ProgramNotes = NO_NOTES


def read_fake_program(artifact: bytes, source: str, functions: Container[str]) -> FakeProgram:
    """Parse a program that names one of `functions`.

    Raises:
        ProgramProblem: it is none.
    """
    try:
        text = json.loads(artifact)
        function = text["function"]
        inputs = tuple(parse_tensor_type(t) for t in text["inputs"])
        outputs = tuple(parse_tensor_type(t) for t in text["outputs"])
    except (ValueError, TypeError, KeyError) as error:
        raise ProgramProblem(source, f"not a program of the fake backend: {error!r}") from error
    if function not in functions:
        raise ProgramProblem(source, f"function {function!r} is not known")
    return FakeProgram(Signature(inputs, outputs), function)


def check_arguments(program: FakeProgram, arrays: Sequence[Array]) -> None:
    """Refuse arguments that are not of the program's types, as a compiler's runtime does.

    Raises:
        BackendFailed: they are not.
    """
    function, types = program.function, program.signature.inputs
    if len(types) != len(arrays):
        raise BackendFailed(
            "execution", function, f"{len(arrays)} arguments were given, it takes {len(types)}"
        )
    for place, (want, have) in enumerate(zip(types, arrays, strict=True)):
        fits = len(want.shape) == have.ndim and all(
            extent is None or extent == got
            for extent, got in zip(want.shape, have.shape, strict=True)
        )
        if not fits or have.dtype != want.dtype.numpy:
            got = f"{have.dtype}{list(have.shape)}"
            raise BackendFailed(
                "execution", function, f"argument {place} is {got}, it takes {want}"
            )
