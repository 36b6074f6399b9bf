"""Running a bundle's `model.py` and taking what it registers.

What lives here: executing the file as a module of its own, and naming what is wrong with it. What
does not: the registration functions (`hloserve.hooks.registration`) and calling hooks
(`hloserve.models.hook_results`). Called by the loader, on its thread.

Rules.
1. The file runs as a package of a unique name whose directory is the bundle: `from . import words`
   and `from .words import load` reach the bundle's own modules, and two bundles, or two loads of
   one, never share them.
2. `sys.path` is afterwards what it was before.
3. Nothing is written into the bundle.
"""

import importlib.util
import itertools
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hloserve.bundle.layout import FOREIGN_HOOK_FILE, HOOK_FILE
from hloserve.bundle.manifest import Manifest
from hloserve.core.causes import causes
from hloserve.core.errors import HookProblem
from hloserve.core.tensors import TensorSpec
from hloserve.hooks.registration import Hook, Registrations, collect_registrations, is_async

__all__ = ["Hooks", "author_frames", "author_line", "load_hooks", "load_meta_hook", "missing_hooks"]

_serial = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of one load of a bundle.

    Attributes:
        preprocess: client inputs to executable inputs; None passes them through.
        postprocess: executable outputs to client outputs; None passes them through.
        run: client inputs to client outputs, of a meta model; None for others.
        module: name of the module in `sys.modules`; `close` takes it out.
        directory: the bundle's directory when the file was run.
        is_async: whether what `run` returns is awaited.
    """

    preprocess: Hook | None
    postprocess: Hook | None
    module: str
    directory: Path
    run: Callable[..., Any] | None = None
    is_async: bool = False

    def move(self, bundle: Path) -> None:
        """Follow a bundle that was renamed: the files beside the hook file are now there."""
        module = sys.modules.get(self.module)
        if module is not None:
            module.__file__ = str(bundle / HOOK_FILE)
            module.__path__ = [str(bundle)]

    def close(self) -> None:
        """Let go of the module. Hooks that still run go on."""
        _forget(self.module)


def load_hooks(bundle: Path, name: str, timeout_s: float | None = None) -> Hooks | None:
    """Run the hook file of a regular bundle.

    Args:
        bundle: its directory.
        name: the model's.
        timeout_s: how long it may run; None for as long as it likes. The thread of one that does
            not end is left to itself, since nothing can end it.

    Returns:
        None when the bundle has no hook file.

    Raises:
        HookProblem: it fails to run, or does not register exactly one model.
    """
    if not _has_hook_file(bundle):
        return None
    module, registered = _run_within(timeout_s, bundle, name)
    if len(registered.models) == 1 and not registered.metas:
        (only,) = registered.models
        return Hooks(only.preprocess, only.postprocess, module, bundle)
    _forget(module)
    raise HookProblem(name, _wrong_registration("register_model", "model", registered))


def load_meta_hook(bundle: Path, name: str, timeout_s: float | None = None) -> Hooks:
    """Run the hook file of a meta bundle; arguments as for `load_hooks`.

    Raises:
        HookProblem: there is none, it fails to run, or does not register exactly one meta model.
    """
    if not _has_hook_file(bundle):
        raise HookProblem(name, f"{HOOK_FILE} is missing; a meta model is its run function")
    module, registered = _run_within(timeout_s, bundle, name)
    if len(registered.metas) == 1 and not registered.models:
        run = registered.metas[0].run
        return Hooks(None, None, module, bundle, run, is_async(run))
    _forget(module)
    raise HookProblem(name, _wrong_registration("register_meta_model", "meta", registered))


def missing_hooks(manifest: Manifest, hooks: Hooks | None) -> list[str]:
    """Client specs that differ from the program's need a hook that bridges the difference.

    Args:
        manifest: of a regular model.
        hooks: what its hook file registered; None without one.

    Returns:
        A sentence per missing hook.
    """
    sides = (
        ("client_inputs", "preprocess", manifest.client_inputs, manifest.executable_inputs),
        ("client_outputs", "postprocess", manifest.client_outputs, manifest.executable_outputs),
    )
    return [
        f"{section} differ from the program's, but model.py registers no {role}; register one, or"
        f" remove {section}"
        for section, role, client, executable in sides
        if client is not None
        and _plain(client) != _plain(executable)
        and (hooks is None or getattr(hooks, role) is None)
    ]


def _plain(specs: Sequence[TensorSpec]) -> dict[str, object]:
    return {spec.name: (spec.dtype, spec.shape) for spec in specs}


def author_line(bundle: Path, error: BaseException) -> str:
    """Where in the bundle's own files an error came up: ``model.py:12``; empty when nowhere."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).parent == bundle:
        return f"{Path(error.filename).name}:{error.lineno}"
    root = str(bundle) + "/"
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(root):
            place = f"{frame.filename.removeprefix(root)}:{frame.lineno}"
    return place


def author_frames(bundle: Path, error: BaseException) -> list[str]:
    """The lines of the bundle's own files that led to an error, the outermost first.

    Args:
        bundle: the directory, resolved; files of bundles beside it count as well.
        error: with its causes.
    """
    root = str(bundle.parent) + "/"
    lines: list[str] = []
    for each in causes(error, with_contexts=False):
        for frame in traceback.extract_tb(each.__traceback__):
            if frame.filename.startswith(root):
                place = frame.filename.removeprefix(root)
                lines.append(f"  {place}:{frame.lineno} in {frame.name}: {frame.line}")
    return lines


def _has_hook_file(bundle: Path) -> bool:
    hook_file = bundle / HOOK_FILE
    if hook_file.is_file():
        return True
    if os.path.lexists(hook_file):
        raise HookProblem(
            bundle.name,
            f"{HOOK_FILE} is there but is not a file that can be read (a directory, a fifo, a link"
            " that leads nowhere); put the hooks there, or remove it",
        )
    if (bundle / FOREIGN_HOOK_FILE).is_file():
        raise HookProblem(
            bundle.name,
            f"{FOREIGN_HOOK_FILE} holds Julia hooks, which this server cannot run; port them to"
            f" {HOOK_FILE} (register_model(preprocess=..., postprocess=...)) beside it",
        )
    return False


def _run_hook_file(bundle: Path, name: str) -> tuple[str, Registrations]:
    bundle = bundle.resolve()
    module = f"hloserve_bundle_{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{next(_serial)}"
    try:
        with _quiet_imports(), collect_registrations() as registered:
            _execute(bundle / HOOK_FILE, module)
    except HookProblem:
        _forget(module)
        raise
    except BaseException as error:  # author's code may raise anything, also what ends a thread
        _forget(module)
        place = author_line(bundle, error) or HOOK_FILE
        hint = _import_hint(bundle, error)
        raise HookProblem(
            name, f"{place}: the hook file failed: {type(error).__name__}: {error}{hint}"
        ) from error
    return module, registered


def _run_within(timeout_s: float | None, bundle: Path, name: str) -> tuple[str, Registrations]:
    if timeout_s is None:
        return _run_hook_file(bundle, name)
    outcome: list[tuple[str, Registrations] | HookProblem] = []

    def run() -> None:
        try:
            outcome.append(_run_hook_file(bundle, name))
        except HookProblem as problem:
            outcome.append(problem)

    thread = threading.Thread(target=run, name=f"model-py-{name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not outcome:
        raise HookProblem(
            name,
            f"{HOOK_FILE} has not ended after {timeout_s:g} s (hooks.load_timeout_seconds): it must"
            " register its hooks and return; leave waiting and endless loops to the hooks",
        )
    (result,) = outcome
    if isinstance(result, HookProblem):
        raise result
    return result


def _execute(path: Path, module: str) -> None:
    spec = importlib.util.spec_from_file_location(
        module, path, submodule_search_locations=[str(path.parent)]
    )
    assert spec is not None, "a .py file always has a loader"
    instance: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[module] = instance
    # Compiled here, not by the import system: that would leave a __pycache__ in the bundle, and
    # would read a stale one after a reload within the same second.
    code = compile(path.read_bytes(), str(path), "exec")
    exec(code, instance.__dict__)  # the bundle's author is trusted as the operator is


@contextmanager
def _quiet_imports() -> Iterator[None]:
    path, silent = list(sys.path), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.path[:] = path
        sys.dont_write_bytecode = silent


def _forget(module: str) -> None:
    for name in list(sys.modules):  # a copy, made in one step: other threads import meanwhile
        if name == module or name.startswith(module + "."):
            sys.modules.pop(name, None)


def _wrong_registration(wanted: str, kind: str, registered: Registrations) -> str:
    calls = {
        "register_model": len(registered.models),
        "register_meta_model": len(registered.metas),
    }
    got = [
        f"{function} {'once' if times == 1 else f'{times} times'}"
        for function, times in calls.items()
        if times
    ]
    return (
        f"{HOOK_FILE} must call {wanted} exactly once, because the manifest says kind: {kind};"
        f" it called {' and '.join(got) or 'neither register_model nor register_meta_model'}"
    )


def _import_hint(bundle: Path, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        first = error.name.partition(".")[0]
        if (bundle / f"{first}.py").is_file() or (bundle / first).is_dir():
            return f"; it lies in the bundle: write `from . import {first}`"
        return "; install it in the server's environment"
    return ""
