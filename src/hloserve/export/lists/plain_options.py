"""The options of an export that text can hold: those of flags and of YAML.

What lives here: which they are, and their types. What does not: what they mean
(`hloserve.export.options`) and whether they fit the model (`hloserve.export.settings`). Pure
functions; any thread.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from hloserve.config.settings import show
from hloserve.export.options import BatchSizes

__all__ = ["PLAIN_OPTIONS", "OptionRefused", "parse_batch_sizes", "read_option"]

_SIZE = re.compile(r"[0-9]{1,10}")
_Size: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Axes: TypeAlias = tuple[Annotated[int, Meta(ge=0)] | None, ...]
_Sizes: TypeAlias = Annotated[tuple[_Size, ...], Meta(min_length=1)]

_READ: Mapping[str, tuple[Any, str]] = {
    "batch_sizes": (_Sizes | Literal["dynamic"] | None, "a list of sizes, 'dynamic' or null"),
    "dynamic_sizes": (_Sizes, "a list of sizes"),
    "input_names": (tuple[_Text, ...], "a list of names"),
    "output_names": (tuple[_Text, ...], "a list of names"),
    "input_batch_axes": (_Axes, "a list of axes, null for an input without one"),
    "output_batch_axes": (_Axes, "a list of axes, null for an output without one"),
    "axis_letters": (dict[str, _Text], "a mapping from tensors to letters"),
    "matmul_precision": (Literal["default", "high", "highest"], "default, high or highest"),
    "compile_options": (dict[str, Any], "a mapping"),
    "target_version": (_Text, "a version like '1.0.0'; quote it"),
    "hook_file": (_Text, "the path of a file"),
    "assets": (tuple[_Text, ...], "a list of paths"),
    "labels": (dict[str, _Text], "a mapping from outputs to files among the assets"),
    "description": (str, "a text"),
    "provenance": (dict[str, Any], "a mapping"),
    "tolerance": (Annotated[float, Meta(gt=0, le=1)], "a number above 0 and up to 1"),
    "prove_every_size": (bool, "true or false"),
}

PLAIN_OPTIONS = tuple(_READ)
"""Names of the options."""


class OptionRefused(ValueError):
    """A value that an option does not take; the message says what it takes."""


def read_option(name: str, raw: object) -> Any:
    """Check and convert the value of one of `PLAIN_OPTIONS`.

    Raises:
        OptionRefused: it is not a value of this option.
    """
    kind, words = _READ[name]
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise OptionRefused(f"must be {words}, got {show(raw)}") from error


def parse_batch_sizes(text: str) -> BatchSizes:
    """Read ``1,8,32``, ``dynamic`` or ``none``.

    Raises:
        OptionRefused: it is none of these.

    Example:
        >>> parse_batch_sizes("1,8,32")
        (1, 8, 32)
    """
    if text == "none":
        return None
    if text == "dynamic":
        return "dynamic"
    parts = [part.strip() for part in text.split(",")]
    if not all(_SIZE.fullmatch(part) and 0 < int(part) < 2**31 for part in parts):
        raise OptionRefused(f"must be sizes like 1,8,32, or dynamic, or none, got {show(text)}")
    return tuple(int(part) for part in parts)
