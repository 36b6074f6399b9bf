"""What a torch module returns, as named tensors.

What lives here: the walk over tuples, dicts and dataclasses, and its names. Pure functions; also
run by torch while it traces, so nothing here keeps anything.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

from hloserve.export.torch.arrays import torch

__all__ = ["named_tensors"]

_MOST_NAMES = 5
"""Outputs that one message names."""


def named_tensors(result: Any) -> list[tuple[str, Any]]:
    """The tensors of a result by name, in order; None vanishes.

    One tensor is ``output``, the parts of a tuple are ``output_0``..., those of a dict or dataclass
    have its keys, and what is nested has dotted names.

    Raises:
        TypeError: with one sentence for all parts that are no tensors.
    """
    found = list(_walk(result, ""))
    odd = [(name, type(part)) for name, part in found if not isinstance(part, torch.Tensor)]
    if odd:
        wrong = [f"{name!r} is of type {kind.__name__}" for name, kind in odd[:_MOST_NAMES]]
        more = f" and {len(odd) - _MOST_NAMES} more" if len(odd) > _MOST_NAMES else ""
        raise TypeError(
            f"outputs must be tensors: {', '.join(wrong)}{more}; take tensors with output_select"
        )
    return found


def _walk(part: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner: list[tuple[str, Any]]
    if isinstance(part, Mapping):
        inner = [(str(key), value) for key, value in part.items()]
    elif hasattr(part, "_fields") and isinstance(part, tuple):
        inner = list(zip(cast(Any, part)._fields, part, strict=True))
    elif isinstance(part, tuple | list):
        before = "" if name else "output_"
        inner = [(f"{before}{index}", value) for index, value in enumerate(part)]
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        inner = [(field.name, getattr(part, field.name)) for field in dataclasses.fields(part)]
    elif part is None:
        return
    else:
        yield name or "output", part
        return
    for key, value in inner:
        yield from _walk(value, f"{name}.{key}" if name else key)
