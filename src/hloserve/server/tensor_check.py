"""Does a request fit the model it names? Pure checks, before anything is queued.

What lives here: request against specs, names of outputs. What does not: rows
(`engine.scheduling.queued_request`), whether bytes are a tensor at all (`wire.tensor_bytes`), and
hook results (`models`). Loop thread; functions of their arguments alone.
"""

from collections.abc import Iterator, Sequence

from hloserve.core.dtypes import of_wire
from hloserve.core.errors import (
    BadRequest,
    DuplicateTensor,
    MissingTensor,
    TensorMismatch,
    TensorProblems,
    UnknownTensor,
)
from hloserve.core.tensors import Array, Tensors, TensorSpec

__all__ = [
    "all_problems",
    "check_inputs",
    "check_output_names",
    "check_tensor",
    "select_outputs",
]


def check_inputs(specs: Sequence[TensorSpec], inputs: Tensors) -> None:
    """Check that a request gives every declared input, and nothing else, as declared.

    Batch and variable axes accept any extent.

    Raises:
        MissingTensor, UnknownTensor: a name is absent, or not the model's.
        TensorMismatch: dtype, rank or a fixed extent differs.

    Source: V2 protocol, "Inference Request"; behaviour of the original, "Input validation".
    """
    for spec in specs:
        array = inputs.get(spec.name)
        if array is None:
            raise MissingTensor(f"input {spec.name!r}")
        if array.dtype != spec.dtype.numpy or not spec.fits(array.shape):
            check_tensor(f"input {spec.name!r}", spec, array)
    if len(inputs) != len(specs):
        known = [spec.name for spec in specs]
        extra = next(name for name in inputs if name not in known)
        raise UnknownTensor(f"input {extra!r}", known)


def all_problems(
    input_specs: Sequence[TensorSpec],
    inputs: Tensors,
    output_specs: Sequence[TensorSpec] = (),
    wanted: Sequence[str] = (),
) -> BadRequest:
    """Everything that is wrong with a request that was refused by the checks here.

    Returns:
        The one problem, or a `TensorProblems` that holds them in the order of the specs, then of
        the request.
    """
    problems: list[BadRequest] = []
    for spec in input_specs:
        array = inputs.get(spec.name)
        role = f"input {spec.name!r}"
        if array is None:
            problems.append(MissingTensor(role))
        else:
            problems += _differences(role, spec, array)
    known = [spec.name for spec in input_specs]
    problems += [UnknownTensor(f"input {name!r}", known) for name in inputs if name not in known]
    problems += _output_problems(output_specs, wanted)
    return problems[0] if len(problems) == 1 else TensorProblems(problems)


def check_tensor(role: str, spec: TensorSpec, array: Array) -> None:
    """Check one array against its spec; `role` opens the message, e.g. ``input 'image'``.

    Raises:
        TensorMismatch: naming the first difference.
    """
    if any(True for _ in _differences(role, spec, array)):
        raise next(_differences(role, spec, array))  # a variable would be a cycle with the array


def _differences(role: str, spec: TensorSpec, array: Array) -> Iterator[TensorMismatch]:
    if array.dtype != spec.dtype.numpy:
        expected = spec.dtype.kserve or spec.dtype
        yield TensorMismatch(role, "datatype", expected, _datatype(array))
    if array.ndim != len(spec.shape):
        expected = f"{len(spec.shape)} (shape {list(spec.wire_shape)})"
        yield TensorMismatch(role, "rank", expected, array.ndim)
        return
    for position, (want, have) in enumerate(zip(spec.shape, array.shape, strict=True)):
        if want is not None and want != have:
            letter = spec.axes[position].letter
            yield TensorMismatch(role, f"extent of axis {position} ({letter})", want, have)


def _datatype(array: Array) -> str:
    try:
        dtype = of_wire(array.dtype)
    except KeyError:
        return str(array.dtype)
    return dtype.kserve or dtype.token


def check_output_names(specs: Sequence[TensorSpec], wanted: Sequence[str]) -> None:
    """Check the outputs a request asks for, before anything runs.

    Raises:
        UnknownTensor, DuplicateTensor: a name is not the model's, or comes twice.
    """
    for problem in _output_problems(specs, wanted):
        raise problem


def _output_problems(specs: Sequence[TensorSpec], wanted: Sequence[str]) -> Iterator[BadRequest]:
    known = [spec.name for spec in specs]
    seen: set[str] = set()
    for name in wanted:
        if name not in known:
            yield UnknownTensor(f"output {name!r}", known)
        if name in seen:
            yield DuplicateTensor(f"output {name!r}")
        seen.add(name)


def select_outputs(outputs: Tensors, wanted: Sequence[str]) -> Tensors:
    """Pick the wanted outputs in the wanted order; an empty `wanted` means all of them."""
    return {name: outputs[name] for name in wanted} if wanted else outputs
