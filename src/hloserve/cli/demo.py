"""`hloserve demo`: serve the model that the package brings.

The work is `hloserve.server.demo.run`. Main thread.
"""

import sys
from importlib import resources
from pathlib import Path
from typing import Any

import click

from hloserve.cli.server_options import endpoint_options, load_settings
from hloserve.core.errors import ConfigProblem

__all__ = ["demo"]


@click.command()
@endpoint_options
def demo(ports_file: Path | None, **flags: Any) -> int:
    """Serve a small real model, and print how to ask it.

    Nothing else is needed: the model comes with the package. Once it is ready, one curl line and
    one Python line are printed that work when pasted. Ctrl-C ends it.

    \b
    Examples:
      hloserve demo
      hloserve demo --http-port 0 --grpc-port 0 --admin-port 0
    """
    repository = Path(str(resources.files("hloserve") / "demo_repository"))
    if not repository.is_dir():
        raise ConfigProblem(str(repository), "", "the package lacks its demo; install it again")
    # What is installed stays as it is: neither followed nor written to.
    fixed = {"model_control_mode": "static", "runtime.executable_cache": False}
    loaded = load_settings(None, {**flags, **fixed, "model_dirs": (str(repository),)})
    from hloserve.server.demo import run

    return run(loaded, ports_file=ports_file, show_progress=sys.stderr.isatty())
