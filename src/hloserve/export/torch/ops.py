"""What torch's operators mean in JAX: torchax's table of them, and our own entries over it.

What lives here: loading that table without `import torchax`, which does not work with torch 2.13
or later and renames a backend of torch, so that `torch.cond` fails afterwards. What does not: our
entries (`hloserve.export.torch.lowerings`), and running a graph by the table
(`hloserve.export.torch.interpreter`).

Rules.
1. Loading leaves torch and `sys.modules` as they were: torchax, imported later, is its own copy.
2. torchax's internals are of one tested version; another, or one that lacks what we use, is
   `UntestedVersion`.

One thread: loading replaces two methods of torch while it runs.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import hloserve.export.torch.recurrence  # noqa: F401  # registers its lowerings
from hloserve.core.errors import MissingExtra, UntestedVersion
from hloserve.export.torch.arrays import torch
from hloserve.export.torch.lowerings import LOWERINGS, Lowering

__all__ = ["OpTable", "load_op_table"]

_TORCHAX = "0.0.13"

# Taken apart, one product becomes broadcasts of the whole weight per row: a vision transformer's
# program took 88 s to run for the first time instead of 2. What we lower ourselves is kept too.
_KEPT_WHOLE = ("linear.default", "matmul.default")


@dataclass(frozen=True)
class OpTable:
    """Torch's operators in JAX.

    Attributes:
        decompositions: what to take apart before lowering, as `run_decompositions` takes it.
    """

    decompositions: Mapping[Any, Any]
    _lowerings: Mapping[Any, Lowering]

    def find(self, target: Any) -> Lowering | None:
        """The lowering of an operator; None when there is none."""
        found = self._lowerings.get(target)
        if found is None and isinstance(target, torch._ops.OpOverload):
            found = self._lowerings.get(target.overloadpacket)
        return found


@functools.cache
def load_op_table() -> OpTable:
    """Load torchax's table and put our own entries over it.

    Raises:
        MissingExtra: torchax is not installed.
        UntestedVersion: its internals are not the ones that this module knows.
    """
    of_torchax, decompositions = _load_torchax()
    own = {_overload(name): lowering for name, lowering in LOWERINGS.items()}
    return OpTable(_decompositions(decompositions, own), {**of_torchax, **own})


def _load_torchax() -> tuple[dict[Any, Lowering], dict[Any, Any]]:
    try:
        found = importlib.metadata.version("torchax")
    except importlib.metadata.PackageNotFoundError as missing:
        raise MissingExtra("export-torch", "exporting PyTorch models", missing) from missing
    if found != _TORCHAX:
        raise UntestedVersion("torchax", found, _TORCHAX)
    try:
        with _own_copy_of_torchax(), _removed_names_as_none(), _unchanged_decompositions():
            importlib.import_module("torchax.ops.jaten")
            registry = importlib.import_module("torchax.ops.ops_registry")
            decompositions = importlib.import_module("torchax.decompositions")
            operators = registry.all_aten_ops.items()
            table = {
                target: operator.func
                for target, operator in operators
                # The others need torchax's tensors or its random state, or change in place.
                if operator.is_jax_function and not operator.needs_env and _is_operator(target)
            }
            return table, dict(decompositions.DECOMPOSITIONS)
    except (ImportError, AttributeError, TypeError) as moved:
        raise UntestedVersion("torch", torch.__version__, "2.13 to 2.14") from moved


def _decompositions(of_torchax: Mapping[Any, Any], own: Mapping[Any, Any]) -> dict[Any, Any]:
    table = {**torch.export.default_decompositions(), **of_torchax}
    kept = {*own, *map(_overload, _KEPT_WHOLE)}
    return {target: function for target, function in table.items() if target not in kept}


def _is_operator(target: Any) -> bool:
    """False for what stands for a removed one."""
    return isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket)


def _overload(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


@contextlib.contextmanager
def _own_copy_of_torchax() -> Iterator[None]:
    """A package `torchax` whose ``__init__`` does not run, for the length of the block."""
    spec = importlib.util.find_spec("torchax")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("torchax has no package directory")

    def take_out() -> dict[str, types.ModuleType]:
        names = [name for name in sys.modules if name.split(".")[0] == "torchax"]
        return {name: sys.modules.pop(name) for name in names}

    of_others = take_out()
    package = types.ModuleType("torchax")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules["torchax"] = package
    try:
        yield
    finally:
        take_out()
        sys.modules.update(of_others)


class _RemovedOperator:
    """Stands for an operator that this version of torch no longer has; its overloads are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextlib.contextmanager
def _removed_names_as_none() -> Iterator[None]:
    """Let torchax name operators that newer versions of torch removed; nothing can call them."""
    packet, namespace = torch._ops.OpOverloadPacket, torch._ops._OpNamespace
    of_packet, of_namespace = packet.__getattr__, namespace.__getattr__

    def find_overload(self: Any, name: str) -> Any:
        try:
            return of_packet(self, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            return None

    def find_packet(self: Any, name: str) -> Any:
        try:
            return of_namespace(self, name)
        except AttributeError:
            if name.startswith("__") or self.name != "aten":
                raise
            return _RemovedOperator()

    packet.__getattr__, namespace.__getattr__ = find_overload, find_packet
    try:
        yield
    finally:
        packet.__getattr__, namespace.__getattr__ = of_packet, of_namespace


@contextlib.contextmanager
def _unchanged_decompositions() -> Iterator[None]:
    """Undo what importing torchax's decompositions registers with torch."""
    tables = torch._decomp.global_decomposition_table
    before = {kind: dict(table) for kind, table in tables.items()}
    try:
        yield
    finally:
        for kind, table in tables.items():
            table.clear()
            table.update(before[kind])
