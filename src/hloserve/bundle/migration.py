"""Migrating the weights of a bundle from the legacy layout to program order.

What lives here: carrying out the steps of `hloserve.bundle.migration_plan` under the bundle's lock.
What does not: deciding them, what counts as proof (`hloserve.bundle.migration_proof`), and when
bundles are migrated (`hloserve.server.loading`, `hloserve.cli.migrate_weights`). Any thread, any
number of processes.

Rules.
1. Nothing is accepted without proof, and the original loses its last name only after the file in
   its place was proved against it.
2. What is written gets its name by a rename, after it was synced and proved. Temporary names end in
   `.tmp-migration-` and letters of this run alone; those of dead runs are removed by the next.
3. A migration that fails says why, and leaves a bundle that loads to the same arrays.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from hloserve.bundle.active_weights import COPY_FILE, describe_original, sha256_of, why_stale
from hloserve.bundle.disk import DISK, Chunks, Disk
from hloserve.bundle.locking import Lock, bundle_lock
from hloserve.bundle.manifest import MANIFEST_FILE
from hloserve.bundle.migration_plan import Mode, Step, plan_steps, why_not, why_nothing
from hloserve.bundle.migration_proof import prove_equal
from hloserve.bundle.migration_state import (
    check_possible,
    edit_text,
    look_at_weights,
    read_manifest_text,
)
from hloserve.bundle.safetensors import TensorEntry, encode_header
from hloserve.bundle.sections import DEFAULT_WEIGHTS_FILE
from hloserve.bundle.weights import AXIS_ORDER, PROGRAM_AXIS_ORDER, WeightsFile
from hloserve.core.errors import BundleProblem, HloserveError, WeightsProblem

__all__ = [
    "MigrationResult",
    "Mode",
    "Step",
    "migrate_bundle",
    "preview_migration",
    "verify_migration",
]

_MARK = ".tmp-migration-"
_KEPT_FILE = f"{DEFAULT_WEIGHTS_FILE}.tmp-replaced"
"""The original, from before it is replaced until its successor is proved."""

_FAULTS = (HloserveError, OSError, MemoryError)


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What became of a bundle.

    Attributes:
        bundle: its directory.
        outcome: what became of it; ``planned`` and ``verified`` when nothing was to be changed.
        steps: those that were done; when planned, those that would be.
        reason: why it failed, or why there is nothing to do.
        seconds: what it took, waiting for another process included.
    """

    bundle: Path
    outcome: Literal["migrated", "planned", "verified", "nothing_to_do", "failed"]
    steps: tuple[Step, ...] = ()
    reason: str = ""
    seconds: float = 0.0


def migrate_bundle(
    bundle: Path,
    mode: Mode,
    *,
    on_step: Callable[[str], object] | None = None,
    disk: Disk = DISK,
) -> MigrationResult:
    """Migrate a bundle, or finish what an earlier run began.

    Args:
        bundle: its directory.
        mode: ``copy`` adds a file in program order; ``replace`` puts it in the original's place.
        on_step: hears what is being done.
        disk: makes the changes.

    Returns:
        The result; what stands in the way is a result too, and nothing is raised for it.
    """
    started = time.monotonic()
    hears = on_step or (lambda step: None)
    done: list[Step] = []
    try:
        if _steps_for(bundle, mode):
            waits = partial(hears, "waiting for another process that migrates it")
            with bundle_lock(bundle, on_wait=waits, disk=disk) as lock:
                # Another process may have done it meanwhile.
                _Run(bundle, lock, disk).do(_steps_for(bundle, mode), hears, done)
        state = look_at_weights(bundle)
    except _FAULTS as error:
        reason, spent_s = _reason_of(error), time.monotonic() - started
        return MigrationResult(bundle, "failed", tuple(done), reason, spent_s)
    spent_s = time.monotonic() - started
    if done:
        return MigrationResult(bundle, "migrated", tuple(done), seconds=spent_s)
    return MigrationResult(bundle, "nothing_to_do", (), why_nothing(state), spent_s)


def preview_migration(bundle: Path, mode: Mode) -> MigrationResult:
    """Tell what `migrate_bundle` would do, as far as that can be seen without doing it."""
    try:
        steps = _steps_for(bundle, mode)
        reason = "" if steps else why_nothing(look_at_weights(bundle))
        if steps:
            check_possible(bundle, steps)
    except _FAULTS as error:
        return MigrationResult(bundle, "failed", reason=_reason_of(error))
    if steps:
        return MigrationResult(bundle, "planned", steps)
    return MigrationResult(bundle, "nothing_to_do", reason=reason)


def verify_migration(bundle: Path) -> MigrationResult:
    """Prove a migrated copy against its original again; nothing is changed."""
    started = time.monotonic()
    try:
        reason = _verify(bundle)
    except _FAULTS as error:
        return MigrationResult(bundle, "failed", reason=_reason_of(error))
    spent_s = time.monotonic() - started
    return MigrationResult(bundle, "nothing_to_do" if reason else "verified", (), reason, spent_s)


def _verify(bundle: Path) -> str:
    """Prove what can be proved; why there is nothing, where there is nothing."""
    state = look_at_weights(bundle)
    original, copy = bundle / DEFAULT_WEIGHTS_FILE, bundle / COPY_FILE
    if state.is_swapped and os.path.lexists(bundle / _KEPT_FILE):
        original, copy = bundle / _KEPT_FILE, original
    elif state.is_meta or state.original != "legacy":
        return why_nothing(state)
    elif state.weights_file != COPY_FILE:
        return "it is not migrated"
    with WeightsFile.open(original) as legacy, WeightsFile.open(copy) as migrated:
        stale = why_stale(migrated, original) if copy.name == COPY_FILE else ""
        if stale:
            raise WeightsProblem(copy, f"it is stale: {stale}")
        prove_equal(legacy, migrated)
    return ""


def _steps_for(bundle: Path, mode: Mode) -> tuple[Step, ...]:
    state = look_at_weights(bundle)
    refusal = why_not(state)
    if refusal:
        raise WeightsProblem(bundle, refusal)
    return plan_steps(state, mode)


def _reason_of(error: Exception) -> str:
    if isinstance(error, BundleProblem):
        name = Path(error.bundle).name
        where = f"{name}: " if name in (COPY_FILE, DEFAULT_WEIGHTS_FILE) else ""
        return where + "; ".join(error.findings)
    if isinstance(error, OSError):
        name = Path(os.fsdecode(error.filename)).name if error.filename else ""
        return f"{name}: {error.strerror}" if name else str(error.strerror or error)
    return str(error) or type(error).__name__


class _Run:
    """One migration under the lock."""

    def __init__(self, bundle: Path, lock: Lock, disk: Disk) -> None:
        self._bundle = bundle
        self._lock = lock
        self._disk = disk
        self._original = bundle / DEFAULT_WEIGHTS_FILE
        self._copy = bundle / COPY_FILE
        self._kept = bundle / _KEPT_FILE
        self._suffix = _MARK + secrets.token_hex(4)

    def do(self, steps: tuple[Step, ...], hears: Callable[[str], object], done: list[Step]) -> None:
        """Do the steps in order; `done` gets each that is finished."""
        if not steps:
            return
        self._remove_leftovers()
        check_possible(self._bundle, steps)
        actions: dict[Step, Callable[[], object]] = {
            Step.MAKE_COPY: self._make_copy,
            Step.SWAP: self._swap,
            Step.FINISH_SWAP: self._finish_swap,
            Step.REMOVE_COPY: self._remove_copy,
        }
        for step in steps:
            hears(step.value)
            actions.get(step, partial(self._edit, step))()
            done.append(step)

    def _remove_leftovers(self) -> None:
        for name in sorted(os.listdir(self._bundle)):
            if _MARK in name:
                self._disk.remove(self._bundle / name)

    def _make_copy(self) -> None:
        with WeightsFile.open(self._original) as original:
            before = os.fstat(original.fd)
            sha256 = sha256_of(Path(f"/proc/self/fd/{original.fd}"))
            chunks = _copy_chunks(original, describe_original(before, sha256))
            with self._written(COPY_FILE, chunks, before) as temporary:
                _forget_pages(temporary)
                with WeightsFile.open(temporary) as copy:
                    prove_equal(original, copy)
                self._check_unchanged(original, before)
                self._put(temporary, self._copy)

    def _edit(self, step: Step) -> None:
        """Change one line of the manifest."""
        before = read_manifest_text(self._bundle)
        after = edit_text(self._bundle, step, before)
        if after == before:
            return
        path = self._bundle / MANIFEST_FILE
        with self._written(MANIFEST_FILE, (after.encode(),), os.stat(path)) as temporary:
            if read_manifest_text(self._bundle) != before:
                raise WeightsProblem(self._bundle, f"{MANIFEST_FILE} was edited meanwhile")
            self._put(temporary, path)

    def _swap(self) -> None:
        """Put the proved copy in the original's place; the original keeps another name so far."""
        with WeightsFile.open(self._original) as original:
            before = os.fstat(original.fd)
            self._prove(original, self._copy, self._withdraw_copy)
            self._check_unchanged(original, before)
            self._disk.remove(self._kept)
            self._link(self._original, self._kept)
            with self._temporary(DEFAULT_WEIGHTS_FILE) as second_name:
                self._link(self._copy, second_name)
                self._put(second_name, self._original)
            self._prove(original, self._original, self._put_back)
        self._disk.remove(self._kept)

    def _finish_swap(self) -> None:
        """Go on after a run that ended between the swap and its proof, or behind it."""
        if os.path.lexists(self._kept):
            with WeightsFile.open(self._kept) as original:
                self._prove(original, self._original, self._put_back)
            self._disk.remove(self._kept)
        elif not _has_same_bytes(self._copy, self._original):
            reason = f"it differs from {COPY_FILE}, which it was made of"
            raise WeightsProblem(self._original, reason)

    def _remove_copy(self) -> None:
        self._disk.remove(self._copy)
        self._disk.sync_directory(self._bundle)

    def _prove(self, original: WeightsFile, copy: Path, undo: Callable[[], object]) -> None:
        """Prove a file against the original; `undo` what relied on it when that fails."""
        try:
            with WeightsFile.open(copy) as opened:
                prove_equal(original, opened)
        except WeightsProblem:
            undo()
            raise

    def _withdraw_copy(self) -> None:
        self._edit(Step.UNNAME_COPY)
        self._remove_copy()

    def _put_back(self) -> None:
        self._put(self._kept, self._original)
        self._withdraw_copy()

    @contextlib.contextmanager
    def _temporary(self, name: str) -> Iterator[Path]:
        """A name of this run's own, which is free again after the block."""
        path = self._bundle / (name + self._suffix)
        try:
            yield path
        finally:
            if os.path.lexists(path):
                with contextlib.suppress(OSError):  # then the next run removes it
                    path.unlink()

    @contextlib.contextmanager
    def _written(self, name: str, chunks: Chunks, like: os.stat_result) -> Iterator[Path]:
        """A new file under a temporary name, on the disk."""
        with self._temporary(name) as path:
            self._disk.write_new(path, chunks, like=like)
            yield path

    def _put(self, temporary: Path, target: Path) -> None:
        """Rename a finished file into its place, and wait until the disk has it."""
        if not self._lock.is_held:
            reason = f"{self._lock.path} was removed meanwhile; try again"
            raise WeightsProblem(self._bundle, reason)
        self._disk.rename(temporary, target)
        self._disk.sync_directory(self._bundle)

    def _link(self, source: Path, target: Path) -> None:
        try:
            self._disk.link(source, target)
        except PermissionError as error:
            reason = f"{source.name} cannot have a second name here; use the mode copy"
            raise WeightsProblem(self._bundle, reason) from error

    def _check_unchanged(self, original: WeightsFile, before: os.stat_result) -> None:
        """The original is what it was when it was opened, and has its name still."""
        now, named = os.fstat(original.fd), os.stat(self._original)
        is_same = os.path.samestat(named, before) and all(
            (now.st_size, now.st_mtime_ns) == (other.st_size, other.st_mtime_ns)
            for other in (before, named)
        )
        if not is_same:
            raise WeightsProblem(original.path, "it was changed while it was migrated; try again")


def _has_same_bytes(a: Path, b: Path) -> bool:
    return a.samefile(b) or sha256_of(a) == sha256_of(b)


def _copy_chunks(original: WeightsFile, record: dict[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a copy: the original's tensors at the same offsets, each in program order."""
    tensors = sorted(original.tensors.values(), key=lambda tensor: tensor.offset)
    entries, at = [], 0
    for tensor in tensors:
        entries.append(TensorEntry(tensor.name, tensor.dtype, tensor.shape, at, at + tensor.nbytes))
        at += tensor.nbytes
    metadata = {**original.metadata, AXIS_ORDER: PROGRAM_AXIS_ORDER, **record}
    yield encode_header(entries, metadata)
    for tensor in tensors:
        buffer = np.empty(tensor.nbytes, np.uint8)
        original.read_into(tensor, buffer)
        yield buffer.data


def _forget_pages(path: Path) -> None:
    """Ask the kernel to drop a file's pages, so that the proof reads what the disk holds."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
