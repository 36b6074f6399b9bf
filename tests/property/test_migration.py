"""Migration of any weights under any manifest."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as extra
from support.migration_bundles import bits, files_of, write_legacy

from hloserve.bundle import load_manifest, read_bundle_weights
from hloserve.bundle.manifest_edit import EditRefused, remove_key, set_key
from hloserve.bundle.migration import Mode, migrate_bundle
from hloserve.core.dtypes import DTYPES, DType
from hloserve.core.errors import ManifestProblem
from hloserve.core.tensors import Array
from hloserve.core.yaml_text import YamlFault, load_yaml

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda name: name != "__metadata__"
)


@st.composite
def arrays(draw: Any) -> Array:
    """An array of any dtype, of rank 0 to 5, perhaps without elements, of any bits."""
    dtype: DType = draw(st.sampled_from(DTYPES))
    shape = draw(extra.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3))
    size = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype.token == "bool":
        data = bytes(byte & 1 for byte in data)
    made: Array = np.frombuffer(data, dtype.numpy).reshape(shape)
    return made


@settings(max_examples=60)
@given(st.dictionaries(NAMES, arrays(), max_size=4), st.sampled_from(["copy", "replace"]))
def test_every_bit_of_every_array_survives(weights: dict[str, Array], mode: Mode) -> None:
    """NaN payloads, -0.0, every dtype and rank, tensors without elements, none at all."""
    with tempfile.TemporaryDirectory() as directory:
        bundle = write_legacy(Path(directory) / "model", weights=weights)
        result = migrate_bundle(bundle, mode)

        assert ("migrated", "") == (result.outcome, result.reason)
        assert bits(weights) == bits(read_bundle_weights(bundle))
        assert "nothing_to_do" == migrate_bundle(bundle, mode).outcome


VERSIONS = st.sampled_from(["2", "2.0", '"2.0"', "'2.0'", '"2"', "'2'", '"2.1"'])
COMMENTS = st.sampled_from(["", " # old", "   #'weights_file: x'", "\t# tab", " "])
LINES = st.sampled_from(
    [
        *("", "# weights_file: no", "name: model", "description: >-", "  folded", "---"),
        *("batching: {compiled_batch_sizes: [1]}", "provenance:", "  weights_file: inner"),
        *("weights_file:", "weights_file: weights.safetensors  # as ever", "'name': 'é😀'"),
        *("executable_inputs: []", "executable_outputs: [ ]", "...", "input_shapes: ~"),
    ]
)


@st.composite
def manifests(draw: Any) -> str:
    """The text of a manifest of odd layout, or of no manifest at all."""
    version = f"format_version: {draw(VERSIONS)}{draw(COMMENTS)}"
    before, after = draw(st.lists(LINES, max_size=4)), draw(st.lists(LINES, max_size=6))
    indent = draw(st.sampled_from(["", "  "]))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    text: str = newline.join(indent + line for line in [*before, version, *after])
    end: str = draw(st.sampled_from(["", newline, newline * 2]))
    return text + end


@settings(max_examples=300)
@given(manifests() | st.text(max_size=30).map(lambda text: f"{text}\nformat_version: 2\n{text}"))
def test_edits_change_one_line_or_nothing(text: str) -> None:
    """What is not edited is refused; other lines stay as they are, byte for byte."""
    try:
        before = load_yaml(text)
    except YamlFault:
        return
    if not isinstance(before, dict) or "format_version" not in before:
        return
    try:
        named = set_key(text, "weights_file", "F", after="format_version")
        raised = set_key(named, "format_version", '"2.1"', after="")
        removed = remove_key(raised, "weights_file")
    except EditRefused:
        return
    after = load_yaml(removed)
    assert isinstance(after, dict)
    assert "2.1" == after.pop("format_version")
    before = {k: v for k, v in before.items() if k not in ("format_version", "weights_file")}
    assert repr(before) == repr(after)
    # Without their ends: the line before a removed last one that had none has none, too.
    kept = {line.rstrip("\r") for line in removed.split("\n")}
    changed = [line for line in text.split("\n") if line.rstrip("\r") not in kept]
    assert len(changed) <= 2


@settings(max_examples=60)
@given(manifests())
def test_odd_manifests_are_migrated_or_refused(text: str) -> None:
    """With a reason; a bundle that loaded loads to the same arrays."""
    with tempfile.TemporaryDirectory() as directory:
        bundle = write_legacy(Path(directory) / "model", text)
        try:
            load_manifest(bundle)
        except ManifestProblem:
            assert "failed" == migrate_bundle(bundle, "copy").outcome
            return
        before, arrays_before = files_of(bundle), bits(read_bundle_weights(bundle))

        result = migrate_bundle(bundle, "replace")

        assert arrays_before == bits(read_bundle_weights(bundle))
        if result.outcome == "failed":
            assert "cannot be edited" in result.reason
            assert before == files_of(bundle)
