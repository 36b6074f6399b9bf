"""Leaves of models: names, weights, and random state that results depend on."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from hloserve.export.modules.trees import WeightTree, named_leaves

pytestmark = pytest.mark.xla


def test_names_are_dotted_paths() -> None:
    """Keys and positions, from the outside in."""
    tree = {"params": {"Dense_0": {"kernel": 1}}, "layers": [2, (3,)]}

    assert ["layers.0", "layers.1.0", "params.Dense_0.kernel"] == [n for n, _ in named_leaves(tree)]


def test_keys_with_dots_do_not_make_two_names_equal() -> None:
    """What would collide is written as Python would index the tree."""
    names = [name for name, _ in named_leaves({"b.c": 1, "b": {"c": 2}, "d.e": 3})]

    assert ["['b']['c']", "['b.c']", "d.e"] == names


@pytest.mark.parametrize(
    ("leaf", "is_weight"),
    [
        (jnp.ones(2), True),
        (jnp.ones((), jnp.bfloat16), True),
        (np.ones(2, ml_dtypes.float8_e4m3fn), True),
        (np.array([True]), True),
        (np.array(["text"]), False),
        (np.array([None]), False),
        (jax.random.key(0), False),
        (0.5, False),
        ("text", False),
        (jnp.tanh, False),
    ],
)
def test_weights_are_arrays_of_numbers(leaf: Any, is_weight: bool) -> None:
    """Keys, numbers and functions stay in the program."""
    assert is_weight == bool(WeightTree([("leaf", leaf)]).named)


def test_arguments_take_the_places_of_weights() -> None:
    """Other leaves stay where they are."""
    tree = WeightTree([("rate", 0.5), ("a", jnp.ones(2)), ("name", "x"), ("b", jnp.ones(3))])

    assert [0.5, "first", "x", "second"] == tree.leaves(["first", "second"])


def test_random_state_counts_when_results_depend_on_it() -> None:
    """Neither a key that is only split nor one that nobody reads is told."""
    key = jax.random.key(0)
    tree = WeightTree(
        [
            ("used", key),
            ("split", key),
            ("unread", key),
            ("count", jnp.uint32(1)),
            ("w", jnp.ones(2)),
        ],
        random=["count"],
    )

    def results(leaves: Any) -> Any:
        jax.random.split(leaves[1])
        return leaves[4] + jax.random.normal(jax.random.fold_in(leaves[0], leaves[3]), (2,))

    assert ("used", "count") == tree.used_random_state(results)


def test_key_that_is_itself_a_result_is_told() -> None:
    """A result can be the state, unchanged."""
    tree = WeightTree([("seed", jnp.uint32(1))], random=["seed"])

    assert ("seed",) == tree.used_random_state(lambda leaves: leaves)
