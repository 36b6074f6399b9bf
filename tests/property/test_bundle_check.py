"""Checking bundles that are damaged anywhere."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models_bundles import replace_in

from hloserve.engine.programs.program_probe import ProgramProbe
from hloserve.models.bundle_check import check_bundle

pytestmark = pytest.mark.xla

DIGITS = Path(__file__).parents[2] / "src/hloserve/demo_repository/digits"
FILES = ("manifest.yaml", "model.b1.mlir", "model.b2.mlir", "weights.safetensors")

edits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=8), st.integers(0, 12)),
    min_size=1,
    max_size=4,
)
"""Where in the file, what comes there, and how many bytes go."""


@pytest.fixture(scope="module")
def probe() -> Iterator[ProgramProbe]:
    """One child for all examples; it starts again when one kills it."""
    with ProgramProbe() as probe:
        yield probe


@settings(max_examples=60, deadline=None)  # each example writes a directory and reads programs
@given(st.sampled_from(FILES), edits)
def test_damaged_bundle_has_a_report(
    probe: ProgramProbe, name: str, edits: Sequence[tuple[float, bytes, int]]
) -> None:
    """Whatever bytes are wrong, the check ends with sentences of bounded length."""
    with tempfile.TemporaryDirectory() as root:
        bundle = Path(root) / "digits"
        bundle.mkdir()
        for file in FILES:
            shutil.copy(DIGITS / file, bundle / file)
        replace_in(bundle / "manifest.yaml", "[1, 2, 4, 8, 16, 32]", "[1, 2]")
        content = bytearray((bundle / name).read_bytes())
        for where, inserted, removed in edits:
            at = int(where * (len(content) + 1))
            content[at : at + removed] = inserted
        (bundle / name).write_bytes(content)

        report = check_bundle(bundle, probe=probe.try_to_read)

    assert all(0 < len(finding.text) < 10_000 for finding in report.findings)
    assert "manifest" in report.checked
