"""The pictures of the pages: there, and small."""

from pathlib import Path

import pytest

from benchmarks.sim.__main__ import main
from benchmarks.sim.scenarios import SCENARIOS

_DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_scenario_is_on_a_page(name: str) -> None:
    """Each picture is small enough for a page, and shown on one."""
    size_bytes = (_DOCS / "pictures" / f"{name}.svg").stat().st_size
    pages = [page.read_text(encoding="utf-8") for page in _DOCS.glob("*.md")]

    assert 1000 < size_bytes < 60_000
    assert any(f"(pictures/{name}.svg)" in page for page in pages)


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is none tells those that are."""
    with pytest.raises(SystemExit):
        main(["fairnes"])

    assert "no scenario 'fairnes'; there are shares, newcomer" in capsys.readouterr().err
