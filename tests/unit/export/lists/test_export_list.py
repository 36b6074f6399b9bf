"""YAML lists of models."""

from pathlib import Path

import pytest

from hloserve.core.errors import ConfigProblem
from hloserve.export.lists.export_list import (
    Exclusion,
    ExportList,
    ListedModel,
    check_names,
    load_export_list,
)
from hloserve.export.lists.target import Target

WHOLE = """
source_dirs: [triton]
output_root: models
report_path: out/report.md
exclude:
  old: {reason: superseded, remove_existing: true}
handlers:
  - file: handlers/detector.py
    models: [detector, extra]
    options: {size: 640, weights_path: w/a.pt, cache_dir: /cache, path: kept}
targets:
  resnet:
    target: my.models:resnet
    options: {batch_sizes: [1, 8], hook_file: hook.py, assets: [labels.txt], tolerance: 0.001}
  small:
    target: small.py:build
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """What the list above names."""
    for model in ("old", "detector", "plain", ".hidden"):
        (tmp_path / "triton" / model).mkdir(parents=True)
    (tmp_path / "triton" / "README").touch()
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "detector.py").touch()
    (tmp_path / "small.py").touch()
    return tmp_path


def _load(directory: Path, text: str) -> ExportList:
    (directory / "models.yaml").write_text(text)
    return load_export_list(directory / "models.yaml")


def _problems(directory: Path, text: str) -> list[tuple[str, str]]:
    with pytest.raises(ConfigProblem) as caught:
        _load(directory, text)
    problem = caught.value
    return [(found.at, found.reason) for found in (problem, *problem.others)]


def test_whole_list_is_read(directory: Path) -> None:
    """Models come in the order of sources, handlers, targets; paths are relative to the file."""
    listed = _load(directory, WHOLE)

    options = {
        "size": 640,
        "weights_path": str(directory / "w" / "a.pt"),
        "cache_dir": "/cache",
        "path": "kept",
    }
    handler = directory / "handlers" / "detector.py"
    triton = directory / "triton"
    assert (directory / "models", directory / "out" / "report.md", directory) == (
        listed.output_root,
        listed.report_path,
        listed.base,
    )
    assert (
        ListedModel("detector", triton / "detector", handler, options=options),
        ListedModel("old", triton / "old", exclusion=Exclusion("superseded", True)),
        ListedModel("plain", triton / "plain"),
        ListedModel("extra", None, handler, options=options),
        ListedModel(
            "resnet",
            target=Target("my.models", "resnet"),
            options={
                "batch_sizes": (1, 8),
                "hook_file": directory / "hook.py",
                "assets": (directory / "labels.txt",),
                "tolerance": 0.001,
            },
        ),
        ListedModel("small", target=Target("small.py", "build")),
    ) == listed.models


def test_everything_that_is_wrong_is_told_at_once(directory: Path) -> None:
    """Every finding comes with its path in the file, all in one run."""
    (directory / "second" / "plain").mkdir(parents=True)
    text = """
source_dirs: [triton, absent, second, 3]
output_rot: models
report_path: ""
exclude:
  small: {reason: no}
  gone: {reason: "", remove_existing: maybe}
handlers:
  - {file: absent.py, models: []}
  - {file: handlers/detector.py, models: [detector, a/b, 7], option: {}}
  - {models: [detector], options: [1]}
targets:
  small: {target: small.py:build, options: {batch_sizes: [0], tolerance: 2, batch: 1}}
  plain: {target: plain}
  other: {target: other.py:build}
"""

    assert [
        ("$", "unknown key 'output_rot'; did you mean 'output_root'?"),
        ("$.source_dirs[1]", f"'{directory}/absent' cannot be read: No such file or directory"),
        ("$.source_dirs[2]", f"model 'plain' is in '{directory}/triton/plain' too; rename one of"
            " them"),
        ("$.source_dirs[3]", "must be a text that is not empty, got 3"),
        ("$.output_root", "is missing"),
        ("$.report_path", "must be a text that is not empty, got ''"),
        ("$.exclude.small.reason", "must be a text that is not empty, got False"),
        ("$.exclude.gone.reason", "must be a text that is not empty, got ''"),
        ("$.exclude.gone.remove_existing", "must be true or false, got 'maybe'"),
        ("$.handlers[0].file", f"there is no file '{directory}/absent.py'"),
        ("$.handlers[0].models", "names no model"),
        ("$.handlers[1]", "unknown key 'option'; did you mean 'options'?"),
        ("$.handlers[1].models[1]", "'a/b' cannot be the name of a bundle's directory"),
        ("$.handlers[1].models[2]", "must be a text that is not empty, got 7"),
        ("$.handlers[2].file", "must be a text that is not empty, got None"),
        ("$.handlers[2].options", "must be a mapping, got [1]"),
        ("$.handlers[2].models[0]", "model 'detector' has a handler already"),
        ("$.targets.small.options", "unknown key 'batch'; did you mean 'batch_sizes'?"),
        ("$.targets.small.options.batch_sizes", "must be a list of sizes, 'dynamic' or null, got"
            " [0]"),
        ("$.targets.small.options.tolerance", "must be a number above 0 and up to 1, got 2"),
        ("$.targets.plain.target", "must be package.module:function or path/to/file.py:function,"
            " got 'plain'"),
        ("$.targets.other.target", f"there is no file '{directory}/other.py'"),
        ("$.targets.plain", "model 'plain' has another origin; keep one"),
        ("$.exclude.small", "model 'small' is excluded and listed; keep one"),
    ] == _problems(directory, text)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "at", "told"),
    [
        ("[1]", "$", "must be a mapping, got [1]"),
        ("output_root: a\nreport_path: b\n", "$", "lists no models"),
        ("output_root: a\nreport_path: b\nhandlers: 3\n", "$.handlers", "must be a list, got 3"),
        ("output_root: a\nreport_path: b\n1: 2\ntargets: {a: {target: 'a:b'}}", "$", "quote it"),
        ("a: &x 1", "", "anchors"),
    ],
)
def test_list_that_is_none_is_refused(directory: Path, text: str, at: str, told: str) -> None:
    """What is no list of models at all is told in words, too."""
    found = _problems(directory, text)

    assert any(at == where and told in reason for where, reason in found), found


def test_unknown_names_are_refused_with_the_nearest(directory: Path) -> None:
    """A name that the list does not have is told with the one that may have been meant."""
    listed = _load(directory, WHOLE)
    check_names(listed, ["resnet"])

    with pytest.raises(ConfigProblem, match="'resnt'; did you mean 'resnet'") as caught:
        check_names(listed, ["resnt", "zzz"])

    assert 1 == len(caught.value.others)
