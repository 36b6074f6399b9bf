"""`hloserve serve` and `hloserve demo`, up to where the server begins."""

import re

import click
import pytest

from hloserve.cli.demo import demo
from hloserve.cli.main import run
from hloserve.cli.serve import serve
from hloserve.cli.server_options import FLAG_PATHS, load_settings
from hloserve.config.settings import SETTINGS, flag_name


def _flags(command: click.Command) -> dict[str, click.Option]:
    return {p.name: p for p in command.params if isinstance(p, click.Option) and p.name}


def test_flags_are_called_what_errors_call_them() -> None:
    """A problem with a flag's value names the flag as it is typed."""
    flags = _flags(serve)
    for parameter, dotted in FLAG_PATHS.items():
        assert flag_name(tuple(dotted.split("."))) in flags[parameter].opts


@pytest.mark.parametrize("command", [serve, demo])
def test_defaults_in_the_help_are_the_defaults(command: click.Command) -> None:
    """What the help says about a default is what the settings say."""
    for name, option in _flags(command).items():
        told = re.search(r"\[default: (.*?)\]", option.help or "")
        if told:
            assert told[1] == str(SETTINGS[tuple(FLAG_PATHS[name].split("."))].default)


def test_flags_are_settings() -> None:
    """A flag's value arrives under its setting, with units read."""
    loaded = load_settings(
        None, {"http_port": 0, "include": ("a", "b"), "drain_timeout": "1m", "host": None}
    )

    assert 0 == loaded.config.endpoints.http_port
    assert ("a", "b") == loaded.config.models_include
    assert 60.0 == loaded.config.drain_timeout_s
    assert "flag --drain-timeout" == loaded.sources["drain_timeout_s"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no model repository: give REPO"),
        (["absent"], "'absent' is not an existing directory"),
        ([".", "--http-port", "70000"], "--http-port: must be a whole number"),
        ([".", "--http-port", "5", "--grpc-port", "5"], "takes too"),
        ([".", "--backend", "tpu"], "--backend: must be 'cpu' or 'cuda', got 'tpu'"),
        ([".", "--log-level", "loud"], "--log-level: must be"),
        ([".", "--drain-timeout", "soon"], "--drain-timeout: 'soon' is not a duration"),
        ([".", "--config", "absent.yaml"], "absent.yaml: cannot be read"),
    ],
)
def test_bad_start_ends_with_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """A start that cannot work ends at once, before anything is opened, with what to change."""
    assert 2 == run(["serve", *arguments])
    assert told in capsys.readouterr().err
