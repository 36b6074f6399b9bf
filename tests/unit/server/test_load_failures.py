"""What failed loads mean, and when bundles are tried again."""

import errno
from pathlib import Path

import pytest

from hloserve.bundle.fingerprint import Fingerprint
from hloserve.core.errors import BackendFailed, DeviceMemoryFull, ManifestProblem
from hloserve.models.repository_look import Found
from hloserve.server.load_failures import RETRY_S, Failure, LoadFailures
from hloserve.server.loading import BundleChanged

FOUND = Found(Path("/models/a"), Fingerprint((1, 1), ()))
FULL = DeviceMemoryFull(2, 1)
BROKEN = ManifestProblem("/models/a", ["no name"])


def _pauses(failures: LoadFailures, name: str, tries: int) -> list[float | None]:
    return [failures.judge(name, FOUND, FULL).retry_s for _ in range(tries)]


def _unreadable(number: int) -> ManifestProblem:
    """A bundle that could not be read, because of a system call's error beneath another error."""
    problem, between = ManifestProblem("/models/a", ["unreadable"]), ValueError("unreadable")
    problem.__cause__, between.__cause__ = between, OSError(number, "system")
    return problem


def test_pauses_grow_and_the_last_one_repeats() -> None:
    """A bundle for which there is no memory is tried for ever, ever less often."""
    failures = LoadFailures(1.0, is_watched=True)

    assert [*RETRY_S, RETRY_S[-1], RETRY_S[-1]] == _pauses(failures, "a", len(RETRY_S) + 2)


def test_each_name_has_pauses_of_its_own() -> None:
    """One model's failures do not keep another waiting."""
    failures = LoadFailures(1.0, is_watched=True)
    _pauses(failures, "a", 3)

    assert list(RETRY_S[:2]) == _pauses(failures, "b", 2)


def test_forgotten_name_begins_with_the_first_pause() -> None:
    """So a model that has served meanwhile is tried again soon; the others' pauses go on."""
    failures = LoadFailures(1.0, is_watched=True)
    _pauses(failures, "a", 3)
    _pauses(failures, "b", 1)

    failures.forget("a")
    failures.forget("never failed")

    assert [RETRY_S[0]] == _pauses(failures, "a", 1)
    assert [RETRY_S[1]] == _pauses(failures, "b", 1)


def test_broken_bundle_waits_for_its_files() -> None:
    """It would fail again; and it does not make later pauses longer."""
    failures = LoadFailures(1.0, is_watched=True)

    assert Failure(FOUND, BROKEN, None) == failures.judge("a", FOUND, BROKEN)

    assert [RETRY_S[0]] == _pauses(failures, "a", 1)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ENOSPC])
def test_fault_of_the_machine_is_tried_again(number: int) -> None:
    """However deep beneath the error that is told it lies."""
    error = _unreadable(number)

    failure = LoadFailures(1.0, is_watched=True).judge("a", FOUND, error)

    assert Failure(FOUND, error, RETRY_S[0]) == failure


def test_fault_of_the_bundle_in_the_system_is_not_tried_again() -> None:
    """A file that is not there comes with a change of the files."""
    failures = LoadFailures(1.0, is_watched=True)

    assert failures.judge("a", FOUND, _unreadable(errno.ENOENT)).retry_s is None


def test_foreign_error_is_told_as_one_of_ours() -> None:
    """Its kind and its text are in it."""
    failure = LoadFailures(1.0, is_watched=True).judge("a", FOUND, ValueError("odd"))

    assert isinstance(failure.error, BackendFailed)
    assert "ValueError: odd" in str(failure.error)
    assert failure.retry_s is None


@pytest.mark.parametrize(("is_watched", "retry_s"), [(True, None), (False, 1.5)])
def test_changed_bundle_has_not_failed(is_watched: bool, retry_s: float | None) -> None:
    """A look finds what it became; where nobody looks, a pause stands for one."""
    failures = LoadFailures(1.5, is_watched=is_watched)

    failure = failures.judge("a", FOUND, BundleChanged("changed while it was read"))

    changed = Found(FOUND.path, FOUND.fingerprint, "changed while it was read")
    assert Failure(changed, None, retry_s) == failure
    assert [RETRY_S[0]] == _pauses(failures, "a", 1), "a change is no try"
