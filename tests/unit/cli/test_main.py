"""The one exit of the command line."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hloserve import __version__
from hloserve.cli.main import cli, run
from hloserve.core.errors import ConfigProblem, HloserveError, ModelNotFound

HLOSERVE = [sys.executable, "-m", "hloserve"]


def _raising(error: BaseException) -> click.Command:
    @click.command("raise")
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "exit_status", "told"),
    [
        (ModelNotFound("x"), 1, "error: model 'x' is not served here"),
        (ConfigProblem("a", "", "b", [ConfigProblem("c", "", "d")]), 2, "error: a: b\nerror: c: d"),
        (HloserveError("a\x1b[2J\nb"), 1, "error: a\\x1b[2J\nerror: b"),
        (ImportError("x", name="jaxlib"), 1, "pip install 'hloserve[server]'"),
        (ImportError("no x", name="numpy"), 1, "the installation is incomplete"),
        (FileNotFoundError(2, "No such file", "a.npy"), 1, "error: a.npy: No such file"),
        (click.UsageError("bad"), 2, "error: bad"),
        (click.FileError("a.npy", "gone"), 1, "error: Could not open file 'a.npy': gone"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (click.Abort(), 130, "error: interrupted"),
    ],
)
def test_every_error_becomes_a_message_and_a_status(
    capsys: pytest.CaptureFixture[str], error: BaseException, exit_status: int, told: str
) -> None:
    """A user's mistake is a message on standard error and an exit status, never a traceback."""
    cli.add_command(_raising(error))
    try:
        found = run(["raise"])
    finally:
        del cli.commands["raise"]

    captured = capsys.readouterr()
    assert exit_status == found
    assert told in captured.err
    assert "Traceback" not in captured.err
    assert "" == captured.out


def test_debug_shows_the_traceback_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    """--debug, before or after the command, adds the traceback to the message."""
    for arguments in (
        ["--debug", "config", "show", "absent.yaml"],
        ["config", "show", "--debug", "absent.yaml"],
    ):
        assert 2 == run(arguments)
        assert "Traceback" in capsys.readouterr().err


def test_own_bug_is_not_dressed_up() -> None:
    """An error that is nobody's mistake but ours leaves with its traceback."""
    cli.add_command(_raising(ZeroDivisionError()))
    try:
        with pytest.raises(ZeroDivisionError):
            run(["raise"])
    finally:
        del cli.commands["raise"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve"],
        ["demo"],
        ["show"],
        ["infer"],
        ["status"],
        ["config"],
        ["config", "show"],
        ["config", "check"],
    ],
)
def test_every_command_explains_itself_with_an_example(arguments: list[str]) -> None:
    """The help of every command shows at least one example."""
    result = CliRunner().invoke(cli, [*arguments, "--help"])

    assert 0 == result.exit_code
    assert "Example" in result.output
    for option in (line for line in result.output.splitlines() if line.startswith("  --")):
        assert len(option.split()) > 1, f"{option} has no help"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """--version names the program and its version."""
    assert 0 == run(["--version"])
    assert f"hloserve {__version__}\n" == capsys.readouterr().out


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped command ends with status 2 and a way to the help."""
    assert 2 == run(["sevre"])
    assert "No such command 'sevre'" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    """Help does not wait for numpy, msgspec, protobuf or XLA."""
    heavy = ("numpy", "jax", "jaxlib", "msgspec", "yaml", "google.protobuf", "ngh2", "uvloop")
    program = (
        "import sys; from hloserve.cli.main import run; run(['serve', '--help'])\n"
        f"print('HEAVY', *[m for m in {heavy!r} if m in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert "HEAVY" == done.stdout.splitlines()[-1]


def test_reader_that_has_had_enough_is_no_error() -> None:
    """When the reader of the output closes it, the command ends without a traceback."""
    with subprocess.Popen(
        [*HLOSERVE, "config", "show"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        told = process.stderr.read()
        status = process.wait(timeout=60)

    assert "" == told
    assert status in (0, 1)


def test_module_and_console_script_are_the_same(tmp_path: Path) -> None:
    """`python -m hloserve` runs in any directory, with the statuses of the command."""
    done = subprocess.run(
        [*HLOSERVE, "config", "check", "absent.yaml"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert 2 == done.returncode
    assert "error: absent.yaml: cannot be read: No such file or directory\n" == done.stderr
