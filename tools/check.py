"""Every check of `make check`: `python tools/check.py [NAME...]`.

Runs them all, two at a time, and prints the output of those that fail. The list is here and
nowhere else; `make check` and `.ci/run` run exactly this.
"""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BIN = Path(sys.executable).parent
PYTHON = sys.executable

CHECKS: dict[str, list[str]] = {
    "types": [PYTHON, "-m", "mypy"],
    "format": [PYTHON, "-m", "ruff", "format", "--check", "--diff", "--quiet"],
    "lint": [PYTHON, "-m", "ruff", "check", "--quiet"],
    "layers": [str(BIN / "lint-imports"), "--no-cache"],
    "sizes": [PYTHON, "tools/check_sizes.py"],
    "changes": [PYTHON, "tools/changelog.py", "--check"],
    "protos": [PYTHON, "tools/make_protos.py", "--check"],
    "characters": [PYTHON, "tools/make_text_characters.py", "--check"],
    "reference": [PYTHON, "tools/make_reference.py", "--check"],
}
"""Command by name, the slowest first."""


def run(name: str) -> tuple[str, float, subprocess.CompletedProcess[str]]:
    """Run one check; its name, seconds and result."""
    start = time.monotonic()
    done = subprocess.run(
        CHECKS[name], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return name, time.monotonic() - start, done


def main(names: list[str]) -> int:
    """Run the named checks, or all; 1 when one fails."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"error: no check {unknown[0]!r}; there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    failed = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for name, seconds, done in pool.map(run, names or CHECKS):
            print(f"{name:<10} {'ok' if done.returncode == 0 else 'FAILED'} ({seconds:.1f} s)")
            if done.returncode != 0:
                failed.append(name)
                print((done.stdout + done.stderr).rstrip(), flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all checks pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
