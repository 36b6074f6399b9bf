"""The three places where settings come from, each read into `Given` values and problems.

What lives here: the node file, the environment and the flags, one function each. What does not:
which of them wins (`hloserve.config.loading`). Pure but for reading the file; any thread.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from hloserve.config.foreign import FOREIGN_KEYS
from hloserve.config.settings import (
    ENVIRONMENT_PREFIX,
    SETTINGS,
    Path,
    Setting,
    ValueRefused,
    environment_name,
    flag_name,
    read_text,
    read_value,
    show,
)
from hloserve.config.yaml_file import read_yaml
from hloserve.core.errors import ConfigProblem

__all__ = ["Given", "read_environment", "read_file", "read_flags"]

_MODEL = "<model>"
_FOREIGN_VARIABLES = {environment_name(path): reason for path, reason in FOREIGN_KEYS.items()}
_SECTIONS = frozenset(path[:end] for path in SETTINGS for end in range(len(path)))
# What Kubernetes puts into every container for a Service whose name starts with "hloserve".
_SERVICE_LINK = re.compile(
    r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$", re.ASCII
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://", re.ASCII)


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave.

    Attributes:
        path: the concrete path, with the model's name where the schema has ``<model>``.
        value: checked and converted.
        source: who gave it, in words.
    """

    path: Path
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a tree of settings comes from.

    Attributes:
        where: how a problem names it.
        source: how a value remembers it.
        base: the directory that relative paths are relative to, if any.
    """

    where: str
    source: str
    base: FilePath | None = None


Found = Iterator[Given | ConfigProblem]


def read_file(file: FilePath) -> Found:
    """Read a node file. Problems of the file as a whole end it, those of a key do not."""
    try:
        tree = read_yaml(file)
    except ConfigProblem as problem:
        yield problem
        return
    yield from _read_tree(tree, (), _Origin(str(file), f"file {file}", file.parent))


def read_environment(environ: Mapping[str, str]) -> Found:
    """Read the `HLOSERVE_*` variables; one that is not a setting is a problem."""
    known = {environment_name(path): s for path, s in SETTINGS.items() if _MODEL not in path}
    for name, text in environ.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or _is_service_link(name, text, known):
            continue
        setting = known.get(name)
        if setting is None:
            yield ConfigProblem("environment", "", _unknown_variable(name, known))
        elif setting.kind == "models":
            yield from _read_models(setting, name, text)
        else:
            yield _read_one(setting, read_text(setting, text), setting.path, _Origin(name, name))


def read_flags(flags: Mapping[str, object]) -> Found:
    """Read settings from the command line, by dotted path; None means the flag was not given."""
    for dotted, raw in flags.items():
        if raw is None:
            continue
        setting = SETTINGS[tuple(dotted.split("."))]
        name = flag_name(setting.path)
        value = read_text(setting, raw) if isinstance(raw, str) else raw
        yield _read_one(setting, value, setting.path, _Origin(name, f"flag {name}"))


def show_name(name: str) -> str:
    """A key for a message: control characters escaped, not endless."""
    return name[:80].encode("unicode_escape").decode("ascii")


def _unknown_variable(name: str, known: Iterable[str]) -> str:
    if name in _FOREIGN_VARIABLES:
        return f"{name} {_FOREIGN_VARIABLES[name]}"
    close = difflib.get_close_matches(name[:80], known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{show_name(name)} is not a setting{hint}"


def _is_service_link(name: str, text: str, known: Mapping[str, Setting]) -> bool:
    if name in known:
        return False
    return bool(
        _SERVICE_LINK.search(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(text))
    )


def _read_models(setting: Setting, name: str, text: str) -> Found:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        yield ConfigProblem(name, "", f"must be {setting.expected}, as JSON, got {show(text)}")
        return
    yield from _read_tree(tree, setting.path, _Origin(name, name))


def _read_one(
    setting: Setting, raw: object, path: Path, origin: _Origin, at: str = ""
) -> Given | ConfigProblem:
    try:
        value = read_value(setting, raw)
    except ValueRefused as refusal:
        return ConfigProblem(origin.where, at, str(refusal))
    if setting.reading.unit == "path" and origin.base is not None:
        value = _relative_to(origin.base, value)
    return Given(path, value, origin.source)


def _relative_to(base: FilePath, value: Any) -> Any:
    """Paths in a file are relative to its directory; an empty one stays empty."""
    if isinstance(value, str):
        return str(base / value) if value else value
    return tuple(str(base / part) for part in value)


def _read_tree(tree: object, path: Path, origin: _Origin) -> Found:
    """Read a mapping of settings and sections that hangs at `path`."""
    if tree is None:  # a section whose keys are all commented out
        return
    if not isinstance(tree, Mapping):
        yield ConfigProblem(origin.where, _at(path), f"must be a mapping, got {show(tree)}")
        return
    for key, raw in tree.items():
        if not isinstance(key, str):
            reason = f"key {show(key)} must be a text; quote it"
            yield ConfigProblem(origin.where, _at(path), reason)
            continue
        here = (*path, key)
        general = _general(here)
        if general in _SECTIONS:
            yield from _read_tree(raw, here, origin)
        elif general in SETTINGS:
            yield _read_one(SETTINGS[general], raw, here, origin, _at(here))
        else:
            yield ConfigProblem(origin.where, _at(path), _unknown(general, key))


def _general(path: Path) -> Path:
    """The schema's path of a concrete one."""
    if len(path) > 2 and path[:2] == ("scheduler", "models"):
        return (*path[:2], _MODEL, *path[3:])
    return path


def _unknown(general: Path, key: str) -> str:
    name = show_name(key)
    if general in FOREIGN_KEYS:
        return f"`{name}` {FOREIGN_KEYS[general]}"
    siblings = _children(general[:-1])
    close = difflib.get_close_matches(key[:80], siblings, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(siblings)}"
    return f"unknown key `{name}`; {hint}"


def _children(section: Path) -> Sequence[str]:
    size = len(section)
    return list(dict.fromkeys(p[size] for p in SETTINGS if p[:size] == section and len(p) > size))


def _at(path: Path) -> str:
    plain = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
    parts = (f".{part}" if plain.fullmatch(part) else f"[{show(part)}]" for part in map(str, path))
    return "$" + "".join(parts)
