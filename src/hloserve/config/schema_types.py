"""What the settings are made of: how a field is read, and types that several of them share.

What lives here: building blocks. What does not: the settings (`hloserve.config.schema`). Immutable;
any thread.
"""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

__all__ = [
    "BatchSize",
    "CompileOptions",
    "Fraction",
    "FractionOrNone",
    "MessageBytes",
    "Mode",
    "OptionalPath",
    "Path",
    "Port",
    "PositiveBytes",
    "PositiveSeconds",
    "Reading",
    "Seconds",
    "Section",
    "Text",
    "meta",
]


class Reading(msgspec.Struct, frozen=True):
    """What a field accepts beyond what its type says.

    Attributes:
        unit: "bytes", "seconds" or "path": the field also takes text like 512MiB or 30s, or is
            relative to the file that holds it.
        aliases: other spellings of a value.
        words: what the value is, where its type does not say it.
        keys: what the keys of a mapping are.
        values: what its values are.
    """

    unit: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    words: str = ""
    keys: str = ""
    values: str = ""


def meta(reading: Reading, **limits: Any) -> Meta:
    """Limits of a field, with what it accepts beyond its type."""
    return Meta(extra={"reading": reading}, **limits)


Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
PositiveBytes: TypeAlias = Annotated[int, meta(Reading(unit="bytes"), gt=0, le=2**40)]
MessageBytes: TypeAlias = Annotated[int, meta(Reading(unit="bytes"), gt=0, lt=2**31)]
PositiveSeconds: TypeAlias = Annotated[float, meta(Reading(unit="seconds"), gt=0, le=86400)]
Seconds: TypeAlias = Annotated[float, meta(Reading(unit="seconds"), ge=0, le=86400)]
BatchSize: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Fraction: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
FractionOrNone: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Mode: TypeAlias = Annotated[
    str,
    meta(
        Reading(words='three octal digits in quotes, the first 6 or 7, like "660"'),
        pattern="^0?[67][0-7]{2}$",
    ),
]
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096)]
Path: TypeAlias = Annotated[str, meta(Reading(unit="path"), min_length=1, max_length=4096)]

OptionalPath: TypeAlias = Annotated[str, meta(Reading(unit="path"), max_length=4096)]

CompileOption: TypeAlias = Annotated[str, Meta(pattern="^xla_[a-z0-9_]{1,120}$")]
CompileOptions: TypeAlias = Annotated[
    dict[CompileOption, bool | int | float | str],
    meta(
        Reading(
            words="a mapping from names of options of XLA (xla_...) to their values",
            keys="a name of an option of XLA, in full and in lower case, as in"
            " `xla_cpu_prefer_vector_width: 512`",
            values="true, false, a number or a text",
        )
    ),
]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block of the node file."""
