"""Every setting by its path: how it is named in the environment and how its value is read.

What lives here: the walk over `hloserve.config.schema`, and the conversion of one raw value. What
does not: where raw values come from (`hloserve.config.loading`). Immutable; any thread.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from hloserve.config.schema import WorkerConfig
from hloserve.config.schema_types import Reading
from hloserve.core.units import parse_bytes, parse_duration

__all__ = [
    "ENVIRONMENT_PREFIX",
    "SETTINGS",
    "Path",
    "Setting",
    "ValueRefused",
    "environment_name",
    "flag_name",
    "read_text",
    "read_value",
    "show",
]

ENVIRONMENT_PREFIX = "HLOSERVE_"
Path = tuple[str, ...]

_FLAG_NAMES = {
    ("model_dirs",): "REPO",
    ("models_include",): "--include",
    ("drain_timeout_s",): "--drain-timeout",
    ("logging", "format"): "--log-format",
    ("tls", "certificate"): "--tls-certificate",
    ("tls", "key"): "--tls-key",
    ("tls", "client_ca"): "--tls-client-ca",
    ("logging", "level"): "--log-level",
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})(e[+-]?[0-9]{1,3})?", re.I)


class ValueRefused(ValueError):
    """A value that a setting does not take; the text says what it takes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the schema.

    Attributes:
        path: sections and field; a per-model setting has ``<model>`` for the model's name.
        type: the annotated type, for conversion.
        kind: what a value is apart from its range: "bool", "int", "float", "str", "list",
            "models", "mapping", or "int_or_word".
        expected: the values that it takes, in words.
        reading: units and aliases.
        default: value when nothing sets it; None for "unset".
    """

    path: Path
    type: Any
    kind: str
    expected: str
    reading: Reading
    default: object


def environment_name(path: Path) -> str:
    """The environment variable of a setting, mechanically.

    Example:
        >>> environment_name(("scheduler", "max_queue_depth"))
        'HLOSERVE_SCHEDULER_MAX_QUEUE_DEPTH'
    """
    return ENVIRONMENT_PREFIX + "_".join(path).upper()


def flag_name(path: Path) -> str:
    """The command line flag of a setting that has one."""
    return _FLAG_NAMES.get(path, "--" + path[-1].replace("_", "-"))


def read_text(setting: Setting, text: str) -> object:
    """Turn the text of a variable or flag into the raw value that a file would hold."""
    if setting.kind == "list":
        return [part for part in text.split(":") if part]
    if setting.kind == "str":
        return text
    text = text.strip()
    if setting.kind == "mapping":
        return _read_json(text)
    if setting.kind == "bool" and text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    if setting.kind in ("int", "int_or_word") and _WHOLE.fullmatch(text):
        return int(text)
    if setting.kind == "float" and _DECIMAL.fullmatch(text):
        return float(text)
    return text


def _read_json(text: str) -> object:
    """The value that JSON gives; the text itself when it is none, for the message."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_value(setting: Setting, raw: object) -> Any:
    """Check and convert one raw value.

    Raises:
        ValueRefused: it is not a value of this setting.
    """
    reading, value = setting.reading, raw
    if isinstance(value, str):
        if reading.unit in ("bytes", "seconds"):
            value = _read_unit(reading.unit, value)
        else:
            value = dict(reading.aliases).get(value, value)
    try:
        return msgspec.convert(value, setting.type)
    except msgspec.ValidationError as error:
        told = _wrong_entry(setting, raw) if setting.kind == "mapping" else ""
        reason = told or f"must be {setting.expected}, got {show(raw)}"
        raise ValueRefused(reason) from error
    except UnicodeEncodeError as error:
        raise ValueRefused(f"must be text in UTF-8, got {show(raw)!a}") from error


def _wrong_entry(setting: Setting, raw: object) -> str:
    """What is wrong with the first entry of a mapping that is; nothing when it is no mapping."""
    entries = raw.items() if isinstance(raw, Mapping) else ()
    for key, value in entries:
        if not _is_of(setting, {key: True}):
            return f"{show(key)} is not {setting.reading.keys}; correct it, or remove it"
        if not _is_of(setting, {key: value}):
            return f"{show(key)} must be {setting.reading.values}, got {show(value)}"
    return ""


def _is_of(setting: Setting, value: object) -> bool:
    try:
        msgspec.convert(value, setting.type)
    except msgspec.ValidationError:
        return False
    return True


def _read_unit(unit: str, text: str) -> int | float:
    try:
        return parse_bytes(text) if unit == "bytes" else parse_duration(text)
    except ValueError as error:
        raise ValueRefused(f"{show(text)} {error}") from error


def show(raw: object) -> str:
    """A value for a message: short, on one line, without control characters."""
    if isinstance(raw, Mapping):
        return "a mapping"
    if isinstance(raw, int) and abs(raw) > 10**30:
        return "a huge number"
    text = repr(list(raw) if isinstance(raw, tuple) else raw)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _walk(section: type[msgspec.Struct], path: Path) -> Iterator[Setting]:
    for field in msgspec.structs.fields(section):
        here = (*path, field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _walk(field.type, here)
            continue
        info = inspect.type_info(field.type)
        default = {} if field.default is msgspec.NODEFAULT else field.default
        kind, expected = _describe(info)
        yield Setting(here, field.type, kind, expected, _reading(info), default)
        if isinstance(info, inspect.DictType) and isinstance(info.value_type, inspect.StructType):
            yield from _walk(info.value_type.cls, (*here, "<model>"))


def _reading(info: inspect.Type) -> Reading:
    if isinstance(info, inspect.VarTupleType):
        return _reading(info.item_type)
    if isinstance(info, inspect.UnionType):
        return next((r for t in info.types if (r := _reading(t)) != Reading()), Reading())
    if isinstance(info, inspect.Metadata) and info.extra:
        return info.extra["reading"]  # type: ignore[no-any-return]  # the schema puts one there
    return Reading()


def _describe(info: inspect.Type) -> tuple[str, str]:
    """The kind of a type, and its values in words."""
    match info:
        case inspect.Metadata(type=inner):
            reading = _reading(info)
            kind, expected = _describe_unit(inner, reading.unit)
            return kind, reading.words or expected
        case inspect.LiteralType(values=values):
            return "str", _one_of([repr(value) for value in values])
        case inspect.BoolType():
            return "bool", "true or false"
        case inspect.IntType():
            return "int", f"a whole number{_range(info)}"
        case inspect.FloatType():
            return "float", f"a number{_range(info)}"
        case inspect.VarTupleType(item_type=inspect.IntType() as item):
            return "list", f"a list of whole numbers{_range(item)}"
        case inspect.VarTupleType():
            return "list", "a list of texts"
        case inspect.DictType(value_type=value):
            kind = "models" if isinstance(value, inspect.StructType) else "mapping"
            return kind, "a mapping from model names to their settings"
        case inspect.UnionType(types=types):
            known = [_describe(t) for t in types if not isinstance(t, inspect.NoneType)]
            kind = known[0][0] if len(known) == 1 else "int_or_word"
            return kind, _one_of([words for _, words in known])
        case _:
            is_needed = getattr(info, "min_length", None)
            return "str", f"a text{' that is not empty' if is_needed else ''}"


def _one_of(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _describe_unit(info: inspect.Type, unit: str) -> tuple[str, str]:
    kind, expected = _describe(info)
    if unit == "bytes":
        return kind, f"a size like 512MiB, or bytes{_range(info)}"
    if unit == "seconds":
        return kind, f"a duration like 30s, or seconds{_range(info)}"
    return kind, expected


def _range(info: Any) -> str:
    bounds = (("above", info.gt), ("from", info.ge), ("below", info.lt), ("up to", info.le))
    words = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
    return words and f" {words}"


SETTINGS: Mapping[Path, Setting] = {s.path: s for s in _walk(WorkerConfig, ())}
"""Every setting, in the order of the schema."""
