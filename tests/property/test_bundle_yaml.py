"""Hostile YAML and hostile manifests."""

import contextlib

import yaml
from hypothesis import given
from hypothesis import strategies as st
from support import bundle_examples as examples
from support.bundle_strategies import mutations, names, plain_values

from hloserve.bundle.manifest import parse_manifest
from hloserve.bundle.yaml_writing import dump_yaml
from hloserve.core.errors import ManifestProblem
from hloserve.core.yaml_text import YamlFault, load_yaml

EXAMPLES = [
    examples.AFFINE,
    examples.CLASSIFIER,
    examples.VARIANTS,
    examples.HOOKED,
    examples.META,
]


@given(st.text() | st.text(" \n-:[]{}#&*!|>'\"%@`,?ab1.\\"))
def test_any_text_is_read_or_refused_with_our_error(text: str) -> None:
    """Nothing of the library's comes through."""
    with contextlib.suppress(YamlFault):
        load_yaml(text)


@given(
    st.dictionaries(names, plain_values, max_size=3),
    st.fixed_dictionaries({}, optional={"inputs": plain_values, "batching": plain_values}),
)
def test_written_document_is_read_back(block: dict[str, object], flow: dict[str, object]) -> None:
    """By our reader and by the usual one, in either style."""
    document = block | flow

    text = dump_yaml(document, frozenset(flow))

    assert document == (load_yaml(text) or {})
    assert document == (yaml.safe_load(text) or {})


@given(st.sampled_from(EXAMPLES).flatmap(lambda text: mutations(text.encode())), st.booleans())
def test_damaged_manifest_is_read_or_refused_with_our_error(
    content: bytes, has_hook_file: bool
) -> None:
    """A manifest with a few bytes changed is a manifest or a `ManifestProblem`."""
    with contextlib.suppress(ManifestProblem):
        manifest = parse_manifest(
            content.decode(errors="replace"), name="m", has_hook_file=has_hook_file, source="m"
        )
        assert len(manifest.variant_keys) == len(manifest.input_shapes)


_keys = st.sampled_from(
    [
        *("format_version", "name", "description", "kind", "meta", "batching", "input_shapes"),
        *("provenance", "weights_file", "executable_inputs", "executable_outputs"),
        *("client_inputs", "client_outputs", "x"),
    ]
)
_tensors = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("xy")},
        optional={
            "dtype": st.sampled_from(["f32", "f8_e5m2", "zz"]) | plain_values,
            "shape": st.sampled_from(["an", "a", "n", "", "wh"]) | plain_values,
            "dims": st.dictionaries(st.sampled_from("awhn"), st.integers(-2, 3)) | plain_values,
        },
    )
    | plain_values,
    max_size=3,
)
_values = (
    plain_values
    | _tensors
    | st.sampled_from(["2.1", "model", "meta"])
    | st.fixed_dictionaries({"compiled_batch_sizes": st.lists(st.integers(-1, 9)) | plain_values})
    | st.fixed_dictionaries({"calls": st.lists(st.sampled_from("abm")) | plain_values})
    | st.lists(st.dictionaries(st.sampled_from("awhn"), st.integers(-1, 3)), max_size=3)
)


@given(st.dictionaries(_keys, _values), st.booleans())
def test_any_values_of_known_keys_are_read_or_refused_with_our_error(
    document: dict[str, object], has_hook_file: bool
) -> None:
    """Whatever the sections hold, the rules that join them do not stumble."""
    text = dump_yaml(document, frozenset())

    try:
        manifest = parse_manifest(text, name="m", has_hook_file=has_hook_file, source="m")
    except ManifestProblem as problem:
        str(problem).encode()
    else:
        assert manifest.format_version in ("2.2", "2.1", "2.0", "2")
        assert manifest.variable_axes == () or len(manifest.variant_keys) > 0
