"""What is recorded of the code that made a bundle."""

import os
import subprocess
from pathlib import Path

import pytest

import hloserve
from hloserve.bundle import IOSpec, write_bundle
from hloserve.bundle.manifest import load_manifest
from hloserve.export import provenance
from hloserve.export.provenance import collect_provenance


def git(directory: Path, *arguments: str) -> str:
    """Run git as somebody with a name."""
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit, with text and binary files."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=trunk")
    (root / "train.py").write_text("lr = 1\n")
    (root / "table.bin").write_bytes(bytes(range(256)))
    (root / "sub").mkdir()
    (root / "sub" / "deep.py").write_text("x = 1\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "one")
    return root


def test_a_clean_repository_is_commit_tree_and_branch(repository: Path) -> None:
    """A bundle tells which commit it was made from."""
    found = collect_provenance(repository / "sub")

    assert found["git_commit"] == git(repository, "rev-parse", "HEAD")
    assert found["git_tree_sha1"] == git(repository, "rev-parse", "HEAD^{tree}")
    assert found["git_branch"] == "trunk"
    assert found["git_dirty"] is False
    assert found["hloserve_version"] == hloserve.__version__
    assert "git_diff" not in found
    assert "repo_remote" not in found
    assert str(found["exported_at"]).endswith("Z")


def test_commit_and_patch_rebuild_the_tracked_files(repository: Path, tmp_path: Path) -> None:
    """The patch of a bundle applies to a fresh checkout, binary files and endings included."""
    (repository / "train.py").write_bytes(b"lr = 2\r\n\xff no newline at the end")
    (repository / "table.bin").write_bytes(b"\0\1\2" * 999)
    (repository / "sub" / "deep.py").unlink()
    (repository / "staged.py").write_text("new\n")
    git(repository, "add", "staged.py")
    git(repository, "config", "diff.noprefix", "true")
    git(repository, "config", "color.diff", "always")

    bundle = write_bundle(
        tmp_path / "m",
        "m",
        [IOSpec("x", "f32", (1,))],
        [IOSpec("y", "f32", (1,))],
        {0: "module {}"},
        {},
        provenance=collect_provenance(repository / "sub"),
    )

    recorded = load_manifest(bundle).provenance
    assert recorded["git_dirty"] is True
    assert recorded["git_diff_file"] == "working_tree.patch"
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "--quiet", str(repository), str(copy))
    git(copy, "checkout", "--quiet", str(recorded["git_commit"]))
    git(copy, "apply", "--binary", str(bundle / "working_tree.patch"))
    for name in ("train.py", "table.bin", "staged.py"):
        assert (copy / name).read_bytes() == (repository / name).read_bytes()
    assert not (copy / "sub" / "deep.py").exists()


def test_untracked_files_are_counted_and_not_kept(repository: Path) -> None:
    """They may be data or secrets; that they are there is worth knowing."""
    (repository / "secret.env").write_text("password\n")
    found = collect_provenance(repository)

    assert found["git_untracked_files"] == 1
    assert found["git_dirty"] is False
    assert "git_diff" not in found


@pytest.mark.parametrize(
    ("address", "recorded"),
    [
        ("https://me:s3cret@example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://token@example.org/a.git?private=1", "https://example.org/a.git"),
        ("https://example.org/a@b.git", "https://example.org/a@b.git"),
        ("ssh://git@example.org:22/a.git", "ssh://git@example.org:22/a.git"),
        ("ssh://git:pw@example.org/a.git", "ssh://example.org/a.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("/srv/git/a.git", "/srv/git/a.git"),
    ],
)
def test_the_remote_is_recorded_without_secrets(
    repository: Path, address: str, recorded: str
) -> None:
    """User and password of an address do not end up in a bundle that is passed on."""
    git(repository, "remote", "add", "origin", address)

    assert collect_provenance(repository)["repo_remote"] == recorded


def test_outside_of_a_repository_there_is_one_warning(tmp_path: Path) -> None:
    """An export from a plain directory is not an error."""
    with pytest.warns(UserWarning, match="not a git repository") as warned:
        found = collect_provenance(tmp_path, {"run": 7})

    assert len(warned) == 1
    assert found["run"] == 7
    assert "git_commit" not in found


def test_a_directory_that_is_missing_is_a_warning(tmp_path: Path) -> None:
    """Nothing about provenance stops an export."""
    with pytest.warns(UserWarning, match="nothing is recorded of git"):
        collect_provenance(tmp_path / "none")


def test_a_repository_without_a_commit_is_a_warning(tmp_path: Path) -> None:
    """There is no commit to name."""
    git(tmp_path, "init", "--quiet")
    with pytest.warns(UserWarning, match="has no commit yet"):
        found = collect_provenance(tmp_path)

    assert "git_commit" not in found


def test_a_missing_git_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often have no git."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(UserWarning, match="git is not installed"):
        collect_provenance(tmp_path)


def test_what_the_author_says_wins(repository: Path) -> None:
    """An entry of `extra` replaces the one that was collected."""
    found = collect_provenance(repository, {"git_branch": "release", "exported_at": "then"})

    assert found["git_branch"] == "release"
    assert found["exported_at"] == "then"


def test_a_huge_diff_is_left_out_with_a_warning(repository: Path) -> None:
    """Above 20 MiB the patch would be larger than many models."""
    noise = os.urandom(provenance.MAX_DIFF_BYTES)
    (repository / "table.bin").write_bytes(noise)
    with pytest.warns(UserWarning, match="commit them to make the export reproducible"):
        found = collect_provenance(repository)

    assert found["git_dirty"] is True
    assert "git_diff" not in found


def test_variables_of_a_surrounding_git_are_ignored(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside of a git hook the environment points at another repository."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))

    found = collect_provenance(repository)

    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert found["git_commit"] == git(repository, "rev-parse", "HEAD")
