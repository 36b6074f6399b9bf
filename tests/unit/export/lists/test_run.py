"""The run over an export list."""

import textwrap
from pathlib import Path

import pytest
from support.export_targets import fake_export, write_target

from hloserve import load_manifest
from hloserve.export.lists.export_list import load_export_list
from hloserve.export.lists.run import ListRun, Outcome, RunListener, plan_run

BEGIN = "output_root: models\nreport_path: report.md\n"


def _run(directory: Path, text: str, *only: str, force: bool = False) -> list[Outcome]:
    (directory / "list.yaml").write_text(BEGIN + textwrap.dedent(text))
    listed = load_export_list(directory / "list.yaml")
    run = ListRun(listed, plan_run(listed, only, force=force), RunListener())
    run.run()
    return run.outcomes


def _told(outcomes: list[Outcome]) -> list[tuple[str, str, str]]:
    return [(outcome.model, outcome.verdict, outcome.reason) for outcome in outcomes]


def test_one_bad_model_never_stops_the_others(tmp_path: Path) -> None:
    """Whatever a model's code does, the models after it are exported."""
    write_target(tmp_path / "t.py", """
        def good(): return partial(fake_export)
        def raises(): raise ValueError("no weights")
        def leaves(): raise SystemExit(3)
        def wrong(): return 3
        def lies(): return lambda **options: 3
        def large(): return partial(fake_export, batch_sizes=[1, 8, 16])
        def never(): return partial(fake_export, largest=0, batch_sizes=[1, 2])
        def alone(): return partial(fake_export, largest=0, batch_sizes=[1])
    """)  # fmt: skip
    names = ("raises", "leaves", "wrong", "lies", "large", "never", "alone", "good")
    targets = "".join(f"  {name}: {{target: 't.py:{name}'}}\n" for name in names)

    outcomes = _run(tmp_path, f"targets:\n{targets}")

    place = f"{tmp_path}/t.py, line"
    expected = "expected functools.partial(export_pytorch, model, example_inputs, ...), or of"
    assert [
        ("raises", "failed", f"target t.py:raises raised ValueError: no weights ({place} 5)"),
        ("leaves", "failed", f"target t.py:leaves raised SystemExit: 3 ({place} 6)"),
        ("wrong", "failed", f"target t.py:wrong returned a value of type int, {expected} another"
            " exporter"),
        ("lies", "failed", "the export returned a value of type int, expected the exporter's"
            " report"),
        ("large", "partial", "only batch size 1: batch size 16 is too large"),
        ("never", "failed", "batch size 1 is too large"),
        ("alone", "failed", "batch size 1 is too large"),
        ("good", "success", ""),
    ] == _told(outcomes)  # fmt: skip
    assert ["good", "large"] == sorted(path.name for path in (tmp_path / "models").iterdir())
    assert [(1,), (1, 2)] == [o.batch_sizes for o in outcomes if o.batch_sizes]


def test_options_of_the_list_win_over_those_of_the_target(tmp_path: Path) -> None:
    """A target's own options are defaults for those of the list."""
    write_target(tmp_path / "t.py", "def f(): return partial(fake_export, batch_sizes=[1])\n")

    _run(tmp_path, "targets: {m: {target: 't.py:f', options: {batch_sizes: [4], description: d}}}")

    manifest = load_manifest(tmp_path / "models" / "m")
    assert ((4,), "d") == (manifest.compiled_batch_sizes, manifest.description)


def test_what_is_whole_is_skipped_and_what_is_broken_is_replaced(tmp_path: Path) -> None:
    """A bundle counts as present when its manifest, programs and weights are there."""
    write_target(tmp_path / "t.py", "def f(): return partial(fake_export, batch_sizes=None)\n")
    text = "targets: {whole: {target: 't.py:f'}, broken: {target: 't.py:f'}}"
    _run(tmp_path, text)
    (tmp_path / "models" / "broken" / "model.mlir").unlink()

    outcomes = _run(tmp_path, text)
    forced = _run(tmp_path, text, "whole", force=True)

    assert [
        ("whole", "skipped", "it is there already"),
        ("broken", "success", ""),
    ] == _told(outcomes)
    assert [("whole", "success", "")] == _told(forced)


def test_failed_replacement_leaves_the_old_bundle(tmp_path: Path) -> None:
    """What is there stays, until something better is there."""
    target = tmp_path / "t.py"
    write_target(target, "def f(): return partial(fake_export)\n")
    text = "targets: {m: {target: 't.py:f'}}"
    _run(tmp_path, text)
    write_target(target, "def f(): raise ValueError\n")

    assert "failed" == _run(tmp_path, text, "m", force=True)[0].verdict
    assert (1, 2) == load_manifest(tmp_path / "models" / "m").compiled_batch_sizes


def test_directory_that_is_no_bundle_is_never_replaced(tmp_path: Path) -> None:
    """Somebody's files under the name of a model make the export fail, and stay."""
    write_target(tmp_path / "t.py", "def f(): return partial(fake_export)\n")
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "thesis.txt").touch()

    (outcome,) = _run(tmp_path, "targets: {m: {target: 't.py:f'}}", "m", force=True)

    assert "failed" == outcome.verdict
    assert "exists already" in outcome.reason
    assert (tmp_path / "models" / "m" / "thesis.txt").exists()


def test_excluded_models_are_skipped_and_removed_when_asked(tmp_path: Path) -> None:
    """An exclusion has a reason, and may remove the bundle; nothing but a bundle is removed."""
    for name in ("kept", "gone", "files"):
        (tmp_path / "triton" / name).mkdir(parents=True)
    for name in ("kept", "gone"):
        fake_export(dir=tmp_path / "models" / name)
    (tmp_path / "models" / "files").mkdir()
    text = """
        source_dirs: [triton]
        exclude:
          kept: {reason: later}
          gone: {reason: superseded, remove_existing: true}
          files: {reason: no bundle, remove_existing: true}
    """

    outcomes = _run(tmp_path, text)

    assert [
        ("files", "skipped", "no bundle"),
        ("gone", "skipped", "superseded; its bundle was removed"),
        ("kept", "skipped", "later"),
    ] == _told(outcomes)
    assert ["files", "kept"] == sorted(path.name for path in (tmp_path / "models").iterdir())


def test_interruption_ends_the_run_and_keeps_what_was_done(tmp_path: Path) -> None:
    """Ctrl-C passes through; the bundles before it are whole, and there is nothing of the next."""
    write_target(tmp_path / "t.py", "def f(): return partial(fake_export)\n")
    text = (
        "targets: {a: {target: 't.py:f'}, b: {target: 't.py:f', options: {description: interrupt}},"
        " c: {target: 't.py:f'}}"
    )
    (tmp_path / "list.yaml").write_text(BEGIN + text)
    listed = load_export_list(tmp_path / "list.yaml")
    run = ListRun(listed, plan_run(listed), RunListener())

    with pytest.raises(KeyboardInterrupt):
        run.run()

    assert [("a", "success", "")] == _told(run.outcomes)
    assert ["a"] == [path.name for path in (tmp_path / "models").iterdir()]


def test_listener_hears_models_steps_and_outcomes(tmp_path: Path) -> None:
    """Progress is told per model and step."""
    heard: list[object] = []

    class Listener(RunListener):
        def model_started(self, model: str, number: int, models: int) -> None:
            heard.append((model, number, models))

        def step(self, what: str, done: int, total: int) -> None:
            heard.append((what, done, total))

        def model_ended(self, outcome: Outcome) -> None:
            heard.append(outcome.verdict)

    write_target(tmp_path / "t.py", "def f(): return partial(fake_export)\n")
    (tmp_path / "list.yaml").write_text(BEGIN + "targets: {a: {target: 't.py:f'}}")
    listed = load_export_list(tmp_path / "list.yaml")

    ListRun(listed, plan_run(listed), Listener()).run()

    assert [("a", 1, 1), ("tracing", 0, 2), ("writing", 1, 2), "success"] == heard
