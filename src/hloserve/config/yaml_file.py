"""A YAML file as plain dicts, lists and scalars, within bounds.

What lives here: reading a node file, and its limits, which keep a hostile or mistaken file from
costing more than a message. What does not: YAML itself (`hloserve.core.yaml_text`) and what the
keys mean (`hloserve.config.loading`). Any thread.
"""

from pathlib import Path

from hloserve.core.errors import ConfigProblem
from hloserve.core.yaml_text import YamlFault, load_yaml

__all__ = ["MAX_DEPTH", "MAX_FILE_BYTES", "MAX_VALUES", "parse_yaml", "read_yaml"]

MAX_FILE_BYTES = 256 * 1024
MAX_DEPTH = 16
MAX_VALUES = 20_000


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
        return load_yaml(text, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
    except YamlFault as fault:
        raise ConfigProblem(source, "", str(fault)) from fault
