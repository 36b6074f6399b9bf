"""Python targets: the function, named in text, that returns what to export.

What lives here: finding that function, calling it, and checking what it returns. What does not:
the options of the export, which the caller adds (`hloserve.cli.export`,
`hloserve.export.lists.run`). A target is the user's own code, and runs with the user's rights. One
thread.

Rule: whatever the user's code raises becomes one `ExportProblem` that names the place in that code;
the cause is chained. Interruptions and our own errors pass through.
"""

import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, TypeAlias

from typing_extensions import override

from hloserve.core.errors import ExportProblem, HloserveError
from hloserve.export.lists.error_text import short_error

__all__ = [
    "DeferredExport",
    "Target",
    "TargetFault",
    "checked_export",
    "forget_files",
    "import_target",
    "importing_from",
    "load_file",
    "load_target",
    "parse_target",
    "translating_faults",
]

DeferredExport: TypeAlias = Callable[..., Any]
"""An exporter with everything but the options of the caller: ``partial(export_jax, f, inputs)``."""

_EXPECTED = "functools.partial(export_pytorch, model, example_inputs, ...), or of another exporter"
_FILE_MODULE = "hloserve_target_"
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class TargetFault(ValueError):
    """Text that names no target; the message says what it takes."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a function is.

    Attributes:
        module: a dotted module name, or the path of a file that ends in ``.py``.
        function: the function's name in there, with dots when it is inside of something.
    """

    module: str
    function: str

    @property
    def is_file(self) -> bool:
        """True when `module` is the path of a file."""
        return self.module.endswith(".py")

    @property
    def name(self) -> str:
        """What a model is called unless its author says otherwise."""
        return self.function.rpartition(".")[2]


def parse_target(text: str) -> Target:
    """Read ``package.module:function`` or ``path/to/file.py:function``.

    Raises:
        TargetFault: it is neither.

    Example:
        >>> parse_target("models/resnet.py:build")
        Target(module='models/resnet.py', function='build')
    """
    module, colon, function = text.rpartition(":")
    is_place = module.endswith(".py") or _DOTTED.fullmatch(module)
    if not (colon and is_place and _DOTTED.fullmatch(function)):
        raise TargetFault("must be package.module:function or path/to/file.py:function")
    return Target(module, function)


def load_target(target: Target, base: Path, model: str) -> DeferredExport:
    """Import the target's module, call its function and check what it returns.

    Args:
        target: where the function is.
        base: what a file's path is relative to, and where modules are looked for first.
        model: the name of the bundle, for messages.

    Raises:
        ExportProblem: there is no such module or function, its code raises, or it returns something
            else than an export.
    """
    shown = f"{target.module}:{target.function}"
    module = import_target(target, base, model)
    function = _find_function(module, target, model)
    with translating_faults(model, f"target {shown}"):
        returned = function()
    return checked_export(returned, model, f"target {shown}")


def checked_export(returned: object, model: str, who: str) -> DeferredExport:
    """Accept what a target returned, if it can be called with the options of an exporter.

    Raises:
        ExportProblem: it is something else. Models can be called too, so only functions will do.
    """
    if isinstance(returned, functools.partial | types.FunctionType | types.MethodType):
        return returned
    article = "None" if returned is None else f"a value of type {type(returned).__qualname__}"
    raise ExportProblem(model, f"{who} returned {article}, expected {_EXPECTED}")


def load_file(path: Path, model: str) -> types.ModuleType:
    """Run a Python file as a module of its own.

    Raises:
        ExportProblem: there is no such file, or its code raises.
    """
    if not path.is_file():
        raise ExportProblem(model, f"there is no file {str(path)!r}")
    name = _FILE_MODULE + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ExportProblem(model, f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by its name
    with translating_faults(model, f"file {str(path)!r}"):
        spec.loader.exec_module(module)
    return module


def forget_files() -> None:
    """Let go of the modules of `load_file`, and so of the models that their globals hold."""
    for name in [name for name in sys.modules if name.startswith(_FILE_MODULE)]:
        del sys.modules[name]


def import_target(target: Target, base: Path, model: str) -> types.ModuleType:
    """Run the file of a target, or import its module; one in `base` is preferred.

    Raises:
        ExportProblem: there is no such file or module, or its code raises.
    """
    if target.is_file:
        return load_file(base / target.module, model)
    finder = _NeighbourFinder([base], only=target.module.partition(".")[0])
    sys.meta_path.insert(0, finder)
    try:
        with translating_faults(model, f"importing {target.module}"):
            return importlib.import_module(target.module)
    except ExportProblem as problem:
        missing = getattr(problem.__cause__, "name", None)
        is_absent = isinstance(problem.__cause__, ModuleNotFoundError) and missing is not None
        if not is_absent or not f"{target.module}.".startswith(f"{missing}."):
            raise  # the module is there, and what it needs is not
        raise ExportProblem(
            model, f"there is no module {missing!r}, neither installed nor in {str(base)!r}"
        ) from problem
    finally:
        sys.meta_path.remove(finder)


def _find_function(module: types.ModuleType, target: Target, model: str) -> Callable[[], object]:
    found: Any = module
    for part in target.function.split("."):
        if not hasattr(found, part):
            raise ExportProblem(model, _no_function(found, part, target))
        found = getattr(found, part)
    if not callable(found):
        kind = type(found).__qualname__
        raise ExportProblem(
            model,
            f"{target.function!r} in {target.module} is of type {kind}, expected a function",
        )
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ExportProblem(
            model,
            f"{target.function!r} in {target.module} is called without arguments: {error}",
        ) from error
    except ValueError:  # a builtin without a signature; calling it will tell
        pass
    return found  # type: ignore[no-any-return]  # callable, and that is all that can be known


def _no_function(found: object, part: str, target: Target) -> str:
    names = [name for name in vars(found) if not name.startswith("_")]
    own = getattr(found, "__name__", None)
    functions = [name for name in names if getattr(vars(found)[name], "__module__", None) == own]
    close = difflib.get_close_matches(part, names, n=1)
    listed = ", ".join(functions[:10]) or "no function of its own"
    hint = f"did you mean {close[0]!r}?" if close else f"it has {listed}"
    return f"{target.module} has no {part!r}; {hint}"


@contextmanager
def importing_from(*directories: Path) -> Iterator[None]:
    """Let the block import modules that lie in these directories, where no package has the name.

    What is installed comes first, and a directory without Python files is no module: one called
    ``triton`` beside a list is not the library that torch looks for.
    """
    finder = _NeighbourFinder(directories)
    sys.meta_path.append(finder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _NeighbourFinder(MetaPathFinder):
    """Finds modules in directories.

    Args:
        directories: to look in, in this order.
        only: the one name to answer to; all when empty.
    """

    def __init__(self, directories: Iterable[Path], only: str = "") -> None:
        self._path = [str(directory) for directory in directories]
        self._only = only

    @override
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        if path is not None or self._only not in ("", fullname):
            return None  # parts of packages are found in these
        spec = PathFinder.find_spec(fullname, self._path)
        if spec is None or spec.loader is not None or self._only:
            return spec
        places = spec.submodule_search_locations or ()
        return spec if any(any(Path(place).glob("*.py")) for place in places) else None


@contextmanager
def translating_faults(model: str, who: str) -> Iterator[None]:
    """Turn what the user's code raises in the block into `ExportProblem`.

    An error of the exporter itself passes as it is.
    """
    try:
        yield
    except HloserveError:
        raise
    except (Exception, SystemExit) as error:
        said = "; ".join(short_error(error).splitlines())
        raise ExportProblem(model, f"{who} raised {said}") from error
