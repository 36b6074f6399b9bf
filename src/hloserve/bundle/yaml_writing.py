"""YAML that we write: a writer that quotes enough for every reader.

What lives here: plain values to text. What does not: which keys a manifest has
(`hloserve.bundle.manifest_text`), and reading (`hloserve.core.yaml_text`). Pure functions; any
thread.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml
from typing_extensions import override

__all__ = ["Quoted", "dump_yaml"]

_TEXT_TAG = "tag:yaml.org,2002:str"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(?<![.])\Z")
_RESERVED = frozenset(
    ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf")
)  # in some version of YAML


class Quoted(str):
    """A string that the writer always puts in quotes."""

    __slots__ = ()


def dump_yaml(document: Mapping[str, Any], flow: frozenset[str]) -> str:
    """Write a document, one top-level key after the other.

    Args:
        document: plain values; `Quoted` strings are always quoted.
        flow: top-level keys, plain words, whose entries are written in one line each, as
            ``{name: x}``.
    """
    parts = []
    for key, value in document.items():
        if key in flow and isinstance(value, list) and value:
            parts.append(f"{key}:\n" + "".join(f"  - {_dump_line(entry)}\n" for entry in value))
        elif key in flow:
            parts.append(f"{key}: {_dump_line(value)}\n")
        else:
            parts.append(yaml.dump({key: value}, Dumper=_QuotingDumper, **_LAYOUT))
    return "".join(parts)


def _dump_line(value: object) -> str:
    # As the only entry of a list, because YAML ends a document that is a bare word with dots.
    options = _LAYOUT | {"default_flow_style": True}
    line: str = yaml.dump([value], Dumper=_QuotingDumper, **options)
    return line.rstrip("\n")[1:-1]


_LAYOUT: dict[str, Any] = {
    "sort_keys": False,
    "default_flow_style": False,
    "allow_unicode": True,
    "width": 1 << 30,
}


class _QuotingDumper(yaml.SafeDumper):
    """Quotes every string that any YAML version could take for something else."""

    @override
    def ignore_aliases(self, data: object) -> bool:
        return True

    @override
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN.match(text) is not None and text.lower() not in _RESERVED
    style = None if is_plain and not isinstance(text, Quoted) else '"'
    return dumper.represent_scalar(_TEXT_TAG, str(text), style=style)


_QuotingDumper.add_representer(str, _represent_text)
_QuotingDumper.add_representer(Quoted, _represent_text)
