"""Virtual environments with older versions of jaxlib.

They are made once, by pip, in `.compatibility/` at the root of the checkout; removing that
directory makes them anew.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".compatibility"
VERSIONS = ("0.4.31", "0.5.3", "0.6.2")


class OldVersion:
    """An environment with one version of jax and jaxlib.

    Args:
        version: of both.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self._directory = CACHE / f"jaxlib-{version}"

    def install(self) -> None:
        """Make the environment, unless it is there."""
        ready = self._directory / ".ready"
        if ready.exists():
            return
        venv.create(self._directory, clear=True, with_pip=True)
        wanted = [f"jax=={self.version}", f"jaxlib=={self.version}", "absl-py"]
        self._python("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
        ready.touch()

    def run(self, script: str, *arguments: Path) -> None:
        """Run a script of this directory in the environment."""
        self._python(str(HERE / script), *map(str, arguments))

    def _python(self, *arguments: str) -> None:
        python = self._directory / "bin" / "python"
        done = subprocess.run(
            [python, *arguments], capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode != 0:
            print(done.stdout + done.stderr, file=sys.stderr)
            raise AssertionError(f"{arguments[0]} failed with jaxlib {self.version}")
