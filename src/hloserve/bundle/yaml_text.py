"""The YAML of `manifest.yaml`: a strict reader for hostile text, and a writer that quotes enough.

What lives here: text to plain values (mappings, lists, strings, numbers, booleans, null) and back.
What does not: what the keys mean (`hloserve.bundle.manifest`). Pure functions; any thread.

Rules.
1. Anchors and aliases are refused: no document is larger than its text.
2. A key that appears twice is an error, and so is nesting deeper than `MAX_DEPTH`.
3. Only YAML's plain types are constructed. Dates stay strings; there are no merge keys.
4. Every fault of the text is a `YamlFault`, whatever the library raises for it.
"""

import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml
from typing_extensions import override

__all__ = ["MAX_DEPTH", "Quoted", "YamlFault", "dump_yaml", "load_yaml"]

MAX_DEPTH = 50
_PREFIX = "tag:yaml.org,2002:"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(?<![.])\Z")
_RESERVED = frozenset(
    ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf")
)  # in some version of YAML


class YamlFault(Exception):
    """Text that is not acceptable YAML; the message says where and why."""


class Quoted(str):
    """A string that the writer always puts in quotes."""

    __slots__ = ()


def load_yaml(text: str) -> object:
    """Parse one document into plain values.

    Raises:
        YamlFault: the text breaks YAML or one of this module's rules.
    """
    loader = _StrictLoader(text)
    try:
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlFault(place + (error.problem or error.context or "not valid YAML")) from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # Numbers and escapes out of range reach us as what int(), float() and chr() raise.
        reason = " ".join(str(error).split())[:200]
        raise YamlFault(f"not valid YAML: {reason}") from error
    finally:
        loader.dispose()


def dump_yaml(document: Mapping[str, Any], flow: frozenset[str]) -> str:
    """Write a document, one top-level key after the other.

    Args:
        document: plain values; `Quoted` strings are always quoted.
        flow: top-level keys whose entries are written in one line each, as ``{name: x}``.
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
    line: str = yaml.dump(value, Dumper=_QuotingDumper, **(_LAYOUT | {"default_flow_style": True}))
    return line.rstrip("\n")


_LAYOUT: dict[str, Any] = {
    "sort_keys": False,
    "default_flow_style": False,
    "allow_unicode": True,
    "width": 1 << 30,
}


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader, less what rules 1 to 3 exclude."""

    # Dates would become objects that no JSON can hold, `=` and `<<` are relics of YAML 1.1.
    yaml_implicit_resolvers = {  # noqa: RUF012  # the library's class attribute, never changed
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag not in {_PREFIX + "timestamp", _PREFIX + "merge", _PREFIX + "value"}
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012  # as above
        **{
            _PREFIX + kind: yaml.SafeLoader.yaml_constructors[_PREFIX + kind]
            for kind in ("null", "bool", "int", "float")
        },
        None: yaml.SafeLoader.yaml_constructors[None],
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    @override
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # no annotations in the stubs
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, "anchors (&) and aliases (*) are not allowed; write the value out",
                event.start_mark,
            )  # fmt: skip
        if self._depth >= MAX_DEPTH:
            raise yaml.composer.ComposerError(
                None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark
            )
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _construct_text(loader: _StrictLoader, node: yaml.ScalarNode) -> str:
    text = str(loader.construct_scalar(node))
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise yaml.constructor.ConstructorError(
                None, None, "a string holds half of a surrogate pair", node.start_mark
            ) from None
    return text


def _construct_list(loader: _StrictLoader, node: yaml.SequenceNode) -> list[object]:
    return loader.construct_sequence(node, deep=True)


def _construct_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Hashable, object]:
    mapping: dict[Hashable, object] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a plain value", key_node.start_mark
            )
        if key in mapping:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {str(key)[:80]!r} appears twice; keep one", key_node.start_mark
            )
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_StrictLoader.yaml_constructors[_PREFIX + "str"] = _construct_text
_StrictLoader.yaml_constructors[_PREFIX + "seq"] = _construct_list
_StrictLoader.yaml_constructors[_PREFIX + "map"] = _construct_mapping


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
    return dumper.represent_scalar(_PREFIX + "str", str(text), style=style)


_QuotingDumper.add_representer(str, _represent_text)
_QuotingDumper.add_representer(Quoted, _represent_text)
