"""A YAML file as plain dicts, lists and scalars, within bounds.

What lives here: the limits that keep a hostile or mistaken file from costing more than a message.
What does not: what the keys mean (`hloserve.config.loading`). Any thread.

Rules.
1. No aliases and no tags: nothing grows on reading, nothing is constructed.
2. A key given twice is an error; YAML would keep the last one in silence.
3. Size, nesting and number of nodes are bounded.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from hloserve.core.errors import ConfigProblem

__all__ = ["MAX_FILE_BYTES", "parse_yaml", "read_yaml"]

MAX_FILE_BYTES = 256 * 1024
_MAX_DEPTH = 16
_MAX_NODES = 20_000


def read_yaml(file: Path) -> object:
    """Read one document from a file.

    Raises:
        ConfigProblem: it cannot be read, is too large, or is not YAML.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigProblem(str(file), "", f"cannot be read: {reason}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigProblem(str(file), "", f"is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigProblem(str(file), "", f"is not UTF-8 (at byte {error.start})") from error
    return parse_yaml(text, str(file))


def parse_yaml(text: str, source: str) -> object:
    """Parse one YAML document; None when it is empty.

    Raises:
        ConfigProblem: it is not YAML, or out of bounds; with the line.
    """
    try:
        loader = _BoundedLoader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        reason = error.problem or error.context or "not YAML"
        raise ConfigProblem(source, "", f"{line}{reason}") from error
    except yaml.YAMLError as error:
        raise ConfigProblem(source, "", f"not YAML: {_first_line(error)}") from error
    except (ValueError, OverflowError) as error:  # a number or date that only looks like one
        raise ConfigProblem(source, "", f"not YAML: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


class _BoundedLoader(yaml.SafeLoader):
    """The safe loader with the rules at the top of this file."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    @override
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs lack it
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("aliases are not accepted; write the value out", event)
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise _refusal("tags are not accepted", event)
        self._nodes += 1
        self._depth += 1
        if self._nodes > _MAX_NODES or self._depth > _MAX_DEPTH:
            raise _refusal("too large or too deeply nested for a node file", event)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise _refusal(f"{key[:80]!r} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _refusal(reason: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=reason, problem_mark=where.start_mark)
