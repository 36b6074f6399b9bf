"""Write a bundle, load it, and get what was declared."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.bundle_strategies import as_mapping, io_specs, names, plain_values, sections, weights

from hloserve.bundle import IOSpec, load_manifest, read_bundle_weights, write_bundle
from hloserve.bundle.layout import find_programs
from hloserve.bundle.weights_writing import Layout
from hloserve.core.tensors import Array, TensorSpec

# Each example writes and syncs a directory.
disk = settings(max_examples=30, deadline=None)


def declared_shape(spec: IOSpec) -> tuple[int | None, ...]:
    """The shape that a spec in numpy order should have."""
    return tuple(
        None if axis == spec.batch_axis or extent == -1 else int(extent)
        for axis, extent in enumerate(spec.shape)
    )


def assert_declared(declared: list[IOSpec], specs: tuple[TensorSpec, ...]) -> None:
    """Specs say what their declarations said."""
    assert [(s.name, s.dtype, declared_shape(s), s.batch_axis) for s in declared] == [
        (s.name, s.dtype, s.shape, s.batch_axis) for s in specs
    ]
    for io_spec, spec in zip(declared, specs, strict=True):
        if io_spec.letters is not None:
            letters = [axis.letter for i, axis in enumerate(spec.axes) if i != spec.batch_axis]
            assert list(io_spec.letters) == letters


@disk
@given(
    st.booleans().flatmap(lambda is_batched: sections(io_specs(is_batched=is_batched))),
    sections(io_specs(allow_variable=True)),
    st.none() | sections(io_specs(allow_variable=True)),
    weights,
    st.dictionaries(names.filter(lambda name: name != "git_diff"), plain_values, max_size=2),
    st.sampled_from(["xla", "legacy"]),
)
def test_written_bundle_loads_as_declared(
    inputs: list[IOSpec],
    outputs: list[IOSpec],
    client_outputs: list[IOSpec] | None,
    tensors: dict[str, Array],
    provenance: dict[str, Any],
    layout: Layout,
) -> None:
    """Any declarations, weights and provenance without faults survive the disk."""
    with tempfile.TemporaryDirectory() as root:
        bundle = write_bundle(
            f"{root}/m",
            "m",
            inputs,
            outputs,
            {0: "program"},
            tensors,
            client_outputs=client_outputs,
            provenance=provenance,
            layout=layout,
            files={"model.py": ""},
        )
        manifest = load_manifest(bundle)
        loaded = read_bundle_weights(bundle)
        names = [program.path.name for program in find_programs(bundle, manifest)]

    assert_declared(inputs, manifest.executable_inputs)
    assert_declared(outputs, manifest.executable_outputs)
    assert_declared(outputs if client_outputs is None else client_outputs, manifest.outputs)
    assert ["model.mlir"] == names
    assert provenance == manifest.provenance
    assert () == manifest.warnings
    assert [(name, array.shape, array.tobytes()) for name, array in as_mapping(tensors)] == [
        (name, array.shape, array.tobytes()) for name, array in as_mapping(loaded)
    ]


@st.composite
def variant_cases(draw: Any) -> tuple[list[IOSpec], list[tuple[int, ...]]]:
    """Inputs with variable axes, and distinct sizes for all of those axes."""
    specs = io_specs(is_batched=True, allow_variable=True, max_rank=4)
    inputs = draw(sections(specs))
    # Letters that were asked for could tie two axes together; that is another property.
    inputs = [IOSpec(s.name, s.dtype, s.shape, s.batch_axis) for s in inputs]
    count = sum(
        extent == -1
        for spec in inputs
        for axis, extent in enumerate(spec.shape)
        if axis != spec.batch_axis
    )
    sizes = st.tuples(*[st.integers(1, 99)] * count)
    return inputs, draw(st.lists(sizes, min_size=1, max_size=3, unique=True)) if count else []


@disk
@given(variant_cases(), st.sets(st.integers(1, 64), min_size=1, max_size=3))
def test_variants_reach_the_axes_they_were_given_for(
    case: tuple[list[IOSpec], list[tuple[int, ...]]], batch_sizes: set[int]
) -> None:
    """Sizes in numpy order come back, through letters and keys, at the same axes."""
    inputs, variants = case
    if not inputs:
        return
    by_size = {size: f"program {size}" for size in batch_sizes}
    modules: Any = dict.fromkeys(variants, by_size) if variants else by_size
    with tempfile.TemporaryDirectory() as root:
        bundle = write_bundle(f"{root}/m", "m", inputs, [], modules, {}, input_shapes=variants)
        manifest = load_manifest(bundle)
        programs = find_programs(Path(bundle), manifest)

    axes = [
        (spec.name, axis)
        for spec in inputs
        for axis, extent in enumerate(spec.shape)
        if extent == -1 and axis != spec.batch_axis
    ]
    expected = [dict(zip(axes, variant, strict=True)) for variant in variants]
    got = [
        {
            (axis.input, axis.axis): size
            for axis, size in zip(manifest.variable_axes, key, strict=True)
        }
        for key in manifest.variant_keys
    ]
    assert expected == got
    indices = range(len(variants)) if variants else [None]
    assert [(index, size) for index in indices for size in sorted(batch_sizes)] == [
        (program.variant, program.size) for program in programs
    ]
