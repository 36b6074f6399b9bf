"""`hloserve config show` and `hloserve config check`: the settings and where they come from.

The work is `hloserve.config.load`. Main thread.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hloserve.cli.printing import print_json, print_table
from hloserve.cli.server_options import load_settings

__all__ = ["config"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _node_file(command: Decorated) -> Decorated:
    kind = click.Path(dir_okay=False, path_type=Path)
    option = click.option("--config", "option", type=kind, metavar="FILE", help="The same as FILE.")
    return click.argument("file", required=False, type=kind)(option(command))


def _one_file(file: Path | None, option: Path | None) -> Path | None:
    if file is not None and option is not None:
        raise click.UsageError("give one node file, not two")
    return file if file is not None else option


@click.group()
def config() -> None:
    """Show or check the settings of a server.

    \b
    Examples:
      hloserve config show
      hloserve config check node.yaml
    """


@config.command()
@_node_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(file: Path | None, option: Path | None, as_json: bool) -> int:
    """Print every setting, its value and where it came from.

    Reads FILE if one is given, then HLOSERVE_* in the environment, exactly as `serve` does.

    \b
    Examples:
      hloserve config show node.yaml
      HLOSERVE_ENDPOINTS_HOST=0.0.0.0 hloserve config show
    """
    loaded = load_settings(_one_file(file, option), {})
    settings = list(loaded.items())
    if as_json:
        print_json({s.path: {"value": s.value, "source": s.source} for s in settings})
    else:
        rows = [(s.path, _shown(s.path, s.value), s.source) for s in settings]
        print_table(("SETTING", "VALUE", "FROM"), rows)
    return 0


@config.command()
@_node_file
def check(file: Path | None, option: Path | None) -> int:
    """Check the settings, and print everything that is wrong.

    Reads what `serve` would read, and starts nothing. The exit status is 2 when something is wrong.

    \b
    Example:
      hloserve config check node.yaml
    """
    from hloserve.config import require_model_dirs, require_safe_address

    file = _one_file(file, option)
    loaded = load_settings(file, {})
    require_safe_address(loaded.config, loaded.sources)
    if file is not None:
        require_model_dirs(loaded)
    given = sum(s.source != "default" for s in loaded.items())
    click.echo(f"ok: {given} settings given, the others are defaults")
    return 0


def _shown(path: str, value: object) -> str:
    from hloserve.core.units import format_bytes, format_duration

    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "[]"
    if path.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if path.endswith("_s") and isinstance(value, int | float):
        return format_duration(value)
    return str(value)
