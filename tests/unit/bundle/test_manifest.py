"""Manifests: what is accepted, what follows, and what is refused."""

import os
from pathlib import Path

import pytest
from support import bundle_examples as examples
from support.bundle_examples import model, parse

from hloserve.bundle import load_manifest
from hloserve.bundle.manifest import MAX_MANIFEST_BYTES, parse_manifest
from hloserve.core.errors import ManifestProblem

X = '{name: x, dtype: f32, shape: "an", dims: {a: 3}}'
FIXED = '{name: q, dtype: f32, shape: "a", dims: {a: 3}}'


def findings_of(text: str, *, has_hook_file: bool = False) -> tuple[str, ...]:
    """What is wrong with a manifest."""
    with pytest.raises(ManifestProblem) as caught:
        parse(text, has_hook_file=has_hook_file)
    return caught.value.findings


def test_basic_manifest_parses() -> None:
    """A single program without batch axis: one input, one output, no sizes."""
    manifest = parse(examples.AFFINE, name="other")

    assert ("other", "model", "2.1") == (manifest.name, manifest.kind, manifest.format_version)
    assert "y = W x + c" == manifest.description
    assert [("x", (3,))] == [(spec.name, spec.shape) for spec in manifest.executable_inputs]
    assert [("y", (2,))] == [(spec.name, spec.shape) for spec in manifest.executable_outputs]
    assert (False, False) == (manifest.has_batch_axis, manifest.can_coalesce)
    assert ("weights.safetensors", (), ()) == (
        manifest.weights_file,
        manifest.compiled_batch_sizes,
        manifest.warnings,
    )
    assert (None, ("", 0)) == (manifest.representative_batch_axis, manifest.wire_batch_spec)
    assert not manifest.is_meta


def test_batched_manifest_parses() -> None:
    """Sizes are sorted, and requests can share a batch."""
    manifest = parse(examples.CLASSIFIER.replace("[1, 8, 32]", "[32, 1, 8]"))

    assert (1, 8, 32) == manifest.compiled_batch_sizes
    assert (None, 3, 224, 224) == manifest.inputs[0].shape
    assert (-1, 3, 224, 224) == manifest.inputs[0].wire_shape
    assert manifest.can_coalesce
    assert ("image", 1) == manifest.wire_batch_spec


def test_variants_resolve_in_order() -> None:
    """The key of a variant lists the sizes of the variable axes, fastest axis first."""
    manifest = parse(examples.VARIANTS)

    assert ["w", "h"] == [axis.letter for axis in manifest.variable_axes]
    assert ((1024, 1024), (1408, 704)) == manifest.variant_keys


def test_variant_key_follows_the_axes_and_not_the_mapping() -> None:
    """Keys of a mapping have no order."""
    manifest = parse(examples.VARIANTS.replace("{w: 1408, h: 704}", "{h: 704, w: 1408}"))

    assert ((1024, 1024), (1408, 704)) == manifest.variant_keys


def test_hooked_manifest_shows_clients_their_own_specs() -> None:
    """With a hook file the client specs are what clients see."""
    manifest = parse(examples.HOOKED, has_hook_file=True)

    assert [("INPUT__0", (-1, -1, 3))] == [(s.name, s.wire_shape) for s in manifest.inputs]
    assert [("OUTPUT__0", (-1, 6))] == [(s.name, s.wire_shape) for s in manifest.outputs]
    assert manifest.has_batch_axis
    assert not manifest.can_coalesce
    assert ("", 0) == manifest.wire_batch_spec
    assert 0 == manifest.representative_batch_axis


def test_hook_processes_are_none_unless_the_manifest_asks_for_them() -> None:
    """Hooks run on the server's threads by default."""
    asked = parse(examples.HOOKED + "hooks: {processes: 2}\n", has_hook_file=True)

    assert (0, 2) == (
        parse(examples.HOOKED, has_hook_file=True).hook_processes,
        asked.hook_processes,
    )


def test_client_sides_default_each_by_itself() -> None:
    """Client inputs alone leave the executable outputs to the client."""
    text = model(f"[{X}]", f"[{X}]", f"client_inputs: [{FIXED}]")

    manifest = parse(text, has_hook_file=True)

    assert ("q", "x") == (manifest.inputs[0].name, manifest.outputs[0].name)


def test_meta_manifest_parses() -> None:
    """A meta model has calls and client specs, and no program."""
    manifest = parse(examples.META, has_hook_file=True)

    assert manifest.is_meta
    assert ("backbone_a", "head_a") == manifest.calls
    assert () == manifest.executable_inputs


@pytest.mark.parametrize("version", ['"2.2"', "2.2", '"2.1"', "2.1", '"2.0"', "2.0", '"2"', "2"])
def test_versions_are_accepted_as_text_and_as_numbers(version: str) -> None:
    """YAML takes an unquoted 2.1 for a number."""
    manifest = parse(model().replace('"2.1"', version))

    assert version.strip('"') == manifest.format_version


@pytest.mark.parametrize("version", ['"1.0"', "2.3", "3", "true", "[2]", "'2.1 '"])
def test_other_versions_are_refused(version: str) -> None:
    """A format that we do not know is not guessed at."""
    (finding,) = findings_of(model().replace('"2.1"', version))

    assert 'format_version must be one of "2.2", "2.1", "2.0", "2"' in finding


def test_missing_version_is_refused() -> None:
    """The version is the one key that every manifest has."""
    (finding,) = findings_of(model().replace('format_version: "2.1"', ""))

    assert "format_version is missing" in finding


@pytest.mark.parametrize(
    ("shape", "axis"), [("whcn", 1), ("cn", 1), ("nc", 2), ("chwb", 1), ("wnh", 2), ("n", 1)]
)
def test_wire_batch_spec_counts_axes_of_the_wire_shape(shape: str, axis: int) -> None:
    """The axis that a gateway looks at is that of the message, counted from 1."""
    dims = ", ".join(f"{letter}: 2" for letter in shape if letter not in "nb")
    manifest = parse(model(f'[{{name: x, dtype: f32, shape: "{shape}", dims: {{{dims}}}}}]'))

    assert ("x", axis) == manifest.wire_batch_spec


def test_wire_batch_spec_skips_inputs_without_batch_axis() -> None:
    """The first client input that has the axis is the one to count."""
    client = (
        'client_inputs: [{name: query, dtype: f32, shape: ""}, {name: keys, dtype: f32, shape: n}]'
    )

    manifest = parse(model(f"[{X}]", f"[{X}]", client), has_hook_file=True)

    assert ("keys", 1) == manifest.wire_batch_spec


def test_inputs_of_different_ranks_share_the_batch() -> None:
    """Ranks 4, 3 and 2, batch last in each; the first input is the representative."""
    inputs = [
        '{name: i, dtype: f32, shape: "whcn", dims: {w: 2, h: 3, c: 4}}',
        '{name: j, dtype: f32, shape: "acn", dims: {a: 2, c: 3}}',
        '{name: k, dtype: f32, shape: "an", dims: {a: 2}}',
    ]
    manifest = parse(model(f"[{', '.join(inputs)}]"))

    assert 0 == manifest.representative_batch_axis


def test_batch_axes_may_be_at_different_positions() -> None:
    """`nc` and `cn` load together; the representative axis is the first input's."""
    nc = '{name: i, dtype: f32, shape: "nc", dims: {c: 4}}'
    cn = '{name: j, dtype: f32, shape: "cn", dims: {c: 4}}'

    manifest = parse(model(f"[{nc}, {cn}]"))

    assert [1, 0] == [spec.batch_axis for spec in manifest.executable_inputs]
    assert 1 == manifest.representative_batch_axis


def test_mixed_batchability_names_the_unbatched_inputs() -> None:
    """All executable inputs have a batch axis, or none has."""
    (finding,) = findings_of(model(f"[{X}, {FIXED}]"))

    assert "'q' have no batch axis, but 'x' have" in finding


def test_output_without_batch_axis_only_disables_coalescing() -> None:
    """Outputs are not checked for a batch axis."""
    manifest = parse(model(f"[{X}]", f"[{FIXED}]"))

    assert (True, False) == (manifest.has_batch_axis, manifest.can_coalesce)


def test_variable_output_axis_needs_no_variants() -> None:
    """The program's types say how large such an output is."""
    manifest = parse(model(f"[{X}]", '[{name: y, dtype: f32, shape: "an", dims: {a: -1}}]'))

    assert (None, None) == manifest.outputs[0].shape


@pytest.mark.parametrize("section", ["executable_inputs", "executable_outputs"])
def test_missing_section_is_refused_for_models(section: str) -> None:
    """A model says what its program takes and returns; null counts as missing."""
    text = model().replace(f"{section}: []", f"{section}:")

    (finding,) = findings_of(text)

    assert f"{section} is missing" in finding


def test_empty_sections_are_legal() -> None:
    """A program may take nothing but weights."""
    manifest = parse(model())

    assert ((), ()) == (manifest.inputs, manifest.outputs)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("kind: ensemble", ["kind must be one of model, meta", "'ensemble' (str)"]),
        ("kind: 3", ["kind must be one of", "3 (int)"]),
        ("batching: [1]", ["batching must be a mapping", "[1] (list)"]),
        ("batching: {compiled_batch_sizes: 8}", ["must be a list of integers", "8 (int)"]),
        (
            "batching: {compiled_batch_sizes: [0]}",
            ["compiled_batch_sizes[0]", "above 0", "0 (int)"],
        ),
        ("batching: {compiled_batch_sizes: [1.0]}", ["1.0 (float)"]),
        ("batching: {compiled_batch_sizes: [true]}", ["True (bool)"]),
        ("batching: {compiled_batch_sizes: ['1']}", ["'1' (str)"]),
        ("batching: {compiled_batch_sizes: [-8]}", ["-8 (int)"]),
        ("batching: {compiled_batch_sizes: [1, 8]}", ["lists 1, 8", "no executable input"]),
        ("weights_file: a/b", ["weights_file", "'a/b' (str)"]),
        ("weights_file: ..", ["weights_file", "'..' (str)"]),
        ("weights_file: .", ["weights_file"]),
        ('weights_file: ""', ["weights_file"]),
        ('weights_file: "a\\\\b"', ["weights_file"]),
        ('weights_file: "a\\0b"', ["weights_file"]),
        ("weights_file: 3", ["weights_file", "3 (int)"]),
        (f"client_inputs: [{FIXED}]", ["client_inputs is only", "add model.py"]),
        (f"client_outputs: [{FIXED}]", ["client_outputs is only", "add model.py"]),
        ("input_shapes: [{w: 1}]", ["no executable input has a variable axis"]),
        ("input_shapes: {w: 1}", ["input_shapes must be a list"]),
        ("input_shapes: [3]", ["input_shapes[0] must be a mapping", "3 (int)"]),
        ("input_shapes: [{w: 0}]", ["input_shapes[0]['w']", "0 (int)"]),
        ("input_shapes: [{w: true}]", ["input_shapes[0]['w']", "True (bool)"]),
        ("input_shapes: [{w1: 2}]", ["input_shapes[0]", "'w1' (str)"]),
        ("input_shapes: [{n: 2}]", ["input_shapes[0]", "'n' (str)"]),
        ("input_shapes: [{2: 2}]", ["input_shapes[0]", "2 (int)"]),
        ("hooks: 2", ["hooks must be a mapping like {processes: 2}", "2 (int)"]),
        ("hooks: {processes: -1}", ["hooks.processes", "from 0 to 64", "-1 (int)"]),
        ("hooks: {processes: 65}", ["hooks.processes", "from 0 to 64", "65 (int)"]),
        ("hooks: {processes: true}", ["hooks.processes", "True (bool)"]),
    ],
)
def test_fault_of_a_key_names_key_rule_and_value(more: str, words: list[str]) -> None:
    """Each rule is refused with one sentence."""
    (finding,) = findings_of(model(more=more))

    for word in words:
        assert word in finding


@pytest.mark.parametrize("section", ["executable_inputs", "executable_outputs"])
def test_section_that_is_no_list_is_refused(section: str) -> None:
    """A mapping where a list of tensors belongs is a common slip."""
    (finding,) = findings_of(model().replace(f"{section}: []", f"{section}: {{x: f32}}"))

    assert f"{section} must be a list of tensors" in finding


@pytest.mark.parametrize("section", ["executable", "client"])
def test_names_are_unique_within_a_section(section: str) -> None:
    """Two tensors of one name cannot be told apart on the wire."""
    text = model(f"[{X}]", f"[{X}]") + f"client_inputs: [{X}]\nclient_outputs: [{X}]\n"

    (finding,) = findings_of(
        text.replace(f"{section}_inputs: [{X}]", f"{section}_inputs: [{X}, {X}]"),
        has_hook_file=True,
    )

    assert f"{section}_inputs holds 'x' twice" in finding


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ("", ["w of image", "h of image", "no input_shapes"]),
        ("input_shapes: []", ["no input_shapes"]),
        ("input_shapes: [{w: 1}]", ["input_shapes[0] lacks a size for 'h'"]),
        ("input_shapes: [{w: 1, h: 1, c: 3}]", ["sizes for 'c'", "'w', 'h'"]),
        (
            "input_shapes: [{w: 1, h: 1}, {w: 2, h: 1}, {h: 1, w: 1}]",
            ["input_shapes[2] has the same sizes as input_shapes[0]"],
        ),
    ],
)
def test_variants_must_size_the_variable_axes_exactly(shapes: str, words: list[str]) -> None:
    """A variable axis has a size in every variant, nothing else has, and no variant is twice."""
    text = examples.VARIANTS[: examples.VARIANTS.index("input_shapes")] + shapes

    (finding,) = findings_of(text)

    for word in words:
        assert word in finding


def test_shared_variable_letter_sizes_both_inputs() -> None:
    """Variants look sizes up by letter, also across inputs."""
    ids = '{name: ids, dtype: i32, shape: "ln", dims: {l: -1}}'
    mask = '{name: mask, dtype: i32, shape: "ln", dims: {l: -1}}'

    manifest = parse(model(f"[{ids}, {mask}]", more="input_shapes: [{l: 128}]"))

    assert ((128, 128),) == manifest.variant_keys


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("  calls: [backbone_a, head_a]", "  calls: []"), []),
        (("meta:\n  calls: [backbone_a, head_a]", ""), ["meta must be a mapping", "nothing"]),
        (("  calls: [backbone_a, head_a]", "  x: 1"), ["meta.calls must be a list", "nothing"]),
        (("[backbone_a, head_a]", "a"), ["meta.calls must be a list", "'a' (str)"]),
        (("[backbone_a, head_a]", "[a, 3]"), ["meta.calls holds 3 (int)"]),
        (("[backbone_a, head_a]", "[a, b, a]"), ["meta.calls repeats 'a'"]),
        (("[backbone_a, head_a]", "[a, m]"), ["the bundle itself ('m')"]),
        (("client_inputs:\n  -", "client_inputs: []\nx:\n  -"), ["client_inputs is empty"]),
        (("client_outputs:\n  -", "x:\n  -"), ["client_outputs is missing"]),
        (("kind: meta", "kind: meta\ninput_shapes: [{w: 1}]"), ["input_shapes is only for kind"]),
        (("dtype: u8", "dtype: f8_e4m3"), ["'INPUT__0' faces clients with dtype f8_e4m3"]),
    ],
)
def test_rules_of_meta_models(change: tuple[str, str], words: list[str]) -> None:
    """A meta model names its calls and its client specs."""
    text = examples.META.replace(*change)
    assert text != examples.META

    if not words:
        assert () == parse(text, has_hook_file=True).calls
        return
    (finding,) = findings_of(text, has_hook_file=True)

    for word in words:
        assert word in finding


def test_meta_model_needs_a_hook_file() -> None:
    """Without code there is nothing to run."""
    (finding,) = findings_of(examples.META)

    assert "needs model.py" in finding


FP8 = '{name: z, dtype: f8_e5m2, shape: "an", dims: {a: 3}}'


def test_fp8_is_refused_where_clients_see_it() -> None:
    """V2 has no FP8; executable specs face clients unless client specs replace them."""
    (finding,) = findings_of(model(f"[{FP8}]", f"[{X}]"))
    assert "executable_inputs: 'z' faces clients with dtype f8_e5m2" in finding

    (finding,) = findings_of(
        model(f"[{FP8}]", f"[{X}]", f"client_outputs: [{X}]"), has_hook_file=True
    )
    assert "executable_inputs: 'z'" in finding

    (finding,) = findings_of(
        model(f"[{X}]", f"[{X}]", f"client_outputs: [{FP8}]"), has_hook_file=True
    )
    assert "client_outputs: 'z'" in finding


def test_fp8_is_accepted_behind_hooks() -> None:
    """A hook may turn what clients send into FP8."""
    more = f"client_inputs: [{X}]\nclient_outputs: [{X}]"

    manifest = parse(model(f"[{FP8}]", f"[{FP8}]", more), has_hook_file=True)

    assert "f8_e5m2" == manifest.executable_inputs[0].dtype.token


def test_all_findings_come_at_once() -> None:
    """An author fixes a manifest in one round."""
    findings = findings_of(
        "format_version: 9\nkind: x\nexecutable_inputs:\n"
        "  - {name: a, dtype: zz, shape: cc}\n"
        "  - {name: a, dtype: f32, shape: k}\n"
        "executable_outputs: 3\n"
        "batching: {compiled_batch_sizes: [x, 0]}\n"
        "weights_file: /etc/passwd\n"
        "client_inputs: []\n"
    )

    assert len(findings) == 11


def test_findings_are_bounded() -> None:
    """A hostile manifest does not become a message of megabytes."""
    findings = findings_of(model(f"[{', '.join(['3'] * 5000)}]"))

    assert len(findings) == 51
    assert "4950 more" in findings[-1]


def test_faulty_tensor_is_not_reported_again_as_unbatched() -> None:
    """A rule across tensors waits until the tensors parse."""
    (finding,) = findings_of(model(f'[{X}, {{name: q, dtype: zz, shape: "an", dims: {{a: 3}}}}]'))

    assert "dtype" in finding


def test_unknown_keys_are_warned_about() -> None:
    """A misspelt key is ignored, and said so, once per place."""
    tensor = '{name: q, dtype: f32, shape: "", dim: {}}'
    more = "bacthing: {}\nbatching: {sizes: []}\nmeta: {call: []}\nprovenance: 3\n"

    manifest = parse(model(f"[{tensor}]", more=more))

    text = "\n".join(manifest.warnings)
    for word in ("'bacthing'", "'sizes'", "'dim'", "'call'", "provenance is ignored", "meta is ig"):
        assert word in text
    assert 6 == len(manifest.warnings)


def test_repeated_batch_size_is_warned_about() -> None:
    """The same size twice means the size once."""
    manifest = parse(model(f"[{X}]", more="batching: {compiled_batch_sizes: [8, 1, 8]}"))

    assert (1, 8) == manifest.compiled_batch_sizes
    assert "repeats 8" in manifest.warnings[0]


def test_null_counts_as_absent_for_optional_sections() -> None:
    """A key without a value is the same as no key."""
    keys = ["kind", "meta", "batching", "input_shapes", "provenance", "weights_file", "name"]
    keys += ["client_inputs", "client_outputs", "description"]

    manifest = parse(model(more="".join(f"{key}:\n" for key in keys)))

    assert ("", {}, None) == (manifest.description, manifest.provenance, manifest.client_inputs)
    assert () == parse(model(more="batching: {compiled_batch_sizes: }")).compiled_batch_sizes


def test_provenance_and_description_are_free() -> None:
    """Neither is validated; other types of description are turned into text."""
    manifest = parse(model(more="description: 3\nprovenance: {a: [1, {b: c}], 4: d}"))

    assert "3" == manifest.description
    assert {"a": [1, {"b": "c"}], "4": "d"} == manifest.provenance


def test_name_comes_from_outside_of_the_text() -> None:
    """The directory decides; the text is asked only outside of a bundle."""
    assert "m" == parse(model(more="name: 3")).name
    assert "z" == parse(model(more="name: z"), name="").name
    assert "" == parse(model(), name="").name
    with pytest.raises(ManifestProblem, match="name must be a string"):
        parse(model(more="name: 3"), name="")


@pytest.mark.parametrize("text", ["", "[]", "3", "a"])
def test_root_must_be_a_mapping(text: str) -> None:
    """An empty file is not a manifest either."""
    (finding,) = findings_of(text)

    assert "root must be a mapping" in finding


def test_faults_of_the_yaml_say_the_line() -> None:
    """The text's own faults are findings too."""
    (finding,) = findings_of(model(more="name: a\nname: b\n"))

    assert "manifest.yaml: line 5" in finding


def test_loaded_manifest_is_called_as_its_directory(tmp_path: Path) -> None:
    """Renaming the directory renames the model."""
    bundle = examples.make_bundle(tmp_path / "production", examples.AFFINE)

    assert "production" == load_manifest(bundle).name == load_manifest(str(bundle)).name


def test_name_of_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.` has a name too."""
    bundle = examples.make_bundle(tmp_path / "here", examples.AFFINE)
    monkeypatch.chdir(bundle)

    assert "here" == load_manifest(".").name


@pytest.mark.parametrize("hook_file", ["model.py", "model.jl"])
def test_hook_file_permits_client_specs(tmp_path: Path, hook_file: str) -> None:
    """Either server's hook file counts here; whether it can run is another question."""
    bundle = examples.make_bundle(tmp_path / "m", examples.HOOKED)
    with pytest.raises(ManifestProblem, match="add model\\.py"):
        load_manifest(bundle)

    (bundle / hook_file).write_text("")

    assert load_manifest(bundle).client_inputs is not None


def test_missing_things_are_told_apart(tmp_path: Path) -> None:
    """No directory, no manifest, and a file in place of a directory."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")

    for name, reason in (
        ("nowhere", "no such directory"),
        ("empty", "manifest.yaml is missing"),
        ("file", "cannot be read: Not a directory"),
    ):
        with pytest.raises(ManifestProblem, match=reason):
            load_manifest(tmp_path / name)


def test_manifest_must_be_a_regular_file(tmp_path: Path) -> None:
    """A directory or a fifo in its place is refused, and does not block."""
    for name in ("directory", "fifo"):
        (tmp_path / name).mkdir()
    (tmp_path / "directory" / "manifest.yaml").mkdir()
    os.mkfifo(tmp_path / "fifo" / "manifest.yaml")

    with pytest.raises(ManifestProblem, match="it is a directory"):
        load_manifest(tmp_path / "directory")
    with pytest.raises(ManifestProblem, match="it is not a regular file"):
        load_manifest(tmp_path / "fifo")


def test_manifest_must_be_utf8_text(tmp_path: Path) -> None:
    """Other encodings are named, not guessed."""
    (tmp_path / "manifest.yaml").write_bytes(examples.AFFINE.encode("utf-16"))

    with pytest.raises(ManifestProblem, match="not UTF-8 text \\(at byte 0\\)"):
        load_manifest(tmp_path)


def test_manifest_is_read_up_to_a_bound(tmp_path: Path) -> None:
    """A manifest of gigabytes is not read into memory."""
    with open(tmp_path / "manifest.yaml", "wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(ManifestProblem, match=f"larger than {MAX_MANIFEST_BYTES} bytes"):
        load_manifest(tmp_path)


def test_directory_name_must_be_utf8(tmp_path: Path) -> None:
    """No client could ask for another name."""
    bundle = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(bundle)

    with pytest.raises(ManifestProblem, match="not UTF-8; rename it") as caught:
        load_manifest(os.fsdecode(bundle))

    str(caught.value).encode()


def test_source_is_what_errors_call_the_bundle() -> None:
    """The caller says what a text is called."""
    with pytest.raises(ManifestProblem, match="bundle here: "):
        parse_manifest("", name="m", has_hook_file=False, source="here")
