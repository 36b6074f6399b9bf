"""Offsets and sizes of shared memory: exact, whatever the numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.shared_objects import SharedObject

from hloserve.core.errors import BadRequest
from hloserve.core.requests import Placement
from hloserve.wire.shared_memory import open_region
from hloserve.wire.v2_shared_memory import parameters_of, placement_of

OBJECT_BYTES = 3 * 4096

near = st.sampled_from([0, 1, 4095, 4096, OBJECT_BYTES, 2**31, 2**32, 2**62, 2**63, 2**64])
numbers = st.one_of(
    st.integers(-2, OBJECT_BYTES + 2),
    st.builds(lambda edge, step: edge + step, near, st.integers(-2, 2)),
)


@given(offset=numbers, nbytes=numbers, start=numbers, length=numbers)
def test_exactly_what_is_inside_is_accepted(
    offset: int, nbytes: int, start: int, length: int
) -> None:
    """A region inside of its object, and a place inside of its region; and those are readable."""
    is_region = 0 <= offset and 0 < nbytes and offset + nbytes <= OBJECT_BYTES
    with SharedObject(OBJECT_BYTES) as shared:
        shared.bytes[:] = np.arange(OBJECT_BYTES) % 253
        try:
            region = open_region("r", shared.key, offset, nbytes)
        except BadRequest:
            assert not is_region
            return
        assert is_region
        try:
            region.check_bounds("input 'x'", Placement("r", start, length))
        except BadRequest:
            assert not (0 <= start and 0 <= length and start + length <= nbytes)
        else:
            target = np.empty(length, np.uint8)
            region.read(start, target)
            begin = offset + start
            assert shared.bytes[begin : begin + length].tobytes() == target.tobytes()
        finally:
            region.close()


@given(
    region=st.text(min_size=1),
    offset=st.integers(0, 2**63 - 1),
    nbytes=st.integers(0, 2**63 - 1),
)
def test_placements_survive_the_round_trip(region: str, offset: int, nbytes: int) -> None:
    """As parameters, whatever the numbers and the name."""
    placement = Placement(region, offset, nbytes)

    assert placement == placement_of("input 'x'", parameters_of(placement))


@given(key=st.one_of(st.text(), st.from_regex(r"(\.{0,2}/){0,3}[a-z.]{0,3}(/[a-z.]{0,2}){0,2}")))
def test_no_key_leads_out_of_the_directory(key: str) -> None:
    """Whatever a client writes, it opens an object or is told off."""
    try:
        open_region("r", key, 0, 1).close()
    except BadRequest:
        return
    assert "/" not in key.removeprefix("/")


_values = st.one_of(
    st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.text(max_size=4), numbers
)
_keys = st.sampled_from(["shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"])


@given(st.dictionaries(_keys, _values))
def test_whatever_the_parameters_are_a_place_is_possible_or_refused(
    parameters: dict[str, bool | int | float | str],
) -> None:
    """No value is taken for another one."""
    try:
        placement = placement_of("input 'x'", parameters)
    except BadRequest:
        return
    if placement is None:
        assert not parameters
    else:
        assert placement.region == parameters["shared_memory_region"]
        assert 0 <= placement.offset < 2**63
        assert 0 <= placement.byte_size < 2**63
        assert type(parameters["shared_memory_byte_size"]) is int
