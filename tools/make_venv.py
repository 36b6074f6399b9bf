"""Make the virtual environment: `python tools/make_venv.py .venv`.

Runs on the Python that the machine has, before anything is installed: standard library only. Any
later run brings an existing environment up to date with `pyproject.toml`.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

NEEDED = (3, 11)
NEWEST_TRIED = (3, 13)


def main(directory: str) -> int:
    """Create or update the environment; the exit status."""
    if not NEEDED <= sys.version_info[:2] <= NEWEST_TRIED and not os.environ.get("PYTHON"):
        other = next(
            filter(None, map(shutil.which, ("python3.12", "python3.11", "python3.13"))), ""
        )
        if other:
            return subprocess.call(
                [other, __file__, directory], env={**os.environ, "PYTHON": other}
            )
    if sys.version_info[:2] < NEEDED:
        found = ".".join(map(str, sys.version_info[:3]))
        print(
            f"error: Python 3.11 or newer is needed, {sys.executable} is {found};"
            " name another one: make setup PYTHON=/path/to/python3.11",
            file=sys.stderr,
        )
        return 1
    return install(Path(directory))


def install(directory: Path) -> int:
    """Create the environment when it is missing, and install the package into it."""
    python = directory / "bin" / "python"
    if not python.exists():
        print(f"setup: creating {directory}", flush=True)
        try:
            venv.create(directory, with_pip=True, clear=True)
        except subprocess.CalledProcessError:
            print(
                "error: this Python cannot create virtual environments;"
                " install its venv module (on Debian: python3-venv)",
                file=sys.stderr,
            )
            return 1
    print("setup: installing hloserve and its development tools (minutes, once)", flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # Compiling 300 packages up front takes longer than what is imported of them ever will.
    return subprocess.call([*pip, "install", "--quiet", "--no-compile", "--editable", ".[dev]"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
