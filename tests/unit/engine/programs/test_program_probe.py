"""Programs that end the process which reads them end a child."""

from pathlib import Path

import pytest
from support.models_bundles import affine_text, write_affine
from typing_extensions import override

from hloserve.core.errors import ProgramProblem
from hloserve.engine.programs.executable_cache import ExecutableCache
from hloserve.engine.programs.program_probe import ProbedReader, ProgramProbe
from hloserve.models.bundle_check import check_bundle

pytestmark = pytest.mark.xla

_DEEP = 300_000
DEADLY = ("module {" * _DEEP + "}" * _DEEP).encode()
"""Nested so deeply that the reader's stack ends."""


def test_file_that_kills_its_reader_is_an_error(tmp_path: Path) -> None:
    """The other programs are read all the same, by a new child."""
    bundle = write_affine(tmp_path, sizes=(1, 4, 8))
    (bundle / "model.b4.mlir").write_bytes(DEADLY)

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
    (tmp_path / "empty").write_text("")

    with ProgramProbe() as probe:
        assert [""] * 4 == [
            probe.try_to_read(tmp_path / name)
            for name in ("wrong.mlir", "right\n.mlir", "none", "empty")
        ]


def test_unused_probe_starts_nothing() -> None:
    """A child costs half a second."""
    with ProgramProbe() as probe:
        probe.close()


def test_closed_probe_can_be_used_again() -> None:
    """A server rests it between loads."""
    with ProgramProbe() as probe:
        probe.start()
        probe.close()

        assert probe.try_artifact(affine_text(1).encode()) == ""


class _Counting(ProgramProbe):
    """Counts what it tries."""

    tried = 0

    @override
    def try_artifact(self, artifact: bytes) -> str:
        self.tried += 1
        return super().try_artifact(artifact)


def test_server_refuses_what_would_end_it_and_tries_nothing_twice(tmp_path: Path) -> None:
    """What was survived is remembered beside the compiled programs; what was not is tried again."""
    xla_backend = pytest.importorskip("hloserve.engine.xla_backend")
    cache = ExecutableCache(tmp_path, 1 << 20)
    probe = _Counting()
    with probe:
        reader = ProbedReader(xla_backend.XlaBackend("cpu"), probe, cache)
        for _ in range(2):
            reader.read_program(affine_text(1).encode(), "model.mlir")
            with pytest.raises(ProgramProblem, match="ends the process"):
                reader.read_program(DEADLY, "deadly.mlir")

        assert 3 == probe.tried
