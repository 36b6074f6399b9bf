"""What a bundle is compared with: a TorchScript file, or a Python function.

What lives here: finding and calling the reference. What does not: the comparison
(`hloserve.export.comparison.comparing`). The reference is the user's own code, and runs with the
user's rights. One thread.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hloserve.bundle.findings import listing
from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array, Tensors, TensorSpec
from hloserve.export.lists.target import (
    import_target,
    importing_from,
    parse_target,
    translating_faults,
)

__all__ = ["Reference", "load_reference"]

Reference: TypeAlias = Callable[[Tensors], Tensors]
"""From inputs by name, in the order of the model's, to outputs by name."""
_NO_EXPORT = ""
"""The bundle that problems tell of: there is none to be made."""


def load_reference(text: str, outputs: Sequence[TensorSpec]) -> Reference:
    """Load a reference.

    Args:
        text: the path of a TorchScript file (``.pt``, ``.pth``, ``.ts``, ``.jit``), or
            ``package.module:function``, or ``path/to/file.py:function``. The function is called
            with the inputs as NumPy arrays, in the model's order.
        outputs: names for what it returns: an array, a tuple or list in this order, or a dict.

    Raises:
        TargetFault: the text names neither.
        ExportProblem: the file or function is missing, or its code raises.
    """
    if text.endswith((".pt", ".pth", ".ts", ".jit")) and ":" not in Path(text).name:
        function = _torchscript(Path(text))
    else:
        function = _python_function(text)

    def run(inputs: Tensors) -> Tensors:
        with translating_faults(_NO_EXPORT, f"reference {text}"):
            returned = function(*inputs.values())
        return _named(returned, outputs)

    return run


def _python_function(text: str) -> Callable[..., Any]:
    target = parse_target(text)
    base = Path.cwd()
    with importing_from((base / target.module).parent if target.is_file else base, base):
        found: Any = import_target(target, base, _NO_EXPORT)
        with translating_faults(_NO_EXPORT, f"reference {text}"):
            for part in target.function.split("."):
                found = getattr(found, part)
    if not callable(found):
        raise ExportProblem(
            _NO_EXPORT, f"reference {text} is of type {type(found).__name__}, expected a function"
        )
    return found  # type: ignore[no-any-return]  # callable, and that is all that can be known


def _torchscript(path: Path) -> Callable[..., Any]:
    from hloserve.export.torch.arrays import tensor_of, torch
    from hloserve.export.torchscript.loading import load_script, quiet

    with quiet():
        module = load_script(path, _NO_EXPORT)

    def run(*arrays: Array) -> Any:
        tensors = [tensor_of(array.copy()) for array in arrays]
        with torch.no_grad():
            return module(*tensors)

    return run


def _named(returned: object, outputs: Sequence[TensorSpec]) -> Tensors:
    names = [spec.name for spec in outputs]
    if isinstance(returned, Mapping):
        pairs = [(str(name), value) for name, value in returned.items()]
        unknown = [name for name, _ in pairs if name not in names]
        if unknown:
            raise ExportProblem(
                _NO_EXPORT,
                f"the reference returned {listing(unknown)}, the model's outputs are"
                f" {listing(names)}",
            )
    else:
        values = list(returned) if isinstance(returned, tuple | list) else [returned]
        if len(values) != len(names):
            raise ExportProblem(
                _NO_EXPORT,
                f"the reference returned {len(values)} results, the model has {len(names)} outputs"
                f" ({listing(names)}); return a dict to compare some of them",
            )
        pairs = list(zip(names, values, strict=True))
    return {name: _as_array(value) for name, value in pairs}


def _as_array(value: Any) -> Array:
    if hasattr(value, "detach"):  # a torch tensor; of bfloat16 numpy() knows nothing
        from hloserve.export.torch.arrays import array_of

        return array_of(value.detach().cpu().contiguous())
    return np.asarray(value)
