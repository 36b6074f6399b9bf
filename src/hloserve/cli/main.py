"""The `hloserve` command: the list of commands, and the one place where errors become messages.

What lives here: exit statuses and how each kind of error is told. What does not: what the commands
do. The console script calls `main` on the main thread.

Exit statuses: 0 done, 1 failed, 2 usage or configuration, 130 interrupted.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from hloserve import __version__
from hloserve.cli.check import check
from hloserve.cli.compare import compare
from hloserve.cli.config import config
from hloserve.cli.control import compact, pin, unpin, weight
from hloserve.cli.demo import demo
from hloserve.cli.export import export
from hloserve.cli.hooks import hooks
from hloserve.cli.infer import infer
from hloserve.cli.inspect_torchscript import inspect_torchscript
from hloserve.cli.migrate_weights import migrate_weights
from hloserve.cli.printing import error_text
from hloserve.cli.serve import serve
from hloserve.cli.show import show
from hloserve.cli.status import status
from hloserve.core.errors import ConfigProblem, HloserveError

__all__ = ["cli", "main", "run"]

FAILED, USAGE, INTERRUPTED = 1, 2, 130

_EXTRA_OF_MODULE = {
    "jax": "server",
    "jaxlib": "server",
    "prometheus_client": "server",
    "uvloop": "server",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="hloserve %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Show an error's traceback.")
def cli() -> None:
    """Serve StableHLO programs over the KServe V2 protocol.

    \b
    Examples:
      hloserve demo                        serve a small model that comes with the package
      hloserve serve models/               serve every bundle of a model repository
      hloserve export models.yaml          make bundles of trained models
      hloserve show models/resnet          what a bundle holds
      hloserve check models/resnet         everything that is wrong with it
      hloserve infer resnet image=cat.npy  ask a running server
      hloserve status                      what it serves, and where its weights are
    """


for _command in (
    serve,
    demo,
    show,
    check,
    export,
    compare,
    hooks,
    infer,
    status,
    pin,
    unpin,
    weight,
    compact,
    config,
    inspect_torchscript,
    migrate_weights,
):
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command line of this process and exit with its status."""
    _open_standard_streams()
    sys.exit(run(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Put /dev/null where a parent closed one: else the next socket would take its number."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; every error ends here."""
    rest = [argument for argument in arguments if argument != "--debug"]  # before or after COMMAND
    try:
        result = cli.main(rest, prog_name="hloserve", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as shown:
        click.echo(shown.format_message(), err=True)
        return USAGE
    except Exception as error:
        if len(rest) < len(arguments):
            traceback.print_exc()
        exit_status = _tell(error)
        if exit_status is None:
            raise  # a bug: the traceback is the message
        return exit_status
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _tell(error: Exception) -> int | None:
    """Print the message of an error; its exit status, or None when it is none of ours."""
    match error:
        case BrokenPipeError():  # whoever read our output has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        case click.Abort():
            return _fail("interrupted", INTERRUPTED)
        case click.UsageError():
            if error.ctx is not None:
                hint = f"Try '{error.ctx.command_path} --help' for help."
                click.echo(f"{error.ctx.get_usage()}\n{hint}", err=True)
            return _fail(error.format_message(), USAGE)
        case click.ClickException():
            return _fail(error.format_message(), error.exit_code)
        case ConfigProblem():
            return _fail(str(error), USAGE)
        case HloserveError():
            return _fail(str(error), FAILED)
        case ImportError():
            return _fail(_missing_module(error), FAILED)
        case OSError():
            return _fail(_os_error(error), FAILED)
    return None


def _fail(message: str, exit_status: int) -> int:
    click.echo(error_text(message), err=True)
    return exit_status


def _missing_module(error: ImportError) -> str:
    extra = _EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])
    if extra is None:
        return f"the installation is incomplete: {error}"
    return (
        f"this command needs the {extra!r} extra ({error.name} is not installed);"
        f" run: pip install 'hloserve[{extra}]'"
    )


def _os_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


if __name__ == "__main__":
    main()
