"""What parameters mean: deadlines, priorities, classes of outputs."""

import pytest

from hloserve.core.errors import BadRequest
from hloserve.core.requests import NEVER_NS, Parameter
from hloserve.wire.v2_parameters import classes_of, take_deadline, take_priority


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


@pytest.mark.parametrize(("given", "expected"), [(None, 10), (0, 10), (1, 1), (10, 10), (100, 100)])
def test_priorities_are_taken_and_0_is_the_usual_one(given: int | None, expected: int) -> None:
    """As Triton's clients send it: always, and 0 when they were told nothing."""
    parameters: dict[str, Parameter] = {} if given is None else {"priority": given}

    assert expected == take_priority(parameters)
    assert not parameters


@pytest.mark.parametrize("value", [-1, 101, 2**64 - 1, 1.0, "1", True])
def test_other_priorities_are_refused(value: Parameter) -> None:
    """One that means nothing here is not guessed."""
    with pytest.raises(BadRequest, match="parameter 'priority' is"):
        take_priority({"priority": value})


def test_outputs_may_be_asked_for_as_classes() -> None:
    """The count is the caller's; 0 and nothing ask for the output itself."""
    assert 3 == classes_of("output 'y'", {"classification": 3, "binary_data": True})
    assert 0 == classes_of("output 'y'", {"classification": 0})
    assert 0 == classes_of("output 'y'", {})


@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
def test_other_counts_of_classes_are_refused(value: Parameter) -> None:
    """The output is named."""
    with pytest.raises(BadRequest, match="output 'y': classification is"):
        classes_of("output 'y'", {"classification": value})
