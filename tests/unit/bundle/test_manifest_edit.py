"""Changing one line of a manifest and nothing else."""

import pytest

from hloserve.bundle.manifest_edit import EditRefused, remove_key, set_key

NAME = "weights_file"


def named(text: str) -> str:
    """The text with the name of a copy in it."""
    return set_key(text, NAME, "weights.T.safetensors", after="format_version")


def raised(text: str) -> str:
    """The text with version 2.1."""
    return set_key(text, "format_version", '"2.1"', after="")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('format_version: "2.0"\n', 'format_version: "2.0"\nweights_file: F\n'),
        ("format_version: 2", "format_version: 2\nweights_file: F"),
        ("format_version: 2.0 # é\r\na: 1\r\n",
         "format_version: 2.0 # é\r\nweights_file: F\r\na: 1\r\n"),
        ("a: 1\r\nformat_version: 2", "a: 1\r\nformat_version: 2\r\nweights_file: F"),
        ("---\n  # c\n  'format_version' : 2\n  a: [1,\n 2]\n...\n",
         "---\n  # c\n  'format_version' : 2\n  weights_file: F\n  a: [1,\n 2]\n...\n"),
        ("é: 😀\nformat_version: '2'\n\n\n# end",
         "é: 😀\nformat_version: '2'\nweights_file: F\n\n\n# end"),
        # A key that is there keeps its line.
        ("weights_file: weights.safetensors # w\nformat_version: 2",
         "weights_file: F # w\nformat_version: 2"),
        ("weights_file:\nformat_version: 2\n", "weights_file: F\nformat_version: 2\n"),
        ('weights_file:   "a"\nformat_version: 2\n', "weights_file:   F\nformat_version: 2\n"),
        # Text that only looks like the key.
        ("x: |\n  format_version: 1\nformat_version: 2\n",
         "x: |\n  format_version: 1\nformat_version: 2\nweights_file: F\n"),
        ("x: .nan\nformat_version: 2\n", "x: .nan\nformat_version: 2\nweights_file: F\n"),
    ],
)  # fmt: skip
def test_key_is_set_on_one_line(before: str, after: str) -> None:
    """Comments, newlines, indentation and everything else stay."""
    assert after.replace("F", "weights.T.safetensors") == named(before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('format_version: "2.0"  # old\na: 1\n', 'format_version: "2.1"  # old\na: 1\n'),
        ("a: 1\nformat_version: 2", 'a: 1\nformat_version: "2.1"'),
        ("format_version: '2.0'\r\n", 'format_version: "2.1"\r\n'),
        ("'format_version':   2.0\n", "'format_version':   \"2.1\"\n"),
    ],
)
def test_value_is_replaced_alone(before: str, after: str) -> None:
    """Whatever it was written like."""
    assert after == raised(before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: 1\nweights_file: x # c\nb: 2\n", "a: 1\nb: 2\n"),
        ("a: 1\nweights_file: x\n", "a: 1\n"),
        ("a: 1\nweights_file:\n", "a: 1\n"),
        ("a: 1\nweights_file: x", "a: 1"),
        ("a: 1\r\nweights_file: x", "a: 1"),
        ("  weights_file: 'x'\n  a: 1", "  a: 1"),
        ("a: 1\n", "a: 1\n"),
    ],
)
def test_line_is_removed_whole(before: str, after: str) -> None:
    """With its comment and its newline."""
    assert after == remove_key(before, NAME)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "text", ["format_version: 2", "format_version: 2\na: 1\n", "a: 1\nformat_version: 2"]
)
def test_removing_undoes_adding(text: str, newline: str) -> None:
    """Byte for byte."""
    text = text.replace("\n", newline)

    assert text == remove_key(named(text), NAME)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{format_version: "2.0", a: 1}', "one key per line"),
        ("\ufeffformat_version: 2\n", "byte order mark"),
        ("format_version:\n  2\n", "not on one line"),
        ("format_version: >-\n  2\na: 1\n", "not on one line"),
        ("format_version: 2\nweights_file:\n  x\n", "not on one line"),
        ("format_version: 2\nweights_file: [x]\n", "not on one line"),
        ("format_version:\t2\n", "second YAML parser"),
        ("a: 1\n", "no line 'format_version'"),
        ("- 1\n", "not a mapping"),
        ("? format_version\n: 2\n", "not on one line"),
    ],
)
def test_what_one_line_cannot_say_is_refused(text: str, reason: str) -> None:
    """With the reason."""
    with pytest.raises(EditRefused, match=reason):
        named(text)


@pytest.mark.parametrize(
    "text",
    ["weights_file:\n  x\na: 1\n", "? weights_file\n: x\n",
     "--- {a: 1, weights_file: x}\n", "--- # c\n{weights_file: x}"]
)  # fmt: skip
def test_line_that_holds_more_is_not_removed(text: str) -> None:
    """The rest of it would go too."""
    with pytest.raises(EditRefused):
        remove_key(text, NAME)


def test_edit_is_parsed_before_it_is_believed() -> None:
    """What breaks the text, gives another value or reaches other keys is refused."""
    with pytest.raises(EditRefused, match="break the YAML"):
        set_key("format_version: 2\n", "- a", "x", after="format_version")
    with pytest.raises(EditRefused, match="give the value"):
        set_key("format_version: 2\n", "a: 1\nweights_file", "x", after="format_version")
    with pytest.raises(EditRefused, match="other keys"):
        named("format_version: 2\ra: |\r  the end of a text\r  has no newline")
