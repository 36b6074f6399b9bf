"""What parameters mean: deadlines, and extensions that are refused."""

import pytest

from hloserve.core.errors import BadRequest, NotImplementedYet
from hloserve.core.requests import NEVER_NS, Parameter
from hloserve.wire.v2_parameters import refuse_output_parameters, take_deadline


@pytest.mark.parametrize(
    ("parameters", "deadline_ns"),
    [
        ({}, NEVER_NS),
        ({"reactant_timeout_ns": 5}, 1005),
        ({"timeout": 5}, 6000),
        ({"timeout": 5, "reactant_timeout_ns": 5}, 1005),
        ({"timeout": 1, "reactant_timeout_ns": 5000}, 2000),
        ({"reactant_timeout_ns": 0}, NEVER_NS),
        ({"reactant_timeout_ns": -5}, NEVER_NS),
        ({"timeout": -(2**63)}, NEVER_NS),
        ({"reactant_timeout_ns": 2**63 - 1}, NEVER_NS),
        ({"timeout": 2**64 - 1}, NEVER_NS),
    ],
)
def test_budgets_become_the_earliest_deadline(
    parameters: dict[str, Parameter], deadline_ns: int
) -> None:
    """Budgets count from arrival, in ns and in Triton's us; none, 0 and less mean no deadline."""
    assert take_deadline(parameters, 1000, NEVER_NS) == deadline_ns


@pytest.mark.parametrize(("transport_ns", "expected"), [(1003, 1003), (2000, 1005)])
def test_the_smaller_of_budget_and_transport_deadline_counts(
    transport_ns: int, expected: int
) -> None:
    """`grpc-timeout` and the parameter do not override each other."""
    assert take_deadline({"reactant_timeout_ns": 5}, 1000, transport_ns) == expected


def test_budgets_are_consumed_and_the_rest_is_kept() -> None:
    """What the codec has used is not handed on."""
    parameters: dict[str, Parameter] = {"timeout": 1, "reactant_timeout_ns": 1, "mine": "x"}

    take_deadline(parameters, 0, NEVER_NS)

    assert parameters == {"mine": "x"}


@pytest.mark.parametrize("value", ["5", 5.0, True])
@pytest.mark.parametrize("key", ["timeout", "reactant_timeout_ns"])
def test_budgets_must_be_integers(key: str, value: Parameter) -> None:
    """A budget of another type is refused rather than guessed."""
    with pytest.raises(BadRequest, match=f"parameter '{key}'"):
        take_deadline({key: value}, 0, NEVER_NS)


def test_classification_is_refused() -> None:
    """A classified output is not a tensor, so it is not answered with one."""
    with pytest.raises(NotImplementedYet, match="output 'y': the classification extension"):
        refuse_output_parameters("output 'y'", {"classification": 3})


def test_other_output_parameters_are_ignored() -> None:
    """REST's `binary_data`, and a classification of 0, ask for nothing."""
    refuse_output_parameters("output 'y'", {"binary_data": True, "classification": 0})
