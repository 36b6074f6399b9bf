"""The simulator as a command, in processes of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.integration
def test_a_seed_gives_the_same_picture_in_every_process(tmp_path: Path) -> None:
    """The same seed gives the same figures and the same bytes of a picture."""
    for turn in ("first", "second"):
        where = tmp_path / turn
        command = [
            sys.executable, "-m", "benchmarks.sim", "newcomer", "--seed", "3",
            "--out", str(where), "--figures", str(where / "figures.json"),
        ]  # fmt: skip
        subprocess.run(command, check=True, cwd=_ROOT, stdout=subprocess.DEVNULL)

    first, second = tmp_path / "first", tmp_path / "second"
    for name in ("newcomer.svg", "figures.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
