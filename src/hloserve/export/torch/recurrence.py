"""Recurrent layers of torch in JAX, as loops over time.

What lives here: LSTM, GRU and the plain RNN. torch's own decomposition writes every step out, so
that a program grows with the sequence and its length cannot stay open.

Source: the equations in the documentation of `torch.nn.LSTM`, `GRU` and `RNN`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from hloserve.export.torch.lowerings import lowers

__all__ = ["run_gru", "run_lstm", "run_rnn"]

State: TypeAlias = tuple[Any, ...]
Cell: TypeAlias = Callable[[State, Any, Sequence[Any]], State]
"""From the state, the input's share of the gates and the weights to the next state; the first
part of a state is what the layer above gets."""


@lowers("lstm.input")
def run_lstm(
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    has_biases: bool,
    layers: int,
    _dropout: float,
    _train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any, Any]:
    """LSTM, with a projection of the hidden state when there are weights for it.

    Shapes:
        x: (t, n, i), or (n, t, i) with `batch_first`; states: (layers * directions, n, h) each.
    """
    y, ends = _run_layers(
        _step_lstm, x, states, _grouped(weights, layers, bidirectional), has_biases, batch_first
    )
    return (y, *ends)


@lowers("gru.input")
def run_gru(
    x: Any,
    state: Any,
    weights: Sequence[Any],
    has_biases: bool,
    layers: int,
    _dropout: float,
    _train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any]:
    """GRU. Shapes as for `run_lstm`."""
    y, ends = _run_layers(
        _step_gru, x, (state,), _grouped(weights, layers, bidirectional), has_biases, batch_first
    )
    return y, ends[0]


def run_rnn(  # noqa: PLR0913  # torch's own arguments
    activation: Callable[[Any], Any],
    x: Any,
    state: Any,
    weights: Sequence[Any],
    has_biases: bool,
    layers: int,
    _dropout: float,
    _train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any]:
    """Plain RNN with tanh or ReLU. Shapes as for `run_lstm`."""
    step = functools.partial(_step_rnn, activation)
    grouped = _grouped(weights, layers, bidirectional)
    y, ends = _run_layers(step, x, (state,), grouped, has_biases, batch_first)
    return y, ends[0]


lowers("rnn_tanh.input")(functools.partial(run_rnn, jnp.tanh))
lowers("rnn_relu.input")(functools.partial(run_rnn, jax.nn.relu))


def _grouped(weights: Sequence[Any], layers: int, bidirectional: bool) -> list[list[Sequence[Any]]]:
    """The weights per layer and direction."""
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    runs = [weights[start : start + each] for start in range(0, len(weights), each)]
    return [runs[start : start + directions] for start in range(0, len(runs), directions)]


def _run_layers(
    step: Cell,
    x: Any,
    states: Sequence[Any],
    layers: Sequence[Sequence[Sequence[Any]]],
    has_biases: bool,
    batch_first: bool,
) -> tuple[Any, list[Any]]:
    x = x.swapaxes(0, 1) if batch_first else x
    ends: list[State] = []
    for layer in layers:
        outputs = []
        for direction, weights in enumerate(layer):
            start = tuple(state[len(ends)] for state in states)
            y, end = _run_layer(step, x, start, weights, has_biases, backwards=direction == 1)
            outputs.append(y)
            ends.append(end)
        x = jnp.concatenate(outputs, -1)
    y = x.swapaxes(0, 1) if batch_first else x
    return y, [jnp.stack(parts) for parts in zip(*ends, strict=True)]


def _run_layer(
    step: Cell,
    x: Any,
    start: State,
    weights: Sequence[Any],
    has_biases: bool,
    *,
    backwards: bool,
) -> tuple[Any, State]:
    """One layer in one direction. The input's share of all steps is one product."""
    of_input, *rest = weights
    gates = x @ of_input.T
    of_state = [rest.pop(0)]
    if has_biases:
        gates = gates + rest.pop(0)
        of_state.append(rest.pop(0))
    else:
        of_state.append(jnp.zeros((gates.shape[-1],), gates.dtype))
    of_state += rest  # the projection of an LSTM

    def advance(state: State, gate: Any) -> tuple[State, Any]:
        new = step(state, gate, of_state)
        return new, new[0]

    end, y = jax.lax.scan(advance, start, gates, reverse=backwards)
    return y, end


def _step_lstm(state: State, gates: Any, weights: Sequence[Any]) -> State:
    hidden, cell = state
    weight, bias, *projection = weights
    enter, forget, new, leave = jnp.split(gates + hidden @ weight.T + bias, 4, -1)
    cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
    hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
    return (hidden @ projection[0].T if projection else hidden), cell


def _step_gru(state: State, gates: Any, weights: Sequence[Any]) -> State:
    (hidden,) = state
    weight, bias = weights
    reset_x, update_x, new_x = jnp.split(gates, 3, -1)
    reset_h, update_h, new_h = jnp.split(hidden @ weight.T + bias, 3, -1)
    update = jax.nn.sigmoid(update_x + update_h)
    new = jnp.tanh(new_x + jax.nn.sigmoid(reset_x + reset_h) * new_h)
    return ((1 - update) * new + update * hidden,)


def _step_rnn(
    activation: Callable[[Any], Any], state: State, gates: Any, weights: Sequence[Any]
) -> State:
    (hidden,) = state
    weight, bias = weights
    return (activation(gates + hidden @ weight.T + bias),)
