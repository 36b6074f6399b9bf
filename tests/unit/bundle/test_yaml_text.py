"""YAML that others wrote, and YAML that we write."""

import pytest
import yaml

from hloserve.bundle.yaml_text import MAX_DEPTH, MAX_VALUES, Quoted, YamlFault, dump_yaml, load_yaml


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


@pytest.mark.parametrize(
    "text", ["no", "YES", "y", "N", "null", "~", "1", "1e3", "0o7", "2.1", ".inf", "", " a", "a: b"]
)
def test_strings_that_look_like_something_else_are_quoted(text: str) -> None:
    """A tensor called `no` comes back as a string from every reader of YAML."""
    written = dump_yaml({"k": text, text: 1}, frozenset())

    assert f'k: "{text}"' in written
    assert {"k": text, text: 1} == load_yaml(written) == yaml.safe_load(written)


def test_layout_is_one_line_per_entry_of_a_flow_section() -> None:
    """Tensors are written as people write them."""
    document = {
        "format_version": Quoted("2.1"),
        "inputs": [{"name": "x", "shape": Quoted("a"), "dims": {"a": 3}}, {"name": "z"}],
        "batching": {"sizes": [1, 8]},
        "empty": [],
        "provenance": {"tools": ["a", "b"], "nothing": {}},
    }

    written = dump_yaml(document, frozenset({"inputs", "batching", "empty"}))

    assert (
        'format_version: "2.1"\n'
        "inputs:\n"
        '  - {name: x, shape: "a", dims: {a: 3}}\n'
        "  - {name: z}\n"
        "batching: {sizes: [1, 8]}\n"
        "empty: []\n"
        "provenance:\n  tools:\n    - a\n    - b\n  nothing: {}\n"
    ) == written


def test_same_list_twice_is_written_out_twice() -> None:
    """The writer uses no anchors, which the reader refuses."""
    dims = {"a": 1}

    written = dump_yaml({"x": [dims, dims], "y": dims}, frozenset({"x"}))

    assert "&" not in written
    assert {"x": [dims, dims], "y": dims} == load_yaml(written)
