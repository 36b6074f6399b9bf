"""Python targets."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.export_targets import write_target

from hloserve.core.errors import ExportProblem
from hloserve.export.lists.target import (
    Target,
    TargetFault,
    forget_files,
    importing_from,
    load_target,
    parse_target,
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory from which modules can be imported."""
    with importing_from(tmp_path):
        yield tmp_path


def _problem(text: str, base: Path) -> str:
    with pytest.raises(ExportProblem) as caught:
        load_target(parse_target(text), base, "m")
    return "; ".join(caught.value.findings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b:c", Target("a.b", "c")),
        ("a/b.py:c.d", Target("a/b.py", "c.d")),
        ("/a b/c-d.py:e", Target("/a b/c-d.py", "e")),
        ("modèle:exporté", Target("modèle", "exporté")),
    ],
)
def test_target_is_a_module_or_a_file_and_a_function(text: str, expected: Target) -> None:
    """A target names a module or a file, and a function in it."""
    assert expected == parse_target(text)
    assert expected.is_file == ("/" in text)


@pytest.mark.parametrize("text", ["", ":", "a", "a:", ":b", "a:b:c", "a-b:c", "a.txt/x:c", "a:1b"])
def test_other_text_is_no_target(text: str) -> None:
    """What is not a target is refused with both forms."""
    with pytest.raises(TargetFault, match=r"package.module:function or path/to/file.py:function"):
        parse_target(text)


def test_function_of_a_file_is_called(directory: Path) -> None:
    """A file's function is called without arguments, and its export comes back."""
    write_target(directory / "sub" / "some file.py", """
        class Models:
            @staticmethod
            def small():
                return partial(fake_export, 4)
    """)  # fmt: skip

    export = load_target(parse_target("sub/some file.py:Models.small"), directory, "m")

    assert (4,) == export.args  # type: ignore[attr-defined]  # a partial


def test_function_of_a_module_is_called(directory: Path) -> None:
    """Modules of packages are imported; closures are exports as well."""
    write_target(directory / "package_of_target" / "models.py", """
        def build(size=3):
            return lambda **options: fake_export(size, **options)
    """)  # fmt: skip

    assert callable(load_target(parse_target("package_of_target.models:build"), directory, "m"))


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("absent.py:f", "there is no file"),
        ("no_such_module_of_mine:f", "there is no module 'no_such_module_of_mine', neither"),
        ("json.no_such_part:f", "there is no module 'json.no_such_part'"),
        ("t.py:bild", "t.py has no 'bild'; did you mean 'build'?"),
        ("t.py:zzz", "t.py has no 'zzz'; it has build, raises,"),
        ("t.py:number", "'number' in t.py is of type int, expected a function"),
        ("t.py:needs", "called without arguments: missing a required argument: 'path'"),
        ("t.py:raises", "target t.py:raises raised ValueError: no weights ("),
        ("t.py:leaves", "target t.py:leaves raised SystemExit: 3"),
        ("t.py:nothing", "returned None, expected functools.partial(export_pytorch, model"),
        ("t.py:returns_number", "returned a value of type int, expected"),
        ("t.py:model", "returned a value of type Model, expected"),
        ("syntax.py:f", "SyntaxError: "),
        ("imports.py:f", "raised ModuleNotFoundError: No module named 'missing_library'"),
        ("imports:f", "importing imports raised ModuleNotFoundError: No module named 'missing_li"),
    ],
)
def test_fault_of_a_target_is_told_with_its_place(directory: Path, target: str, told: str) -> None:
    """Whatever is wrong with a target is one problem that names the place."""
    write_target(directory / "t.py", """
        def build(): return partial(fake_export)
        def raises(): raise ValueError("no weights")
        def leaves(): raise SystemExit(3)
        def needs(path): ...
        def nothing(): ...
        def returns_number(): return 3
        class Model:
            def __call__(self): return 3
        def model(): return Model()
        number = 3
    """)  # fmt: skip
    write_target(directory / "syntax.py", "def f(:\n")
    write_target(directory / "imports.py", "import missing_library\n")

    assert told in _problem(target, directory)


def test_place_is_in_the_code_of_the_user(directory: Path) -> None:
    """The line that is named is the user's, not that of the library which raised."""
    write_target(directory / "deep.py", """
        import json
        def build():
            return json.loads("{")
    """)  # fmt: skip

    assert "deep.py, line 6)" in _problem("deep.py:build", directory)


def test_modules_of_files_can_be_forgotten(directory: Path) -> None:
    """What a file's globals hold does not outlive the export."""
    write_target(
        directory / "large.py", "WEIGHTS = [1]\ndef build(): return partial(fake_export)\n"
    )
    load_target(parse_target("large.py:build"), directory, "m")

    assert "hloserve_target_large" in sys.modules
    forget_files()
    assert "hloserve_target_large" not in sys.modules


def test_interruption_is_no_fault(directory: Path) -> None:
    """Ctrl-C in the code of a target is not turned into a problem."""
    write_target(directory / "slow.py", "def build(): raise KeyboardInterrupt\n")

    with pytest.raises(KeyboardInterrupt):
        load_target(parse_target("slow.py:build"), directory, "m")


def test_directory_beside_a_target_is_no_module(directory: Path) -> None:
    """A directory of models called like a library that others look for does not stand in for it."""
    (directory / "library_of_nobody" / "net" / "1").mkdir(parents=True)
    write_target(directory / "asks.py", """
        try:
            import library_of_nobody as found
        except ModuleNotFoundError:
            found = None
        def build(): return partial(fake_export, found)
    """)  # fmt: skip

    export = load_target(parse_target("asks.py:build"), directory, "m")

    assert export.args == (None,)  # type: ignore[attr-defined]  # a partial


@pytest.mark.parametrize("name", ["packaging", "yaml", "flax"])
def test_installed_package_comes_before_a_neighbour(directory: Path, name: str) -> None:
    """A file called like a library hides it neither from the target nor from other libraries."""
    write_target(directory / f"{name}.py", "raise AssertionError('this is not the library')\n")
    write_target(
        directory / "uses.py",
        f"""
        import importlib, sys
        saved = {{n: sys.modules.pop(n) for n in [*sys.modules] if n.split(".")[0] == {name!r}}}
        import {name}
        found = {name}.__spec__.origin
        sys.modules.update(saved)
        def build(): return partial(fake_export, found)
    """,
    )

    export = load_target(parse_target("uses.py:build"), directory, "m")

    assert "site-packages" in export.args[0]  # type: ignore[attr-defined]  # a partial


def test_target_imports_its_neighbours(directory: Path) -> None:
    """Files, packages, and directories of Python files beside a target are modules."""
    write_target(directory / "neighbour_of_target.py", "size = 1\n")
    write_target(directory / "plain_of_target" / "part.py", "size = 2\n")
    write_target(directory / "whole_of_target" / "__init__.py", "size = 3\n")
    write_target(directory / "n.py", """
        import neighbour_of_target, plain_of_target.part, whole_of_target
        sizes = [neighbour_of_target.size, plain_of_target.part.size, whole_of_target.size]
        def build(): return partial(fake_export, sizes)
    """)  # fmt: skip

    export = load_target(parse_target("n.py:build"), directory, "m")

    assert export.args == ([1, 2, 3],)  # type: ignore[attr-defined]  # a partial


def test_module_of_a_target_comes_before_what_is_installed(directory: Path) -> None:
    """The module that was asked for is the one in the directory, in plain directories too."""
    source = "def build(): return partial(fake_export, 5)\n"
    write_target(directory / "mkdocs" / "inner" / "nets.py", source)

    export = load_target(parse_target("mkdocs.inner.nets:build"), directory, "m")

    assert export.args == (5,)  # type: ignore[attr-defined]  # a partial
    for name in [name for name in sys.modules if name.partition(".")[0] == "mkdocs"]:
        del sys.modules[name]


def test_imports_are_as_before_after_the_block(tmp_path: Path) -> None:
    """Nothing of it stays in the process's search paths."""
    before = [*sys.path], [*sys.meta_path]

    with importing_from(tmp_path):
        pass

    assert before == (sys.path, sys.meta_path)
