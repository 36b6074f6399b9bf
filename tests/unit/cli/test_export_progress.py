"""How an export is drawn."""

import io

from hloserve.cli.export_progress import PlainProgress, TerminalProgress
from hloserve.export.lists.run import Outcome, RunListener

ERASE = "\r\x1b[2K"


class _Clock:
    """Advances by two seconds per look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 2
        return self.now_s


def _tell(progress: RunListener) -> None:
    progress.model_started("resnet", 2, 3)
    progress.step("tracing", 0, 4)
    progress.step("proving model.b8.mlir", 2, 4)
    progress.model_ended(Outcome("resnet", "success", batch_sizes=(1, 8), seconds=3.21))
    progress.model_started("b\x1b", 3, 3)
    progress.model_ended(Outcome("b\x1b", "failed", "no\nweights"))
    progress.ended()


def test_terminal_shows_model_phase_and_seconds() -> None:
    """One line is drawn over; what is decided stays above it."""
    stream = io.StringIO()

    _tell(TerminalProgress(stream, _Clock()))

    drawn = stream.getvalue().split(ERASE)[1:]
    empty, half = "░" * 24, "█" * 12 + "░" * 12
    assert [
        f"  {empty} 0/? resnet (2 of 3): loading",
        f"  {empty} 0/4 resnet (2 of 3): tracing (2 s so far)",
        f"  {half} 2/4 resnet (2 of 3): proving model.b8.mlir (4 s so far)",
        "  ✓ resnet in 3.2 s (batch sizes 1, 8)\n",
        f"  {empty} 0/? b? (3 of 3): loading",
        "  ✗ b?: no; weights\n",
        "",
    ] == drawn


def test_lines_are_written_elsewhere() -> None:
    """Logs get a line per step and outcome, without anything that a terminal acts on."""
    stream = io.StringIO()

    _tell(PlainProgress(stream, _Clock()))

    assert [
        "resnet: 1/4 tracing (after 2.0 s)",
        "resnet: 3/4 proving model.b8.mlir (after 4.0 s)",
        "success: resnet in 3.2 s (batch sizes 1, 8)",
        "failed: b\\x1b: no; weights",
    ] == stream.getvalue().splitlines()
