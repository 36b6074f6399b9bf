"""Programs that are built from a bundle's declarations fit it; changed ones never do."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.dtypes import DTYPES, DType
from hloserve.core.tensors import Axis, AxisKind, TensorSpec
from hloserve.engine.programs.program_check import argument_types, check_signature, size_of_program
from hloserve.engine.programs.signature import Signature, TensorType, parse_tensor_type


@dataclass(frozen=True)
class Weight:
    """A weight of the file, as far as it is compared."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


dtypes = st.sampled_from(DTYPES)
extents = st.integers(1, 9)
VARIABLE = {"w": 11, "h": 12}


@st.composite
def specs(draw: st.DrawFn, name: str) -> TensorSpec:
    """A tensor with fixed, variable and batch axes in any order."""
    axes = [
        Axis(letter, AxisKind.FIXED, extent)
        for letter, extent in zip("acde", draw(st.lists(extents, max_size=3)), strict=False)
    ]
    axes += [Axis(letter, AxisKind.VARIABLE) for letter in VARIABLE if draw(st.booleans())]
    axes.append(Axis("n", AxisKind.BATCH))
    return TensorSpec(name, draw(dtypes), tuple(draw(st.permutations(axes))))


@st.composite
def bundles(draw: st.DrawFn) -> tuple[list[TensorSpec], list[TensorSpec], list[Weight], int]:
    """Inputs, outputs, weights and a batch size."""
    inputs = [draw(specs(f"x{number}")) for number in range(draw(st.integers(1, 3)))]
    outputs = [draw(specs(f"y{number}")) for number in range(draw(st.integers(1, 3)))]
    shapes = st.lists(extents, max_size=3).map(tuple)
    weights = draw(st.lists(st.builds(Weight, st.just("w"), dtypes, shapes), max_size=3))
    return inputs, outputs, weights, draw(st.integers(1, 9))


def _signature(
    inputs: list[TensorSpec], outputs: list[TensorSpec], weights: list[Weight], size: int
) -> Signature:
    results = [TensorType(spec.dtype, spec.concrete_shape(size, VARIABLE)) for spec in outputs]
    return Signature(argument_types(inputs, weights, size, VARIABLE), tuple(results))


@given(bundles())
def test_declared_types_fit(
    bundle: tuple[list[TensorSpec], list[TensorSpec], list[Weight], int],
) -> None:
    """What a bundle declares is what is expected of its program."""
    inputs, outputs, weights, size = bundle
    signature = _signature(*bundle)
    assert check_signature("m", signature, inputs, outputs, weights, size, VARIABLE) == []
    assert size_of_program(signature, inputs) == size


@given(bundles(), st.data())
def test_one_changed_argument_is_one_finding(
    bundle: tuple[list[TensorSpec], list[TensorSpec], list[Weight], int], data: st.DataObject
) -> None:
    """Another dtype, rank or extent of one argument is named, and nothing else is."""
    inputs, outputs, weights, size = bundle
    signature = _signature(*bundle)
    place = data.draw(st.integers(0, len(signature.inputs) - 1))
    kind = signature.inputs[place]
    changed = [
        TensorType(kind.dtype, (*kind.shape, 3)),
        TensorType(data.draw(dtypes.filter(lambda dtype: dtype is not kind.dtype)), kind.shape),
    ]
    if kind.shape:
        axis = data.draw(st.integers(0, len(kind.shape) - 1))
        shape = list(kind.shape)
        shape[axis] = (shape[axis] or 0) + 1
        changed.append(TensorType(kind.dtype, tuple(shape)))
    arguments = list(signature.inputs)
    arguments[place] = data.draw(st.sampled_from(changed))
    other = replace(signature, inputs=tuple(arguments))
    (finding,) = check_signature("m", other, inputs, outputs, weights, size, VARIABLE)
    assert f"(argument {place})" in finding


@given(bundles())
def test_another_number_of_arguments_is_one_finding(
    bundle: tuple[list[TensorSpec], list[TensorSpec], list[Weight], int],
) -> None:
    """A missing argument shifts all others: only the count is told."""
    inputs, outputs, weights, size = bundle
    signature = _signature(*bundle)
    fewer = replace(signature, inputs=signature.inputs[1:])
    (finding,) = check_signature("m", fewer, inputs, outputs, weights, size, VARIABLE)
    assert "the program takes" in finding


@given(bundles())
def test_types_survive_their_notation(
    bundle: tuple[list[TensorSpec], list[TensorSpec], list[Weight], int],
) -> None:
    """What a finding prints can be read back."""
    for kind in _signature(*bundle).inputs:
        assert parse_tensor_type(str(kind)) == kind
