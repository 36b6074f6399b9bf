"""YAML that we write comes back from every reader as it was."""

import pytest
import yaml

from hloserve.bundle.yaml_writing import Quoted, dump_yaml
from hloserve.core.yaml_text import load_yaml


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
