"""Ending a process with SIGKILL at each change that it makes to the disk, one run after the other.

`run_killed` starts one helper process, which forks a child per run; the child ends at the announced
step whose number it was given. So a hundred deaths cost little more than one start of Python.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from support.migration_bundles import legacy_bundle_files

from hloserve.bundle.disk import Disk
from hloserve.bundle.migration import migrate_bundle
from hloserve.bundle.placing import place_bundle
from hloserve.bundle.replacing import RenameRule
from hloserve.engine.programs.executable_cache import ExecutableCache

PAYLOADS = {"old": b"o" * 400, "new": b"n" * 500}
CACHE_LIMIT_BYTES = 600
"""Room for one of the payloads, so that adding the second evicts the first."""


def rename_without_rules(source: Path, target: Path, rule: RenameRule) -> bool:
    """A file system that knows no rules."""
    return False


def _place_new(place: Path, disk: Disk) -> None:
    place_bundle(place / "model", legacy_bundle_files("new"), overwrite=False, disk=disk)


def _place_over(place: Path, disk: Disk) -> None:
    place_bundle(place / "model", legacy_bundle_files("new"), overwrite=True, disk=disk)


def _place_over_plainly(place: Path, disk: Disk) -> None:
    files = legacy_bundle_files("new")
    place_bundle(place / "model", files, overwrite=True, rename=rename_without_rules, disk=disk)


def _write_cache(place: Path, disk: Disk) -> None:
    ExecutableCache(place / "cache", CACHE_LIMIT_BYTES, disk).write("new", PAYLOADS["new"])


ACTIONS: Mapping[str, Callable[[Path, Disk], object]] = {
    "copy": lambda place, disk: migrate_bundle(place / "model", "copy", disk=disk),
    "replace": lambda place, disk: migrate_bundle(place / "model", "replace", disk=disk),
    "place new": _place_new,
    "place over": _place_over,
    "place over plainly": _place_over_plainly,
    "write cache": _write_cache,
}
"""What is done in a directory, by name."""


def steps_of(action: str, place: Path) -> list[str]:
    """Do it undisturbed; the steps that it announced."""
    steps: list[str] = []
    ACTIONS[action](place, Disk(steps.append))
    return steps


def run_killed(action: str, places: Sequence[Path]) -> list[int]:
    """Do it in each place, killed before the step whose number is that of the place.

    Returns:
        For each place the signal that ended its process; 0 when it ended by itself.
    """
    ends: list[int] = json.loads(_help([action], places))
    return ends


def _help(arguments: Sequence[str], places: Sequence[Path]) -> str:
    helper = subprocess.run(
        [sys.executable, "-m", "support.killing", *arguments],
        input=json.dumps([str(place) for place in places]),
        # One thread, so that the helper can fork.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert helper.returncode == 0, helper.stderr
    return helper.stdout


def unannounced(action: str, place: Path) -> list[str]:
    """Do it undisturbed; the changes that the interpreter made without an announcement."""
    helper = _help(["--audit", action], [place])
    found: list[str] = json.loads(helper)
    return found


def _audit(action: str) -> None:
    """Compare what the interpreter tells of its system calls with what is announced.

    Each announcement allows one change; that of a removal all that a directory takes.
    """
    allowed, is_removal, found = 0, False, []

    def announced(step: str) -> None:
        nonlocal allowed, is_removal
        allowed, is_removal = 1, step.startswith("remove ")

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal allowed
        if event == "open":
            flags = arguments[2]
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event not in _CHANGES:
            return
        if not is_removal and allowed == 0:
            found.append(f"{event} {arguments}")
        allowed = 0

    (place,) = json.load(sys.stdin)
    sys.addaudithook(hear)
    ACTIONS[action](Path(place), Disk(announced))
    events, found = found, []
    sys.stdout.write(json.dumps(events))


_CHANGES = frozenset(
    ("os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
)


def _main(action: str) -> None:
    ends = []
    for number, place in enumerate(json.load(sys.stdin)):
        child = os.fork()
        if child == 0:
            _act_and_die(action, Path(place), number)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, (action, number, status)
        ends.append(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
    sys.stdout.write(json.dumps(ends))


def _act_and_die(action: str, place: Path, at: int) -> None:
    seen = 0

    def die_there(step: str) -> None:
        nonlocal seen
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    status = 1
    try:
        ACTIONS[action](place, Disk(die_there))
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "--audit":
        _audit(sys.argv[2])
    else:
        _main(sys.argv[1])
