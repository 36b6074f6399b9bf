"""What V2 parameters mean, whichever codec read them.

What lives here: the deadline in the request's parameters, and the extensions that this server does
not offer, refused in the caller's words. What does not: how parameters look on the wire (the
codecs), and those about shared memory (`hloserve.wire.v2_shared_memory`). Stateless; any thread.

Source: V2 protocol, parameters extension; Triton's schedule policy and classification extensions.
"""

from collections.abc import Mapping

from hloserve.core.errors import BadRequest, NotImplementedYet
from hloserve.core.requests import NEVER_NS, Parameter

__all__ = ["refuse_output_parameters", "take_deadline"]

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


def refuse_output_parameters(tensor: str, parameters: Mapping[str, Parameter]) -> None:
    """Refuse what a requested output's parameters ask for and this server does not have.

    Args:
        tensor: its name with the role, ``output 'y'``.
        parameters: the output's own.

    Raises:
        NotImplementedYet: the output shall be classified.
    """
    if parameters.get("classification", 0):
        raise NotImplementedYet(f"{tensor}: the classification extension")
