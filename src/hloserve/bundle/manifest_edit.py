"""Changing one line of a manifest and leaving every other byte as it is.

What lives here: edits of the text. What does not: reading the file and putting the new one in its
place (`hloserve.bundle.migration`). Pure functions; any thread.

Rule: an edit is made only where it is a matter of one line, and it is believed only after the new
text has been parsed: the edited key as wanted, everything else as before. What cannot be edited so
is refused, with the reason.
"""

from collections.abc import Callable, Mapping

import yaml

from hloserve.core.yaml_text import YamlFault, load_yaml

__all__ = ["EditRefused", "remove_key", "set_key"]

_BOM = "\ufeff"


class EditRefused(Exception):
    """A manifest is laid out so that one line cannot be changed safely; the message says how."""


def set_key(text: str, key: str, value: str, *, after: str) -> str:
    """Set a top-level key to a text.

    Args:
        text: a manifest that was accepted.
        key: the key. Where it is there already, its value alone is replaced.
        value: as YAML has it, in quotes where it needs them.
        after: the top-level key below which a new line goes.

    Raises:
        EditRefused: see the module's rule.
    """
    entries = _entries(text)
    if key in entries:
        edited = _with_value(text, entries[key], key, value)
    elif after in entries:
        edited = _with_line(text, entries[after], f"{key}: {value}")
    else:
        raise EditRefused(f"there is no line {after!r} to write {key!r} below")
    wanted = load_yaml(value)
    _check(text, edited, key, lambda found: found == wanted)
    return edited


def remove_key(text: str, key: str) -> str:
    """Remove the line of a top-level key, with the comment behind it; nothing where it is absent.

    Raises:
        EditRefused: see the module's rule.
    """
    entries = _entries(text)
    if key not in entries:
        return text
    name, value = entries[key]
    begin = _line_start(text, name.start_mark.index)
    if text[begin : name.start_mark.index].strip(" ") or _line_count(text, name, value) > 1:
        raise EditRefused(f"{key!r} is not on a line of its own; write it there as '{key}: ...'")
    end = _line_end(text, value.end_mark.index)
    if not text[:end].endswith("\n"):
        # The last line has no newline: take the one before it instead.
        begin -= len(_newline_before(text, begin))
    edited = text[:begin] + text[end:]
    _check(text, edited, key, lambda found: found is None)
    return edited


def _entries(text: str) -> dict[str, tuple[yaml.ScalarNode, yaml.Node]]:
    """Nodes of the root's keys and values, with marks that count characters of the text."""
    if text.startswith(_BOM):
        raise EditRefused("it begins with a byte order mark; save it as UTF-8 without one")
    # Not the parser of libyaml: its marks are off where the text holds more than ASCII.
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:  # the two parsers differ in rare cases
        raise EditRefused(f"a second YAML parser does not take it: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise EditRefused("it is not a mapping of keys")
    if root.flow_style:
        raise EditRefused("it is written as {...}; write one key per line instead")
    return {name.value: (name, value) for name, value in root.value}


def _with_value(text: str, entry: tuple[yaml.ScalarNode, yaml.Node], key: str, value: str) -> str:
    name, old = entry
    if not isinstance(old, yaml.ScalarNode) or _line_count(text, name, old) > 1:
        raise EditRefused(f"{key!r} and its value are not on one line; write '{key}: {value}'")
    begin, end = old.start_mark.index, old.end_mark.index
    space = "" if text[:begin].endswith(" ") else " "
    return f"{text[:begin]}{space}{value}{text[end:]}"


def _with_line(text: str, above: tuple[yaml.ScalarNode, yaml.Node], line: str) -> str:
    name, value = above
    if not isinstance(value, yaml.ScalarNode) or _line_count(text, name, value) > 1:
        raise EditRefused(f"{name.value!r} and its value are not on one line; write them so")
    end = _line_end(text, value.end_mark.index)
    newline = _newline_before(text, end)
    indented = " " * name.start_mark.column + line
    if newline:
        return f"{text[:end]}{indented}{newline}{text[end:]}"
    return f"{text}{_newline_before(text, _line_start(text, end)) or chr(10)}{indented}"


def _line_count(text: str, name: yaml.Node, value: yaml.Node) -> int:
    return text.count("\n", name.start_mark.index, value.end_mark.index) + 1


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _newline_before(text: str, at: int) -> str:
    if not text[:at].endswith("\n"):
        return ""
    return "\r\n" if text[:at].endswith("\r\n") else "\n"


def _check(before: str, after: str, key: str, is_wanted: Callable[[object], bool]) -> None:
    old, new = load_yaml(before), _reparse(after, key)
    assert isinstance(old, Mapping), "the manifest was accepted"
    if not isinstance(new, Mapping) or not is_wanted(new.get(key)):
        raise EditRefused(f"changing the line of {key!r} does not give the value that it should")
    # As text: a value may be NaN, which equals nothing, and true equals 1.
    if _without(old, key) != _without(new, key):
        raise EditRefused(f"changing the line of {key!r} would change other keys as well")


def _reparse(text: str, key: str) -> object:
    try:
        return load_yaml(text)
    except YamlFault as fault:
        raise EditRefused(f"changing the line of {key!r} would break the YAML: {fault}") from fault


def _without(root: Mapping[object, object], key: str) -> str:
    return repr([(name, value) for name, value in root.items() if name != key])
