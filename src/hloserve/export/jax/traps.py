"""What a traced model must not hold, and how its author is told.

What lives here: looking for baked arrays, random state, callbacks and several devices in what JAX
traced, where variables and arguments still have names. What does not: the same for the artifact,
whoever traced it (`hloserve.export.artifact`). Pure; one thread.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hloserve.core.errors import ExportProblem
from hloserve.engine.programs.differences import is_float
from hloserve.engine.programs.portability import LARGE_CONSTANT_BYTES
from hloserve.export.jax.closures import name_of_array

__all__ = ["check_traced", "constant_notes", "random_notes"]

_REFUSED: Mapping[str, str] = {
    "debug_callback": "jax.debug.callback calls back into Python, which no server has",
    "debug_print": "jax.debug.print prints by calling back into Python, which no server has",
    "io_callback": "io_callback calls back into Python, which no server has",
    "pure_callback": "jax.pure_callback calls back into Python, which no server has",
    "pallas_call": "a Pallas kernel is code for one kind of device",
    "shard_map": "shard_map splits the model over devices, and a bundle's program runs on one",
    "xla_pmap": "pmap splits the model over devices, and a bundle's program runs on one",
}
_REMEDIES: Mapping[str, str] = {
    "pallas_call": "use a variant of the model in plain operations",
    "shard_map": "export the function inside of it",
    "xla_pmap": "export the function inside of it",
}
_MOST_NAMED = 8
_RANDOM = frozenset(("random_bits", "rng_bit_generator", "rng_uniform", "threefry2x32"))


def check_traced(
    jaxpr: Any,
    function: Callable[..., Any],
    input_count: int,
    weights: Sequence[str],
    *,
    model: str,
) -> None:
    """Look a traced function over.

    Args:
        jaxpr: what was traced, closed.
        function: what it was traced from; its closure tells what baked arrays are called.
        input_count: of its arguments; the others are weights.
        weights: their names.
        model: the bundle's name, for messages.

    Raises:
        ExportProblem: with everything that must not be in a bundle's program.
    """
    findings: dict[str, None] = {}  # each once, in order
    for inner in _jaxprs(jaxpr.jaxpr):
        for equation in inner.eqns:
            name = equation.primitive.name
            if name in _REFUSED:
                remedy = _REMEDIES.get(name, "take it out, and export again")
                findings.setdefault(f"{_REFUSED[name]}; {remedy}")
    large = (each for each in _constants(jaxpr) if each.nbytes > LARGE_CONSTANT_BYTES)
    for constant in large:
        findings.setdefault(_describe_constant(constant, function))
    for index in sorted(_random_arguments(jaxpr.jaxpr)):
        if index >= input_count:
            findings.setdefault(
                f"weight {weights[index - input_count]!r} is random state: its numbers would be"
                " drawn anew, and be the same, in every request; turn off what draws them"
                " (dropout), or make the key an input"
            )
    if findings:
        raise ExportProblem(model, list(findings))


def constant_notes(jaxpr: Any, function: Callable[..., Any]) -> list[str]:
    """Name the arrays of floats that are small enough to be constants, and may be weights."""
    baked = [
        _name_constant(constant, function)
        for constant in _constants(jaxpr)
        if constant.ndim and 0 < constant.nbytes <= LARGE_CONSTANT_BYTES
        if is_float(constant.dtype)
    ]
    if not baked:
        return []
    more = f", and {len(baked) - _MOST_NAMED} more" if len(baked) > _MOST_NAMED else ""
    return [
        f"constants of every program, not weights: {', '.join(baked[:_MOST_NAMED])}{more}; what is"
        " trained belongs into `weights`"
    ]


def random_notes(jaxpr: Any, inputs: Sequence[str]) -> list[str]:
    """Say where a traced function takes its random numbers from; empty when it draws none."""
    is_drawing = any(
        equation.primitive.name in _RANDOM
        for inner in _jaxprs(jaxpr.jaxpr)
        for equation in inner.eqns
    )
    if not is_drawing:
        return []
    keys = [repr(inputs[index]) for index in sorted(_random_arguments(jaxpr.jaxpr))]
    if keys:
        return [f"it draws random numbers from {', '.join(keys)}: equal keys give equal numbers"]
    return ["it draws random numbers from a fixed key: every request gets the same ones"]


def _jaxprs(jaxpr: Any) -> Iterator[Any]:
    """A jaxpr and all inside of it."""
    seen: set[int] = set()
    waiting = [jaxpr]
    while waiting:
        current = waiting.pop()
        if id(current) in seen:  # functions that are called often are shared
            continue
        seen.add(id(current))
        yield current
        for equation in current.eqns:
            waiting += [inner for inner, _ in _inner_jaxprs(equation)]


def _inner_jaxprs(equation: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The jaxprs of an equation, with the constants that are bound to them."""
    for value in equation.params.values():
        for each in value if isinstance(value, list | tuple) else (value,):
            closed = getattr(each, "jaxpr", None)
            if hasattr(closed, "eqns"):
                yield closed, getattr(each, "consts", ())
            elif hasattr(each, "eqns"):
                yield each, ()


def _constants(closed: Any) -> Iterator[Any]:
    """Every array that is part of the program, each once."""
    seen: set[int] = set()

    def of(constants: Sequence[Any]) -> Iterator[Any]:
        for constant in constants:
            if hasattr(constant, "nbytes") and id(constant) not in seen:
                seen.add(id(constant))
                yield constant

    yield from of(closed.consts)
    for inner in _jaxprs(closed.jaxpr):
        for equation in inner.eqns:
            yield from of([atom.val for atom in equation.invars if hasattr(atom, "val")])
            for _, constants in _inner_jaxprs(equation):
                yield from of(constants)


def _name_constant(constant: Any, function: Callable[..., Any]) -> str:
    value = np.asarray(constant)
    place = name_of_array(function, value)
    return f"{place or 'an array'} ({value.dtype}{list(value.shape)})"


def _describe_constant(constant: Any, function: Callable[..., Any]) -> str:
    value = np.asarray(constant)
    place = name_of_array(function, value)
    called = f"array {place}" if place else "an array that the function makes or closes over"
    return (
        f"{called} of shape {value.shape} and dtype {value.dtype} ({value.nbytes} bytes) would"
        " become a constant of every program; pass it in `weights`, as an argument of the function,"
        " or compute it there with jax.numpy if it is a table"
    )


def _random_arguments(jaxpr: Any) -> set[int]:
    """Arguments of 32-bit unsigned integers, as keys are, that random numbers are drawn from."""
    found: set[int] = set()
    origins = [{index} for index in range(len(jaxpr.invars))]
    _follow(jaxpr, origins, found)
    return {index for index in found if jaxpr.invars[index].aval.dtype == np.uint32}


def _follow(jaxpr: Any, origins: Sequence[set[int]], found: set[int]) -> list[set[int]]:
    """Follow arguments through a jaxpr; add those that reach a random operation to `found`.

    Returns:
        Per result, the arguments that it depends on.
    """
    known: dict[Any, set[int]] = dict(zip(jaxpr.invars, origins, strict=True))

    def origin(atom: Any) -> set[int]:
        return set() if hasattr(atom, "val") else known.get(atom, set())

    for equation in jaxpr.eqns:
        arguments = [origin(atom) for atom in equation.invars]
        together = set().union(*arguments)
        if equation.primitive.name in _RANDOM:
            found |= together
        results = [together] * len(equation.outvars)
        for inner, _ in _inner_jaxprs(equation):
            count = len(inner.invars)
            is_call = count == len(arguments)
            # Loops and branches order their operands in ways of their own: take them together.
            after = _follow(inner, arguments if is_call else [together] * count, found)
            if is_call and len(after) == len(results):
                results = after
        known |= zip(equation.outvars, results, strict=True)
    return [origin(atom) for atom in jaxpr.outvars]
