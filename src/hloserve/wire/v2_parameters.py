"""What V2 parameters mean, whichever codec read them.

What lives here: deadline and priority in a request's parameters, and how an output is asked for.
What does not: how parameters look on the wire (the codecs), and those about shared memory
(`hloserve.wire.v2_shared_memory`). Stateless; any thread.

Source: V2 protocol, parameters extension; Triton's schedule policy and classification extensions.
"""

from collections.abc import Mapping

from hloserve.core.errors import BadRequest
from hloserve.core.requests import DEFAULT_PRIORITY, LOWEST_PRIORITY, NEVER_NS, Parameter

__all__ = ["CLASSIFICATION", "classes_of", "take_deadline", "take_priority"]

CLASSIFICATION = "classification"
"""The parameter of an output that asks for its highest classes."""

_BUDGETS = (("reactant_timeout_ns", 1), ("timeout", 1000))
"""Parameter and its unit in nanoseconds; `timeout` is Triton's, in microseconds."""


def take_deadline(parameters: dict[str, Parameter], now_ns: int, deadline_ns: int) -> int:
    """Take the time budgets out of the parameters and return the earliest deadline.

    Budgets are relative, because clocks of two machines do not agree; zero and less mean none.

    Args:
        parameters: of the request; the budgets are removed.
        now_ns: this process's monotonic clock at arrival.
        deadline_ns: what the transport knows, `NEVER_NS` for none.

    Raises:
        BadRequest: a budget is not an integer.
    """
    for key, unit_ns in _BUDGETS:
        budget = parameters.pop(key, 0)
        if type(budget) is not int:
            raise BadRequest(f"parameter {key!r} is {budget!r}; it must be an integer")
        if budget > 0:
            deadline_ns = min(deadline_ns, now_ns + budget * unit_ns)
    return min(deadline_ns, NEVER_NS)


def take_priority(parameters: dict[str, Parameter]) -> int:
    """Take the priority out of a request's parameters; 0 is the usual one.

    Raises:
        BadRequest: it is no integer of the range.
    """
    priority = parameters.pop("priority", 0)
    if type(priority) is not int or not 0 <= priority <= LOWEST_PRIORITY:
        raise BadRequest(
            f"parameter 'priority' is {priority!r}; it must be an integer from 1, the highest, to"
            f" {LOWEST_PRIORITY}, or 0 for the usual one, which is {DEFAULT_PRIORITY}"
        )
    return priority or DEFAULT_PRIORITY


def classes_of(tensor: str, parameters: Mapping[str, Parameter]) -> int:
    """How many classes of an output are asked for; 0 asks for the output itself.

    Args:
        tensor: its name with the role, ``output 'y'``.
        parameters: the output's own.

    Raises:
        BadRequest: it is no count.
    """
    count = parameters.get(CLASSIFICATION, 0)
    if type(count) is not int or count < 0:
        raise BadRequest(
            f"{tensor}: classification is {count!r}; it must be how many classes to return"
        )
    return count
