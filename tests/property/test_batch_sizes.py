"""Which sizes are planned for which wish, whatever the bundle lists."""

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
from support.models_bundles import ROWS4, fake_text

from hloserve.bundle import IOSpec, load_manifest, write_bundle
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.program_plan import plan_programs

SIZES = st.lists(st.integers(1, 64), min_size=1, max_size=5)
OUT4 = IOSpec("y", "f32", (1, 4), batch_axis=0)


def _program(rows: int | str) -> str:
    return fake_text("identity", [f"{rows}x4xf32"], [f"{rows}x4xf32"])


@settings(max_examples=40, deadline=None)  # each example writes and syncs a directory
@given(SIZES, st.none() | SIZES, st.booleans())
def test_planned_sizes_are_the_wanted_ones_or_refused(
    listed: list[int], wanted: list[int] | None, is_dynamic: bool
) -> None:
    """A dynamic bundle has every wish; a fixed one those of its sizes, and names all others."""
    modules = {0: _program("?")} if is_dynamic else {size: _program(size) for size in listed}
    with tempfile.TemporaryDirectory() as root:
        bundle = write_bundle(
            f"{root}/m", "m", [ROWS4], [OUT4], modules, {},
            dynamic_sizes=listed if is_dynamic else None,
        )  # fmt: skip
        findings: list[str] = []
        planned = plan_programs(bundle, load_manifest(bundle), (), FakeBackend(), findings, wanted)

    missing = set() if is_dynamic else set(wanted or ()) - set(listed)
    expected = set(listed) if wanted is None else set(wanted) - missing
    assert sorted(expected) == [plan.size for plan in planned]
    assert [(plan.size, 4) for plan in planned] == [
        plan.program.signature.inputs[0].shape for plan in planned
    ]
    assert bool(missing) == bool(findings)
    assert all(str(size) in findings[0] for size in missing)
