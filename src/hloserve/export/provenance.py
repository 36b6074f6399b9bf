"""Where an export comes from: the commit, the uncommitted changes, the versions.

What lives here: `collect_provenance`. What does not: writing it (`hloserve.bundle.manifest_text`,
which moves the diff into a file of its own). Any thread.

Rules.
1. Best effort: a missing git, a broken repository or a slow disk costs a warning, never the export.
2. git asks nobody anything, changes nothing, and has a time limit.
3. No secrets: user and password are taken out of the address of the remote.
"""

import os
import platform
import re
import subprocess
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import hloserve

__all__ = ["MAX_DIFF_BYTES", "collect_provenance"]

MAX_DIFF_BYTES = 20 * 1024**2
_TIMEOUT_S = 20.0
_APPLICABLE = (
    *("--binary", "--no-color", "--unified=3", "--submodule=short", "--no-relative"),
    *("--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/"),
)  # what `git apply` understands, whatever the repository is configured to show
_LOCAL = re.compile(r"GIT_(DIR|WORK_TREE|INDEX_FILE|PREFIX|OBJECT_DIRECTORY|EXTERNAL_DIFF)")


def collect_provenance(
    repo_dir: str | os.PathLike[str] | None = None, extra: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Collect what makes an export reproducible, for the option `provenance`.

    ``git_commit`` and ``git apply --binary working_tree.patch`` give the tracked files as they were
    at the export. Untracked files are counted, not kept.

    Args:
        repo_dir: a directory of the git repository to describe; None for the current one.
        extra: more entries; they win over what is collected.

    Returns:
        ``exported_at``, ``python_version``, ``hloserve_version``, and, in a git repository,
        ``repo_remote``, ``git_commit``, ``git_tree_sha1``, ``git_branch``, ``git_dirty``,
        ``git_untracked_files`` (a number) and ``git_diff`` (bytes, which `write_bundle` moves to
        ``working_tree.patch``). Entries that cannot be found out are left out, with one warning.
        Never raises.
    """
    base: dict[str, object] = {
        "exported_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "python_version": platform.python_version(),
        "hloserve_version": hloserve.__version__,
    }
    try:
        base |= _describe_repository(Path(os.fspath(repo_dir or ".")))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError, _NoAnswer) as error:
        _warn(f"nothing is recorded of git: {_reason(error)}")
    return base | dict(extra or {})


class _NoAnswer(Exception):
    """git ended with an error; the message is the last line of what it said."""


def _reason(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) and error.filename == "git":
        return "git is not installed"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"git took longer than {_TIMEOUT_S:.0f} s"
    return str(error)


def _describe_repository(directory: Path) -> dict[str, object]:
    top = Path(os.fsdecode(_git(directory, "rev-parse", "--show-toplevel").rstrip(b"\n")))
    found: dict[str, object] = {}
    remote = _try_git(top, "config", "--get", "remote.origin.url")
    if remote:
        found["repo_remote"] = _without_secrets(remote)
    branch = _try_git(top, "symbolic-ref", "--quiet", "--short", "HEAD")
    if branch:
        found["git_branch"] = branch
    commit = _try_git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        _warn("the git repository has no commit yet; nothing but its branch is recorded")
        return found
    found |= {"git_commit": commit, "git_tree_sha1": _try_git(top, "rev-parse", "HEAD^{tree}")}
    return found | _describe_changes(top)


def _describe_changes(top: Path) -> dict[str, object]:
    status = _git(top, "status", "--porcelain=v1", "-z", "--untracked-files=normal")
    # Renames have a second path in an entry of its own, which never looks like a status.
    untracked = sum(1 for entry in status.split(b"\0") if entry.startswith(b"?? "))
    diff = _read_diff(top)
    found: dict[str, object] = {"git_dirty": diff is None or bool(diff)}
    if untracked:
        found["git_untracked_files"] = untracked
    if diff:
        found["git_diff"] = diff
    return found


def _read_diff(top: Path) -> bytes | None:
    """The uncommitted changes of tracked files, verbatim; None when there are too many of them."""
    diff = _git(top, "diff", *_APPLICABLE, "HEAD")
    if len(diff) > MAX_DIFF_BYTES:
        _warn(
            f"the uncommitted changes are {len(diff)} bytes, more than {MAX_DIFF_BYTES}, and are"
            " not recorded; commit them to make the export reproducible"
        )
        return None
    return diff


def _without_secrets(address: str) -> str:
    """Take user and password out of ``https://user:password@host/path?token``; ssh's user stays."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    host, slash, path = rest.partition("?")[0].partition("/")
    user, at, server = host.rpartition("@")
    if scheme.endswith("ssh") and ":" not in user:
        return address
    return f"{scheme}://{server if at else host}{slash}{path}"


def _try_git(directory: Path, *arguments: str) -> str:
    """The answer as text; empty when git has none."""
    try:
        return os.fsdecode(_git(directory, *arguments)).strip().encode(errors="replace").decode()
    except _NoAnswer:
        return ""


def _git(directory: Path, *arguments: str) -> bytes:
    done = subprocess.run(
        _command(*arguments),
        cwd=directory,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise _NoAnswer(said[-1] if said else f"git {arguments[0]} failed")
    return done.stdout


def _command(*arguments: str) -> list[str]:
    # No pager, no file system monitor or hook of the repository, no lock: this only looks.
    return ["git", "--no-pager", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]


def _environment() -> dict[str, str]:
    """Ours without what points git elsewhere, as inside of a hook, and without any prompt."""
    kept = {key: value for key, value in os.environ.items() if not _LOCAL.fullmatch(key)}
    return kept | {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def _warn(text: str) -> None:
    warnings.warn(f"provenance: {text}", stacklevel=3)
