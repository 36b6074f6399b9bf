"""Reading YAML within bounds."""

from pathlib import Path

import pytest

from hloserve.config.yaml_file import MAX_DEPTH, MAX_FILE_BYTES, MAX_VALUES, parse_yaml, read_yaml
from hloserve.core.errors import ConfigProblem


def test_file_is_plain_values(tmp_path: Path) -> None:
    """A node file becomes dicts, lists and scalars; a byte order mark does not matter."""
    file = tmp_path / "node.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: {b: [1, 2.5, true, null, text]}\n")

    assert {"a": {"b": [1, 2.5, True, None, "text"]}} == read_yaml(file)


def test_empty_file_gives_nothing(tmp_path: Path) -> None:
    """A file with only comments is a file without settings."""
    file = tmp_path / "node.yaml"
    file.write_text("# nothing yet\n")

    assert read_yaml(file) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1", "line 2"),
        ("a: 1\n b: 2", "line 2"),
        ("a: 1\na: 2", "'a' appears twice"),
        ("a: {b: 1, b: 2}", "'b' appears twice"),
        ("a: &x [1]\nb: *x", "anchors (&) and aliases (*) are not allowed"),
        ("a: !!python/name:os.system ''", "tags (!) are not allowed"),
        ("a: !custom 1", "tags (!) are not allowed"),
        ("a: !!binary aGk=", "tags (!) are not allowed"),
        ("a: 0b_", "not valid YAML"),
        ("? [1]\n: 2", "a key must be a plain value"),
        ("a: \x00", "not valid YAML"),
        ("a: 1\n---\nb: 2", "second document"),
        ("[" * (MAX_DEPTH + 1), "nested"),
        ("[" + "1," * MAX_VALUES + "]", "more than 20000 values"),
        ("{" * 100, "nested"),
    ],
)
def test_text_out_of_bounds_is_refused_with_its_reason(text: str, reason: str) -> None:
    """Whatever is wrong with the text of a node file is one problem that names the file."""
    with pytest.raises(ConfigProblem) as caught:
        parse_yaml(text, "node.yaml")

    assert "node.yaml" == caught.value.source
    assert reason in caught.value.reason


@pytest.mark.parametrize("text", ["2020-13-45", "9" * 5000])
def test_what_only_looks_like_a_date_or_number_is_text(text: str) -> None:
    """The setting's own type then refuses it, by the setting's name."""
    assert {"a": text} == parse_yaml(f"a: {text}", "node.yaml")


def test_alias_bomb_costs_nothing() -> None:
    """Text that would grow exponentially on reading is refused at its first alias."""
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]

    with pytest.raises(ConfigProblem, match="aliases"):
        parse_yaml("\n".join(lines), "node.yaml")


def test_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """A missing file, a directory, a huge file and a file that is not UTF-8 are all refused."""
    huge, binary = tmp_path / "huge.yaml", tmp_path / "binary.yaml"
    huge.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    binary.write_bytes(b"a: \xff")

    for file, reason in [
        (tmp_path / "absent.yaml", "No such file"),
        (tmp_path, "directory"),
        (huge, "larger than"),
        (binary, "not UTF-8"),
        (Path("nul\0"), "null"),
    ]:
        with pytest.raises(ConfigProblem, match=reason):
            read_yaml(file)
