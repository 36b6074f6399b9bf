"""How much memory there is for weights."""

import pytest

from hloserve.engine.residency.budget import Budget, MemoryLimits, plan_budget


@pytest.mark.parametrize(
    ("fraction", "scratch", "pinned", "arena", "expected"),
    [
        (1.0, 0, 0, 1000, Budget(900, 900, False)),
        (0.5, 0, 0, 1000, Budget(500, 500, False)),
        (1.0, 300, 0, 1000, Budget(600, 600, False)),
        (1.0, 300, 200, 1000, Budget(600, 400, False)),
        (1.0, 300, 700, 1000, Budget(600, 0, True)),
        (1.0, 950, 0, 1000, Budget(0, 0, False)),
        (1.0, 0, 0, 0, Budget(0, 0, False)),
    ],
)
def test_memory_is_divided_as_the_specification_says(
    fraction: float, scratch: int, pinned: int, arena: int, expected: Budget
) -> None:
    """Scratch and a margin are left free, and pinned weights come first."""
    limits = MemoryLimits(arena, fraction, 0.1)

    assert expected == plan_budget(limits, scratch, pinned)


def test_cap_in_bytes_holds_where_the_device_tells_nothing() -> None:
    """On the CPU the budget is what the operator says."""
    assert Budget(500, 300, False) == plan_budget(MemoryLimits(cap_bytes=500), 400, 200)


def test_smaller_of_cap_and_memory_counts() -> None:
    """A cap beyond what the device has changes nothing."""
    assert Budget(900, 900, False) == plan_budget(MemoryLimits(1000, cap_bytes=5000), 0, 0)
    assert Budget(100, 100, False) == plan_budget(MemoryLimits(1000, cap_bytes=100), 0, 0)
