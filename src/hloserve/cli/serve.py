"""`hloserve serve`: start a server.

The work is `hloserve.server.serving.serve`. Main thread.
"""

import sys
from pathlib import Path
from typing import Any

import click

from hloserve.cli.server_options import endpoint_options, load_settings

__all__ = ["serve"]


@click.command()
@click.argument("repositories", nargs=-1, metavar="[REPO]...", type=click.Path())
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Node file (YAML). The environment and flags win over it.",
)
@click.option(
    "--include", multiple=True, metavar="MODEL", help="Serve only this model. Repeatable."
)
@click.option(
    "--model-control-mode",
    metavar="MODE",
    help="dynamic follows the repositories, static loads once, explicit loads what clients ask"
    " for. [default: dynamic]",
)
@endpoint_options
@click.option(
    "--strict-startup", is_flag=True, default=None, help="End when any bundle fails to load."
)
@click.option("--drain-timeout", metavar="TIME", help="Time for requests in flight on SIGTERM.")
def serve(
    repositories: tuple[str, ...],
    file: Path | None,
    ports_file: Path | None,
    include: tuple[str, ...],
    **flags: Any,
) -> int:
    """Serve the bundles of one or more model repositories.

    A repository is a directory whose sub-directories are bundles. The server listens at once and
    is ready when its models are. Bundles that appear, change or vanish later are taken up. SIGTERM
    or Ctrl-C ends it after the requests in flight.

    Every setting can be given in a node file, as HLOSERVE_<SECTION>_<FIELD> in the environment, or
    as a flag where one is below; `hloserve config show` prints them all.

    \b
    Examples:
      hloserve serve models/
      hloserve serve models/ --host 0.0.0.0 --tokens-file tokens
      hloserve serve --config node.yaml --ports-file ports.json --http-port 0
    """
    from hloserve.config import require_model_dirs

    loaded = load_settings(
        file, {**flags, "model_dirs": repositories or None, "include": include or None}
    )
    require_model_dirs(loaded)
    from hloserve.server.serving import serve as serve_worker

    return serve_worker(loaded, ports_file=ports_file, show_progress=sys.stderr.isatty())
