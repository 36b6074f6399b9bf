"""Migrating weights: what is done, and what stands in the way."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.migration_bundles import (
    MANIFEST,
    WEIGHTS,
    bits,
    files_of,
    legacy_weights,
    read_as_old_server,
    write_legacy,
)

from hloserve.bundle import load_manifest, read_bundle_weights
from hloserve.bundle.active_weights import COPY_FILE, RECORD_KEYS
from hloserve.bundle.disk import Disk
from hloserve.bundle.migration import (
    Mode,
    Step,
    migrate_bundle,
    preview_migration,
    verify_migration,
)
from hloserve.bundle.weights import WeightsFile

MODES = ("copy", "replace")
ORIGINAL = "weights.safetensors"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A legacy bundle."""
    return write_legacy(tmp_path / "model")


def test_copy_adds_a_file_and_a_line(bundle: Path) -> None:
    """Everything else stays as it was, byte for byte, and an old server reads what it read."""
    before, seen = files_of(bundle), read_as_old_server(bundle)

    result = migrate_bundle(bundle, "copy")

    assert ("migrated", (Step.MAKE_COPY, Step.NAME_COPY), "") == (
        result.outcome,
        result.steps,
        result.reason,
    )
    line = '"2.0"   # old servers\n'
    manifest = MANIFEST.replace(line, f"{line}weights_file: {COPY_FILE}\n")
    after = files_of(bundle)
    copy = after.pop(COPY_FILE)
    assert {**before, "manifest.yaml": manifest.encode()} == after
    assert len(copy) > len(before[ORIGINAL])
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))
    assert seen == read_as_old_server(bundle)


def test_replace_leaves_a_bundle_of_the_new_format(bundle: Path) -> None:
    """One file, one changed line."""
    migrate_bundle(bundle, "replace")

    assert ["manifest.yaml", "model.b1.mlir", ORIGINAL] == sorted(files_of(bundle))
    manifest = (bundle / "manifest.yaml").read_text()
    assert MANIFEST.replace('"2.0"', '"2.1"') == manifest
    with WeightsFile.open(bundle / ORIGINAL) as weights:
        assert not weights.is_legacy
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))


def test_copy_tells_what_it_was_made_of(bundle: Path) -> None:
    """Size, time and SHA-256 of the original, beside the original's own metadata."""
    found = os.stat(bundle / ORIGINAL)
    with WeightsFile.open(bundle / ORIGINAL) as original:
        metadata = dict(original.metadata)

    migrate_bundle(bundle, "copy")

    with WeightsFile.open(bundle / COPY_FILE) as copy:
        added = {key: copy.metadata[key] for key in copy.metadata.keys() - metadata.keys()}
        assert metadata == {key: copy.metadata[key] for key in metadata}
    assert "xla" == added.pop("axis_order")
    assert RECORD_KEYS == added.keys()
    assert str(found.st_size) == added["migrated_from_size"]
    assert str(found.st_mtime_ns) == added["migrated_from_mtime_ns"]
    assert 64 == len(added["migrated_from_sha256"])


@pytest.mark.parametrize("mode", MODES)
def test_second_run_has_nothing_to_do(bundle: Path, mode: Mode) -> None:
    """And touches nothing, not even the lock."""
    migrate_bundle(bundle, mode)
    before = files_of(bundle)
    shutil.rmtree(bundle / ".cache")

    assert "nothing_to_do" == migrate_bundle(bundle, mode).outcome
    assert before == files_of(bundle)
    assert not (bundle / ".cache").exists()


def test_copy_becomes_a_replacement(bundle: Path, tmp_path: Path) -> None:
    """The same as if it had been one from the start."""
    shutil.copytree(bundle, tmp_path / "other" / "model")
    migrate_bundle(tmp_path / "other" / "model", "replace")

    migrate_bundle(bundle, "copy")
    result = migrate_bundle(bundle, "replace")

    assert (Step.RAISE_VERSION, Step.SWAP, Step.UNNAME_COPY, Step.REMOVE_COPY) == result.steps
    assert files_of(tmp_path / "other" / "model") == files_of(bundle)


@pytest.mark.parametrize("spoil", ["stale", "broken", "missing", "no copy"])
def test_copy_that_does_not_count_is_made_again(bundle: Path, spoil: str) -> None:
    """The original counts: redeployed, or its copy damaged."""
    migrate_bundle(bundle, "copy")
    weights = WEIGHTS
    if spoil == "stale":
        weights = {"w": np.ones((2, 3), np.float32)}
        (bundle / ORIGINAL).write_bytes(legacy_weights(weights))
    elif spoil == "broken":
        (bundle / COPY_FILE).write_bytes(b"")
    elif spoil == "missing":
        (bundle / COPY_FILE).unlink()
    else:
        (bundle / COPY_FILE).write_bytes(legacy_weights({}))

    result = migrate_bundle(bundle, "copy")

    assert (Step.MAKE_COPY,) == result.steps
    with WeightsFile.open(bundle / COPY_FILE) as copy:
        assert not copy.is_legacy
    assert bits(weights) == bits(read_bundle_weights(bundle))
    assert "verified" == verify_migration(bundle).outcome


def test_bundles_that_need_nothing_are_left_alone(bundle: Path) -> None:
    """A meta model, and weights that are in program order."""
    migrate_bundle(bundle, "replace")
    assert "program order" in migrate_bundle(bundle, "copy").reason

    meta = "format_version: '2.1'\nkind: meta\nmeta: {calls: []}\n" + "".join(
        f"client_{side}: [{{name: x, dtype: f32, shape: a, dims: {{a: 1}}}}]\n"
        for side in ("inputs", "outputs")
    )
    (bundle / "manifest.yaml").write_text(meta)
    (bundle / "model.py").write_text("")
    assert "meta" in migrate_bundle(bundle, "copy").reason


def test_file_modes_stay(bundle: Path) -> None:
    """Who could read the bundle still can, and nobody else."""
    (bundle / ORIGINAL).chmod(0o640)
    (bundle / "manifest.yaml").chmod(0o604)

    migrate_bundle(bundle, "copy")

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in bundle.iterdir()}
    assert (0o640, 0o604) == (modes[COPY_FILE], modes["manifest.yaml"])


def test_linked_weights_are_replaced_and_not_what_they_lead_to(
    bundle: Path, tmp_path: Path
) -> None:
    """The store that the link leads into is not ours."""
    (bundle / ORIGINAL).rename(tmp_path / "store")
    (bundle / ORIGINAL).symlink_to(tmp_path / "store")
    before = (tmp_path / "store").read_bytes()

    assert "migrated" == migrate_bundle(bundle, "replace").outcome

    assert not (bundle / ORIGINAL).is_symlink()
    assert before == (tmp_path / "store").read_bytes()
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))


def _use_flow_style(bundle: Path) -> None:
    flow = "{format_version: '2.0', executable_inputs: [], executable_outputs: []}"
    (bundle / "manifest.yaml").write_text(flow)


def _link_the_manifest(bundle: Path) -> None:
    (bundle / "manifest.yaml").rename(bundle.parent / "elsewhere.yaml")
    (bundle / "manifest.yaml").symlink_to(bundle.parent / "elsewhere.yaml")


def _name_other_weights(bundle: Path) -> None:
    (bundle / ORIGINAL).rename(bundle / "mine.safetensors")
    text = MANIFEST.replace("name: model\n", "weights_file: mine.safetensors\n")
    (bundle / "manifest.yaml").write_text(text)


def _put_a_file_in_the_way(bundle: Path) -> None:
    (bundle / ".cache").write_text("")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_use_flow_style, "one key per line"),
        (_link_the_manifest, "symbolic link"),
        (_name_other_weights, "'mine.safetensors'"),
        (lambda bundle: (bundle / "manifest.yaml").write_text("a: 1"), "format_version is missing"),
        (lambda bundle: (bundle / ORIGINAL).write_bytes(b"x" * 20), "weights.safetensors: "),
        (lambda bundle: (bundle / ORIGINAL).unlink(), "the file is missing"),
        (shutil.rmtree, "no such directory"),
    ],
)
def test_what_cannot_be_migrated_says_why(
    bundle: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    """Nothing is changed, and nothing is raised: the bundle loads as it was, or fails as it did."""
    spoil(bundle)
    before = files_of(bundle) if bundle.exists() else {}

    for result in (migrate_bundle(bundle, "replace"), preview_migration(bundle, "replace")):
        assert "failed" == result.outcome
        assert reason in result.reason
    assert before == (files_of(bundle) if bundle.exists() else {})


def test_cache_directory_that_cannot_be_made_is_a_reason(bundle: Path) -> None:
    """It is where the lock is."""
    _put_a_file_in_the_way(bundle)

    assert "File exists" in migrate_bundle(bundle, "copy").reason
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))


def test_room_is_looked_for_first(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a byte is written."""
    real = os.statvfs(bundle)
    full = os.statvfs_result((*real[:4], 1000, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    before = files_of(bundle)

    result = migrate_bundle(bundle, "copy")

    assert "no room for a copy" in result.reason
    assert f"{1000 * real.f_frsize} are free" in result.reason
    assert before == files_of(bundle)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("code", [errno.ENOSPC])
def test_disk_may_fail_at_every_step(tmp_path: Path, mode: Mode, code: int) -> None:
    """The bundle loads as it was, nothing temporary is left, and the next run ends it."""
    steps: list[str] = []
    write_legacy(tmp_path / "good")
    os.utime(tmp_path / "good" / ORIGINAL, ns=(7, 7))
    migrate_bundle(tmp_path / "good", mode, disk=Disk(steps.append))
    good = files_of(tmp_path / "good")

    for number in range(len(steps)):
        bundle = write_legacy(tmp_path / f"m{number}")
        os.utime(bundle / ORIGINAL, ns=(7, 7))

        result = migrate_bundle(bundle, mode, disk=Disk(FailsAt(number, code)))

        assert ("failed", True) == (result.outcome, os.strerror(code) in result.reason)
        assert bits(WEIGHTS) == bits(read_bundle_weights(bundle)), steps[number]
        assert [] == [name for name in files_of(bundle) if ".tmp-migration-" in name]
        assert "failed" != migrate_bundle(bundle, mode).outcome
        assert good == files_of(bundle), steps[number]


class FailsAt:
    """The disk fails at one step."""

    def __init__(self, number: int, code: int) -> None:
        self._left = number
        self._code = code

    def __call__(self, step: str) -> None:
        self._left -= 1
        if self._left == -1:
            raise OSError(self._code, os.strerror(self._code))


class Does:
    """Does something before the first step whose name holds a word."""

    def __init__(self, word: str, action: Callable[[], object]) -> None:
        self._word = word
        self._action: Callable[[], object] | None = action

    def __call__(self, step: str) -> None:
        if self._action is not None and self._word in step:
            action, self._action = self._action, None
            action()


def overwrite(path: Path) -> None:
    """Change the last byte of a file, and keep its time, as a failing disk would."""
    found = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_original_that_changes_meanwhile_is_not_migrated(bundle: Path) -> None:
    """Its copy would speak for what is gone."""
    change = Does("sync weights.T", lambda: os.utime(bundle / ORIGINAL, ns=(9, 9)))

    result = migrate_bundle(bundle, "copy", disk=Disk(change))

    assert "changed while it was migrated" in result.reason
    assert not (bundle / COPY_FILE).exists()


def test_manifest_that_is_edited_meanwhile_is_not_overwritten(bundle: Path) -> None:
    """The next run reads the new one."""
    edited = MANIFEST + "# edited\n"
    change = Does("sync manifest", lambda: (bundle / "manifest.yaml").write_text(edited))

    result = migrate_bundle(bundle, "copy", disk=Disk(change))

    assert "was edited meanwhile" in result.reason
    assert edited == (bundle / "manifest.yaml").read_text()
    assert "migrated" == migrate_bundle(bundle, "copy").outcome


def test_deleted_lock_stops_a_migration(bundle: Path) -> None:
    """Another process may be at work."""
    delete = Does("sync weights.T", lambda: shutil.rmtree(bundle / ".cache"))

    assert "was removed meanwhile" in migrate_bundle(bundle, "copy", disk=Disk(delete)).reason
    assert not (bundle / COPY_FILE).exists()


def test_copy_that_is_written_wrong_is_not_accepted(bundle: Path) -> None:
    """It is proved from the disk before it gets its name."""

    def damage() -> None:
        (temporary,) = bundle.glob(f"{COPY_FILE}.tmp-*")
        overwrite(temporary)

    result = migrate_bundle(bundle, "copy", disk=Disk(Does("sync weights.T", damage)))

    assert "differs from what" in result.reason
    assert files_of(write_legacy(bundle.parent / "other")) == files_of(bundle)


def test_copy_that_went_bad_does_not_replace_anything(bundle: Path) -> None:
    """It is proved again, and then given up: the bundle loads its original."""
    migrate_bundle(bundle, "copy")
    overwrite(bundle / COPY_FILE)

    result = migrate_bundle(bundle, "replace")

    assert ("failed", (Step.RAISE_VERSION,)) == (result.outcome, result.steps)
    assert not (bundle / COPY_FILE).exists()
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))
    assert "migrated" == migrate_bundle(bundle, "replace").outcome


def test_original_comes_back_when_its_successor_is_bad(bundle: Path) -> None:
    """The file in its place is proved once more before anything is removed."""
    migrate_bundle(bundle, "copy")
    spoil = Does("rename weights.safetensors.tmp", lambda: overwrite(bundle / COPY_FILE))
    result = migrate_bundle(bundle, "replace", disk=Disk(spoil))

    assert "failed" == result.outcome
    assert "differs from what" in result.reason
    assert ["manifest.yaml", "model.b1.mlir", ORIGINAL] == sorted(files_of(bundle))
    assert legacy_weights(WEIGHTS) == (bundle / ORIGINAL).read_bytes()
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))


def test_original_comes_back_after_a_death_too(bundle: Path) -> None:
    """What the dead run left unproved is proved by the next."""
    migrate_bundle(bundle, "copy")
    seen: list[str] = []

    def die_after_the_swap(step: str) -> None:
        if any("rename weights.safetensors.tmp" in before for before in seen):
            raise OSError(errno.EIO, "stopped here")
        seen.append(step)

    migrate_bundle(bundle, "replace", disk=Disk(die_after_the_swap))
    assert (bundle / f"{ORIGINAL}.tmp-replaced").exists()
    overwrite(bundle / COPY_FILE)

    assert "differs from what" in verify_migration(bundle).reason
    assert "differs from what" in migrate_bundle(bundle, "replace").reason
    assert legacy_weights(WEIGHTS) == (bundle / ORIGINAL).read_bytes()
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))


def test_swapped_bundle_that_was_copied_elsewhere_is_finished(bundle: Path) -> None:
    """Then the two names are two files; they are compared."""
    migrate_bundle(bundle, "copy")
    (bundle / ORIGINAL).unlink()
    shutil.copy2(bundle / COPY_FILE, bundle / ORIGINAL)

    result = migrate_bundle(bundle, "copy")

    assert (
        Step.RAISE_VERSION,
        Step.FINISH_SWAP,
        Step.UNNAME_COPY,
        Step.REMOVE_COPY,
    ) == result.steps
    assert "2.1" == load_manifest(bundle).format_version
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))


def test_second_name_that_was_left_is_removed(bundle: Path) -> None:
    """The last step of a run that died; the manifest is as it should be, and is not written."""
    migrate_bundle(bundle, "replace")
    os.link(bundle / ORIGINAL, bundle / COPY_FILE)
    before = os.stat(bundle / "manifest.yaml")

    assert "migrated" == migrate_bundle(bundle, "copy").outcome
    assert not (bundle / COPY_FILE).exists()
    assert before == os.stat(bundle / "manifest.yaml")


def test_broken_file_of_the_copys_name_is_no_second_name(bundle: Path) -> None:
    """It is left to whoever put it there."""
    migrate_bundle(bundle, "replace")
    (bundle / COPY_FILE).write_bytes(b"rubbish")

    assert "nothing_to_do" == migrate_bundle(bundle, "copy").outcome
    assert b"rubbish" == (bundle / COPY_FILE).read_bytes()


def test_copy_that_lost_its_original_needs_nothing(bundle: Path) -> None:
    """It is in program order, and all there is."""
    migrate_bundle(bundle, "copy")
    (bundle / ORIGINAL).unlink()

    assert "nothing_to_do" == migrate_bundle(bundle, "replace").outcome


def test_swapped_bundle_whose_files_differ_is_left_alone(bundle: Path) -> None:
    """One of them is wrong, and nothing tells which."""
    migrate_bundle(bundle, "copy")
    (bundle / ORIGINAL).unlink()
    shutil.copy2(bundle / COPY_FILE, bundle / ORIGINAL)
    overwrite(bundle / ORIGINAL)

    assert "differs from" in migrate_bundle(bundle, "replace").reason
    assert (bundle / COPY_FILE).exists()


def test_file_system_without_second_names_takes_copies_only(bundle: Path) -> None:
    """The bundle stays as the copy left it."""

    def refuse(step: str) -> None:
        if step.startswith("link "):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    result = migrate_bundle(bundle, "replace", disk=Disk(refuse))

    assert "use the mode copy" in result.reason
    assert legacy_weights(WEIGHTS) == (bundle / ORIGINAL).read_bytes()
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))


def test_leftovers_of_dead_runs_are_removed(bundle: Path) -> None:
    """Only those of migrations: other temporary names are other people's."""
    for name in (f"{COPY_FILE}.tmp-migration-0a", "manifest.yaml.tmp-migration-0b", "x.tmp-1"):
        (bundle / name).write_text("")

    migrate_bundle(bundle, "copy")

    assert ["x.tmp-1"] == [name for name in files_of(bundle) if ".tmp-" in name]


def test_directory_that_another_user_owns_is_told(bundle: Path) -> None:
    """Before anything is tried; as root everything may be written, so a child gives that up."""
    script = (
        "import os, sys; from pathlib import Path; os.umask(0o022)\n"
        "from hloserve.bundle.migration import migrate_bundle, preview_migration\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "bundle = Path('.')\n"
        "print(preview_migration(bundle, 'copy').reason)\n"
        "print(migrate_bundle(bundle, 'copy').reason)\n"
    )
    bundle.chmod(0o555)
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=bundle, capture_output=True, text=True, check=True
    )
    bundle.chmod(0o755)

    preview, migrated = said.stdout.splitlines()
    assert "the directory cannot be written by this user" == preview
    assert ".cache: Permission denied" == migrated


def test_preview_changes_nothing(bundle: Path) -> None:
    """Not even a directory is made."""
    before = files_of(bundle)

    result = preview_migration(bundle, "replace")

    assert "planned" == result.outcome
    assert before == files_of(bundle)
    assert not (bundle / ".cache").exists()
    assert result.steps == migrate_bundle(bundle, "replace").steps
    assert "nothing_to_do" == preview_migration(bundle, "replace").outcome


def test_verification_proves_again(bundle: Path) -> None:
    """Where there are two files to compare."""
    assert "not migrated" in verify_migration(bundle).reason
    migrate_bundle(bundle, "copy")
    assert "verified" == verify_migration(bundle).outcome

    overwrite(bundle / COPY_FILE)
    assert "differs from what" in verify_migration(bundle).reason
    (bundle / ORIGINAL).write_bytes(legacy_weights({}))
    assert "stale" in verify_migration(bundle).reason
    migrate_bundle(bundle, "replace")
    assert "nothing_to_do" == verify_migration(bundle).outcome


_RACER = """
import sys
from pathlib import Path
from hloserve.bundle.migration import migrate_bundle
sys.stdin.readline()
result = migrate_bundle(Path(sys.argv[1]), sys.argv[2])
print(result.outcome, result.reason)
"""


@pytest.mark.parametrize("mode", MODES)
def test_processes_take_turns(bundle: Path, mode: Mode) -> None:
    """A bundle is migrated once, however many workers begin at the same time."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, str(bundle), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()

    outcomes = sorted(racer.communicate(timeout=50)[0].split()[0] for racer in racers)

    assert ["migrated", "nothing_to_do", "nothing_to_do"] == outcomes
    assert bits(WEIGHTS) == bits(read_bundle_weights(bundle))
    assert [] == [name for name in files_of(bundle) if ".tmp-" in name]
