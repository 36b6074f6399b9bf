"""Running `model.py`: what it may do, and what an author reads when it goes wrong."""

import os
import sys
from pathlib import Path

import pytest

from hloserve.core.errors import HookProblem
from hloserve.hooks.tensor_list import TensorList
from hloserve.models.hook_file import author_line, load_hooks, load_meta_hook

HEAD = "from hloserve import register_model, register_meta_model\n"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """An empty bundle directory."""
    path = tmp_path / "my-model"
    path.mkdir()
    return path


def _write(bundle: Path, code: str) -> None:
    (bundle / "model.py").write_text(HEAD + code)


def _finding(bundle: Path) -> str:
    with pytest.raises(HookProblem) as raised:
        load_hooks(bundle, "my-model")
    (finding,) = raised.value.findings
    return finding


def test_bundle_without_hook_file_has_no_hooks(bundle: Path) -> None:
    """Hooks are optional."""
    assert load_hooks(bundle, "my-model") is None


def test_file_that_does_not_end_fails_its_bundle(bundle: Path) -> None:
    """So that it holds up nobody else; the setting is named. One that ends is taken as ever."""
    _write(bundle, "import threading\nthreading.Event().wait(30)\nregister_model('x')\n")

    with pytest.raises(HookProblem, match=r"has not ended after 0\.05 s.*load_timeout_seconds"):
        load_hooks(bundle, "my-model", 0.05)

    _write(bundle, "register_model('x')\n")
    assert load_hooks(bundle, "my-model", 30) is not None
    _write(bundle, "1 / 0\n")
    with pytest.raises(HookProblem, match="ZeroDivisionError"):
        load_hooks(bundle, "my-model", 30)


def test_hooks_are_taken(bundle: Path) -> None:
    """One registration, either side may be missing."""
    _write(bundle, "def pre(inputs):\n    return 7\nregister_model('x', preprocess=pre)\n")
    hooks = load_hooks(bundle, "my-model")
    assert hooks is not None
    assert hooks.preprocess is not None
    assert hooks.preprocess(TensorList()) == 7
    assert hooks.postprocess is None


def test_file_finds_its_assets_and_modules(bundle: Path) -> None:
    """`__file__` is set, and the bundle's own modules are imported relatively, never mixed up."""
    (bundle / "labels.txt").write_text("cat")
    (bundle / "words.py").write_text("from dataclasses import dataclass\nWORD = 'a'\n")
    _write(
        bundle,
        "from dataclasses import dataclass\nfrom pathlib import Path\nfrom . import words\n"
        "@dataclass\nclass State:\n    n: int\n"
        "label = (Path(__file__).parent / 'labels.txt').read_text()\n"
        "register_model(preprocess=lambda inputs: (label, words.WORD, State(1).n))\n",
    )
    first = load_hooks(bundle, "my-model")
    (bundle / "words.py").write_text("WORD = 'b'\n")
    second = load_hooks(bundle, "my-model")
    assert first is not None
    assert second is not None
    assert first.preprocess is not None
    assert second.preprocess is not None
    assert first.preprocess(TensorList()) == ("cat", "a", 1)
    assert second.preprocess(TensorList()) == ("cat", "b", 1)


def test_nothing_is_left_behind(bundle: Path) -> None:
    """`sys.path` is as before, the bundle holds no byte code, and closing forgets the modules."""
    (bundle / "words.py").write_text("")
    _write(
        bundle, "import sys\nsys.path.insert(0, '/tmp')\nfrom . import words\nregister_model()\n"
    )
    path, modules = list(sys.path), set(sys.modules)
    hooks = load_hooks(bundle, "my-model")
    assert hooks is not None
    assert sys.path == path
    assert sorted(entry.name for entry in bundle.iterdir()) == ["model.py", "words.py"]
    hooks.close()
    assert {name for name in set(sys.modules) - modules if "my_model" in name} == set()


def test_failed_load_forgets_the_module(bundle: Path) -> None:
    """A broken file leaves no half-made module."""
    _write(bundle, "raise ValueError('no')\n")
    before = set(sys.modules)
    _finding(bundle)
    assert not [name for name in set(sys.modules) - before if "my_model" in name]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("pass\n", "it called neither register_model nor register_meta_model"),
        ("register_model()\nregister_model()\n", "it called register_model 2 times"),
        (
            "register_meta_model(run=print)\n",
            "model.py must call register_model exactly once, because the manifest says kind: model;"
            " it called register_meta_model once",
        ),
        ("def f(:\n", "model.py:2: the hook file failed: SyntaxError: "),
        ("\n\n1 / 0\n", "model.py:4: the hook file failed: ZeroDivisionError: division by zero"),
        ("import no_such_library\n", "install it in the server's environment"),
        ("import sys\nsys.exit(3)\n", "model.py:3: the hook file failed: SystemExit: 3"),
        ("register_model(preprocess=3)\n", "preprocess is int, not a function"),
        ("open('nowhere/vocab.txt')\n", "FileNotFoundError"),
    ],
)
def test_broken_hook_file_is_explained(bundle: Path, code: str, says: str) -> None:
    """Each fault names the author's line and what is expected."""
    _write(bundle, code)
    assert says in _finding(bundle)


def test_plain_import_of_own_module_names_the_way(bundle: Path) -> None:
    """The bundle is not on `sys.path`; the message says how to import from it."""
    (bundle / "words.py").write_text("")
    _write(bundle, "import words\nregister_model()\n")
    assert "it lies in the bundle: write `from . import words`" in _finding(bundle)


def test_error_in_own_module_names_that_file(bundle: Path) -> None:
    """The innermost line that the author wrote."""
    (bundle / "words.py").write_text("\nint('x')\n")
    _write(bundle, "from . import words\n")
    assert _finding(bundle).startswith("words.py:2: ")


def test_julia_hooks_must_be_ported(bundle: Path) -> None:
    """Serving without the hooks would serve something else in silence."""
    (bundle / "model.jl").write_text("register_model(...)")
    assert "port them to model.py" in _finding(bundle)
    _write(bundle, "register_model()\n")
    assert load_hooks(bundle, "my-model") is not None


def test_meta_hook_is_taken(bundle: Path) -> None:
    """A meta bundle registers its run function."""
    _write(bundle, "register_meta_model(run=max)\n")
    assert load_meta_hook(bundle, "my-model").run is max


def test_meta_bundle_needs_its_own_kind_of_hook(bundle: Path) -> None:
    """Missing file and wrong registration are told apart."""
    with pytest.raises(HookProblem, match=r"model\.py is missing"):
        load_meta_hook(bundle, "my-model")
    _write(bundle, "register_model()\n")
    with pytest.raises(HookProblem, match="must call register_meta_model exactly once"):
        load_meta_hook(bundle, "my-model")


def test_author_line_is_empty_outside_of_the_bundle(bundle: Path) -> None:
    """Errors that no file of the bundle took part in have no line."""
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("x")
    assert author_line(bundle, raised.value) == ""


@pytest.mark.parametrize(
    "error", ["KeyboardInterrupt", "SystemExit", "GeneratorExit", "BaseException"]
)
def test_hook_file_may_raise_what_ends_threads(tmp_path: Path, error: str) -> None:
    """Whatever an author's file raises is that bundle's problem, and no thread's."""
    bundle = tmp_path / "m"
    bundle.mkdir()
    (bundle / "model.py").write_text(f"raise {error}('b')\n")

    with pytest.raises(HookProblem, match=rf"model\.py.*{error}"):
        load_hooks(bundle, "m")


@pytest.mark.parametrize("kind", ["fifo", "directory", "dangling", "loop"])
def test_hook_file_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path, kind: str) -> None:
    """A model must not serve without the hooks that its author put there."""
    bundle = tmp_path / "m"
    bundle.mkdir()
    hook = bundle / "model.py"
    match kind:
        case "fifo":
            os.mkfifo(hook)
        case "directory":
            hook.mkdir()
        case "dangling":
            hook.symlink_to("nowhere")
        case _:
            hook.symlink_to("model.py")

    with pytest.raises(HookProblem, match=r"model\.py is there but"):
        load_hooks(bundle, "m")
