"""Programs that end the process which reads them end a child."""

from pathlib import Path

import pytest
from support.models_bundles import affine_text, write_affine

from hloserve.models.bundle_check import check_bundle
from hloserve.models.program_probe import ProgramProbe

pytestmark = pytest.mark.xla


def _write_deadly(program: Path) -> None:
    """Nested so deeply that the reader's stack ends."""
    depth = 300_000
    program.write_text("module {" * depth + "}" * depth)


def test_file_that_kills_its_reader_is_an_error(tmp_path: Path) -> None:
    """The other programs are read all the same, by a new child."""
    bundle = write_affine(tmp_path, sizes=(1, 4, 8))
    _write_deadly(bundle / "model.b4.mlir")

    with ProgramProbe() as probe:
        report = check_bundle(bundle, probe=probe.try_to_read)

    (error,) = report.errors
    assert "model.b4.mlir" == error.place
    assert error.text.startswith("reading it ends the process (SIGSEGV), also a server's")
    assert ["model.b1.mlir", "model.b8.mlir"] == [facts.file for facts in report.programs]


def test_file_that_is_merely_wrong_is_left_to_the_caller(tmp_path: Path) -> None:
    """Only who reads it can say what is wrong with it."""
    (tmp_path / "wrong.mlir").write_text("hello")
    (tmp_path / "right\n.mlir").write_text(affine_text(1))

    with ProgramProbe() as probe:
        assert ["", "", ""] == [
            probe.try_to_read(tmp_path / name) for name in ("wrong.mlir", "right\n.mlir", "none")
        ]


def test_unused_probe_starts_nothing() -> None:
    """A child costs half a second."""
    with ProgramProbe() as probe:
        probe.close()
