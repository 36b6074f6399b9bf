"""YAML that others wrote: plain values within bounds, or one fault."""

import pytest
import yaml

from hloserve.core.yaml_text import MAX_DEPTH, MAX_VALUES, YamlFault, load_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("a: 2.1", {"a": 2.1}),
        ("a: '2.1'", {"a": "2.1"}),
        ("a: yes", {"a": True}),
        ("y: n", {"y": "n"}),
        ("a: ~\nb:\n", {"a": None, "b": None}),
        ("a: 2026-01-02T03:04:05Z", {"a": "2026-01-02T03:04:05Z"}),
        ("a: 2026-99-99", {"a": "2026-99-99"}),
        ("a: =", {"a": "="}),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("a: [1, {b: c}]", {"a": [1, {"b": "c"}]}),
        ("a: é", {"a": "é"}),
        ("", None),
        ("# nothing\n", None),
        ("a: " + "9" * 200, {"a": "9" * 200}),
    ],
)
def test_plain_values_are_read(text: str, value: object) -> None:
    """Mappings, lists, strings, numbers, booleans and null; nothing else exists."""
    assert value == load_yaml(text) == load_yaml(text, yaml.SafeLoader)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", ["line 2", "'a' appears twice"]),
        ("a: {b: 1, b: 1}", ["'b' appears twice"]),
        ("a: &x 1", ["anchors"]),
        ("a: &x [1]\nb: *x", ["anchors"]),
        ("a: !!str 1", ["tags"]),
        ("a: !!int ''", ["tags"]),
        ("a: !!python/object/apply:os.system [true]", ["tags"]),
        ("? [a]\n: 1", ["key must be a plain value"]),
        ("a: [", ["line 2"]),
        ("a: b: c", ["line 1"]),
        ("--- 1\n--- 2\n", ["second document"]),
        ("a: 0b_", ["base 2"]),
        ('a: "\\UFFFFFFFF"', ["Unicode"]),
        ('a: "\\ud800"', ["Unicode"]),
        ("a: \x01", ["not valid YAML"]),
        ("%YAML 9.0\n---\na: 1", ["YAML"]),
        ("[" * 100_000, ["nest"]),
        ("- " * (MAX_DEPTH + 1) + "a", ["nested deeper"]),
        ("[" + "0," * (MAX_VALUES + 1) + "]", ["more than 50000 values"]),
        ("a: \ud800", ["not valid YAML"]),
    ],
)
def test_fault_of_the_text_says_where_and_why(text: str, words: list[str]) -> None:
    """Whatever the library raises, one error of ours comes out."""
    with pytest.raises(YamlFault):  # its own words, but no other error
        load_yaml(text, yaml.SafeLoader)
    with pytest.raises(YamlFault) as caught:
        load_yaml(text)

    for word in words:
        assert word in str(caught.value)


def test_deepest_allowed_nesting_is_read() -> None:
    """The bound itself is allowed."""
    value: object = load_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)

    for _ in range(MAX_DEPTH - 1):
        assert isinstance(value, list)
        (value,) = value
    assert [] == value


@pytest.mark.parametrize(("text", "is_read"), [("[[]]", True), ("[[[]]]", False), ("[[0]]", True)])
def test_depth_is_bounded_as_asked(text: str, is_read: bool) -> None:
    """A caller that needs less may allow less."""
    if is_read:
        load_yaml(text, max_depth=2)
    else:
        with pytest.raises(YamlFault, match="deeper than 2 levels"):
            load_yaml(text, max_depth=2)


def test_number_of_values_is_bounded_as_asked() -> None:
    """A list and its two members are three values."""
    assert [1, 2] == load_yaml("[1, 2]", max_values=3)
    with pytest.raises(YamlFault, match="more than 2 values"):
        load_yaml("[1, 2]", max_values=2)
