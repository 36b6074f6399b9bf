"""The parameters that place a tensor in shared memory."""

import pytest

from hloserve.core.dtypes import F32
from hloserve.core.errors import BadRequest, TensorMismatch
from hloserve.core.requests import Parameter, Placement, SharedTensor
from hloserve.wire.v2_shared_memory import parameters_of, placement_of, shared_tensor

REGION, OFFSET, SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


@pytest.mark.parametrize(
    ("parameters", "placement"),
    [
        ({}, None),
        ({"binary_data": True}, None),
        ({REGION: "r", SIZE: 8}, Placement("r", 0, 8)),
        ({REGION: "r", SIZE: 0, OFFSET: 16}, Placement("r", 16, 0)),
        ({REGION: "r", SIZE: 2**63 - 1, OFFSET: 2**63 - 1}, Placement("r", 2**63 - 1, 2**63 - 1)),
    ],
)
def test_parameters_say_where_a_tensor_lies(
    parameters: dict[str, Parameter], placement: Placement | None
) -> None:
    """Region and size are needed; the offset is 0 by default; others do not matter."""
    assert placement == placement_of("input 'x'", parameters)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({SIZE: 8}, f"{SIZE}, but {REGION} is missing"),
        ({OFFSET: 0}, f"{OFFSET}, but {REGION} is missing"),
        ({REGION: "r"}, f"{SIZE} is missing"),
        ({REGION: "", SIZE: 8}, "must be the name of a region"),
        ({REGION: 5, SIZE: 8}, "must be the name of a region"),
        ({REGION: "r", SIZE: "8"}, f"{SIZE} is '8'"),
        ({REGION: "r", SIZE: 8.0}, f"{SIZE} is 8.0"),
        ({REGION: "r", SIZE: True}, f"{SIZE} is True"),
        ({REGION: "r", SIZE: -1}, f"{SIZE} is -1"),
        ({REGION: "r", SIZE: 2**63}, f"{SIZE} is {2**63}"),
        ({REGION: "r", SIZE: 8, OFFSET: -1}, f"{OFFSET} is -1"),
        ({REGION: "r", SIZE: 8, OFFSET: 2**64 - 1}, f"{OFFSET} is {2**64 - 1}"),
    ],
)
def test_half_a_place_or_an_impossible_one_is_refused(
    parameters: dict[str, Parameter], text: str
) -> None:
    """The message names the tensor and the parameter."""
    with pytest.raises(BadRequest, match=f"input 'x'.*{text}"):
        placement_of("input 'x'", parameters)


def test_place_has_the_size_of_its_tensor() -> None:
    """As contents in the message have."""
    place = Placement("r", 0, 8)

    assert SharedTensor(F32, (2,), place) == shared_tensor("input 'x'", F32, (2,), 8, place)
    with pytest.raises(TensorMismatch, match=r"input 'x': .* of shape \[3\] is 8, expected 12"):
        shared_tensor("input 'x'", F32, (3,), 12, place)


@pytest.mark.parametrize("placement", [Placement("r", 0, 8), Placement("r", 2**40, 0)])
def test_parameters_of_a_place_are_read_as_that_place(placement: Placement) -> None:
    """What a client writes is what a server reads."""
    assert placement == placement_of("output 'y'", parameters_of(placement))
