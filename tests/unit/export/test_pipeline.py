"""The pipeline: one trace for all sizes, what a bundle declares, and nothing left of a failure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typing_extensions import override

from hloserve.bundle import IOSpec, load_manifest
from hloserve.core.errors import BundleProblem
from hloserve.core.tensors import Array
from hloserve.engine.programs.mlir import read_program
from hloserve.export import ExportProblem, ExportProgress, ProofFailed, export_jax, export_source
from hloserve.export.jax.source import JaxSource
from hloserve.export.options import ExportOptions
from hloserve.export.source import Shape, SymbolicTraceFailed, Traced

pytestmark = pytest.mark.xla

_X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
_W = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


def _predict(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def _by_size(x: Any, w: Any) -> Any:
    """Decides by the batch size in Python, so that it cannot be traced with an open one."""
    return jnp.concatenate([row[None] @ w for row in x])


class _CountingSource(JaxSource):
    """Counts its traces, and can be told to spoil them."""

    def __init__(self, function: Any, examples: Any, weights: Any, options: ExportOptions) -> None:
        super().__init__(function, examples, weights, options)
        self.shapes: list[Sequence[Shape]] = []
        self.renames = False

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        self.shapes.append(shapes)
        traced = super().trace(shapes)
        if self.renames and len(self.shapes) > 2:
            renamed = tuple((f"{name}.again", array) for name, array in traced.weights)
            return Traced(traced.artifact, renamed, traced.output_names)
        return traced


def _source(function: Any, directory: Path, **options: Any) -> tuple[_CountingSource, Any]:
    chosen: Any = {"dir": directory / "model", **options}
    return _CountingSource(function, {"x": _X}, [("w", _W)], chosen), chosen


def test_export_of_several_sizes_traces_once(tmp_path: Path) -> None:
    """However many sizes there are, the model is traced once, with an open batch."""
    source, options = _source(_predict, tmp_path, batch_sizes=[1, 8, 32])

    report = export_source(source, options)

    assert [[("batch", 4)]] == source.shapes
    assert "once, batch open" == report.tracing
    files = sorted(path.name for path in report.directory.glob("*.mlir"))
    assert ["model.b1.mlir", "model.b32.mlir", "model.b8.mlir"] == files


def test_bundle_is_weights_and_programs_and_little_more(tmp_path: Path) -> None:
    """No weight is stored twice, in no program and in no second file."""
    weights = np.random.default_rng(0).normal(size=(500, 400)).astype(np.float32)

    report = export_jax(
        _predict,
        (np.ones((2, 500), np.float32),),
        [("w", weights)],
        dir=tmp_path / "model",
        batch_sizes=[1, 8, 32],
        sample_inputs=lambda random, rows: [random.normal(size=(rows, 500)).astype(np.float32)],
    )

    programs = sum(path.stat().st_size for path in report.directory.glob("*.mlir"))
    assert weights.nbytes == report.weights_bytes
    assert programs < 3 * 1024
    assert report.bundle_bytes - weights.nbytes - programs < 2 * 1024


def test_model_that_depends_on_the_batch_size_is_traced_per_size(tmp_path: Path) -> None:
    """Where an open batch does not work each size has a trace, and the report says why."""
    source, options = _source(_by_size, tmp_path, batch_sizes=[1, 3])

    report = export_source(source, options)

    assert [[("batch", 4)], [(1, 4)], [(3, 4)]] == source.shapes
    assert report.tracing.startswith("per size (2 traces): ")
    spec = load_manifest(report.directory).executable_outputs[0]
    assert "output: f32[n,5]" == str(spec)


def test_one_size_without_an_open_trace_is_probed_by_another(tmp_path: Path) -> None:
    """With one size, a second one tells which output axis follows the batch."""
    source, options = _source(_by_size, tmp_path, batch_sizes=[5])  # outputs are (5, 5)

    report = export_source(source, options)

    assert [[("batch", 4)], [(5, 4)], [(6, 4)]] == source.shapes
    assert 0 == load_manifest(report.directory).executable_outputs[0].batch_axis


def test_dynamic_batch_is_one_program(tmp_path: Path) -> None:
    """A dynamic bundle has one program with an open axis, and format 2.2 says so."""
    report = export_jax(
        _predict,
        {"x": _X},
        [("w", _W)],
        dir=tmp_path / "model",
        batch_sizes="dynamic",
        dynamic_sizes=[1, 7],
    )

    artifact = (report.directory / "model.mlir").read_bytes()
    assert (None, 4) == read_program(artifact, "model.mlir").signature.inputs[0].shape
    text = (report.directory / "manifest.yaml").read_text()
    assert 'format_version: "2.2"' in text
    assert [1, 7] == [program.size for program in report.programs]


def _of_every_kind(x: Any, w: Any) -> dict[str, Any]:
    """Operations that an open trace writes in a dynamic form."""
    image = x.reshape(x.shape[0], 2, 2, 1)
    return {
        "best": jax.lax.top_k(x @ w, 2)[0],
        "sorted": jnp.sort(x, axis=1),
        "summed": jnp.cumsum(x, axis=1),
        "pooled": jax.lax.reduce_window(
            image, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1,) * 4, "SAME"
        ),
        "picked": jnp.take_along_axis(x, jnp.argsort(x, axis=1)[:, :1], axis=1),
        "padded": jnp.pad(x, ((0, 0), (1, 1))),
        "positions": x + jnp.arange(x.shape[0])[:, None] * 0 + jnp.arange(x.shape[1]),
    }


@pytest.mark.parametrize("sizes", [[1, 3], "dynamic"])
def test_operations_that_are_dynamic_in_an_open_trace_survive(tmp_path: Path, sizes: Any) -> None:
    """After refining they are plain operations, and a server refines those of a dynamic bundle."""
    source, options = _source(_of_every_kind, tmp_path, batch_sizes=sizes)

    report = export_source(source, options)

    assert 1 == len(source.shapes)
    if sizes != "dynamic":
        program = read_program((report.directory / "model.b3.mlir").read_bytes(), "model.b3.mlir")
        assert frozenset() == program.custom_calls
        assert "dynamic_" not in str(program.module)


def test_dynamic_batch_without_an_open_trace_is_refused(tmp_path: Path) -> None:
    """What cannot be traced with an open batch is told to list its sizes."""
    source, options = _source(_by_size, tmp_path, batch_sizes="dynamic")

    with pytest.raises(ExportProblem, match=r'batch_sizes="dynamic" needs .*list the sizes'):
        export_source(source, options)

    assert [] == list(tmp_path.iterdir())


def test_traces_with_other_weights_are_refused(tmp_path: Path) -> None:
    """One weights file serves all programs, so all traces must have the same weights."""
    source, options = _source(_by_size, tmp_path, batch_sizes=[1, 3])
    source.renames = True

    with pytest.raises(ExportProblem, match="weights of two traces differ"):
        export_source(source, options)

    assert [] == list(tmp_path.iterdir())


class _PruningSource(JaxSource):
    """Says that it has a weight more than its program takes."""

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        traced = super().trace(shapes)
        return Traced(traced.artifact, (*traced.weights, ("ghost", _W)), traced.output_names)


class _LiftingSource(JaxSource):
    """Says that it has a weight less than its program takes."""

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        traced = super().trace(shapes)
        return Traced(traced.artifact, traced.weights[1:], traced.output_names)


class _CastingSource(JaxSource):
    """Hands a weight over in another type than its program takes."""

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        traced = super().trace(shapes)
        halved = tuple((name, array.astype(np.float16)) for name, array in traced.weights)
        return Traced(traced.artifact, halved, traced.output_names)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (_PruningSource, "takes 2 arguments, .* 1 inputs and 2 weights.*keep_unused"),
        (_LiftingSource, "takes 2 arguments, .* 1 inputs and 0 weights.*lifted"),
        (
            _CastingSource,
            "weight 'w' is tensor<4x5xf32> in the traced program, and tensor<4x5xf16>",
        ),
    ],
)
@pytest.mark.parametrize("sizes", [None, [1, 3]])
def test_program_with_other_arguments_is_refused(
    tmp_path: Path, kind: type[JaxSource], said: str, sizes: Any
) -> None:
    """Arguments that were pruned, lifted or cast are found before anything is written."""
    options: Any = {"dir": tmp_path / "model", "batch_sizes": sizes}

    with pytest.raises(ExportProblem, match=said):
        export_source(kind(_predict, {"x": _X}, [("w", _W)], options), options)

    assert [] == list(tmp_path.iterdir())


class _WrongSource(JaxSource):
    """Runs another model than it traces."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        return [array + 1 for array in super().run(inputs)]


def test_failed_proof_leaves_nothing(tmp_path: Path) -> None:
    """A program that computes something else is never written."""
    options: Any = {"dir": tmp_path / "deep" / "model", "batch_sizes": [1, 3]}

    with pytest.raises(ProofFailed):
        export_source(_WrongSource(_predict, {"x": _X}, [("w", _W)], options), options)

    assert [] == list(tmp_path.iterdir())


def test_failed_export_leaves_the_old_bundle(tmp_path: Path) -> None:
    """Replacing a bundle happens in one step at the end, or not at all."""
    options: Any = {"dir": tmp_path / "model", "overwrite": True}
    export_source(JaxSource(_predict, {"x": _X}, [("w", _W)], options), options)
    before = (tmp_path / "model" / "manifest.yaml").read_bytes()

    with pytest.raises(ProofFailed):
        export_source(_WrongSource(_predict, {"x": _X}, [("w", _W)], options), options)

    assert before == (tmp_path / "model" / "manifest.yaml").read_bytes()
    assert ["model"] == [path.name for path in tmp_path.iterdir()]


def test_existing_bundle_is_replaced_only_when_asked(tmp_path: Path) -> None:
    """An existing directory is told before any work, and `overwrite` replaces it."""
    export_jax(_predict, (_X,), [("w", _W)], dir=tmp_path / "model", batch_sizes=[1])
    source, options = _source(_predict, tmp_path)

    with pytest.raises(ExportProblem, match="overwrite=True"):
        export_source(source, options)

    assert [] == source.shapes
    export_jax(_predict, (_X,), [("w", _W)], dir=tmp_path / "model", overwrite=True)
    programs = [path.name for path in (tmp_path / "model").glob("*.mlir")]
    assert ["model.mlir"] == programs


def test_disk_that_fails_after_all_is_a_bundle_problem(tmp_path: Path) -> None:
    """What comes into the way while the model is traced is told in words."""
    parent = tmp_path / "models"

    class Blocking(ExportProgress):
        @override
        def step(self, what: str, done: int, total: int) -> None:
            parent.touch()

    with pytest.raises(BundleProblem, match="cannot be written"):
        export_jax(_predict, (_X,), [("w", _W)], dir=parent / "model", progress=Blocking())


def test_shape_variants_share_one_set_of_weights(tmp_path: Path) -> None:
    """Each variant is traced once; axes that differ become variable."""
    options: Any = {
        "dir": tmp_path / "model",
        "batch_sizes": [1, 2],
        "shape_variants": [(np.ones((1, size, 4), np.float32),) for size in (8, 16)],
        "axis_letters": {"x": "sd", "output": "te"},
    }
    example = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 8, 4)}
    source = _CountingSource(_predict, example, [("w", _W)], options)

    report = export_source(source, options)

    assert [[("batch", 8, 4)], [("batch", 16, 4)]] == source.shapes
    manifest = load_manifest(report.directory)
    assert ["x: f32[n,?,4]"] == [str(spec) for spec in manifest.executable_inputs]
    assert ["output: f32[n,?,5]"] == [str(spec) for spec in manifest.executable_outputs]
    assert ({"s": 8}, {"s": 16}) == tuple(map(dict, manifest.input_shapes))
    files = sorted(path.name for path in report.directory.glob("*.mlir"))
    assert [f"model.v{v}.b{b}.mlir" for v in (0, 1) for b in (1, 2)] == files


def test_variants_of_several_inputs_may_share_a_letter(tmp_path: Path) -> None:
    """Inputs whose lengths are always equal can say so by one letter."""
    long = np.arange(16, dtype=np.int32).reshape(2, 8) % 7
    report = export_jax(
        lambda ids, mask, w: (w[ids % 4] * mask[..., None]).sum(1),
        {"ids": long, "mask": long},
        [("w", _W)],
        dir=tmp_path / "model",
        batch_sizes=[2],
        shape_variants=[(long[:, :5], long[:, :5]), (long, long)],
        axis_letters={"ids": "s", "mask": "s"},
    )

    sizes = tuple(map(dict, load_manifest(report.directory).input_shapes))
    assert ({"s": 5}, {"s": 8}) == sizes


def test_batch_axes_are_per_tensor(tmp_path: Path) -> None:
    """An input may have its batch axis elsewhere, and outputs follow what happens to it."""
    report = export_jax(
        lambda x, scale: {"y": x * scale, "rows": x.sum(0), "fixed": jnp.arange(4.0)},
        {"x": _X.T, "scale": np.linspace(1, 2, 3, dtype=np.float32)},
        dir=tmp_path / "model",
        batch_sizes=[2, 4],
        input_batch_axes=[1, 0],
    )

    manifest = load_manifest(report.directory)
    assert ["x: f32[4,n]", "scale: f32[n]"] == [str(s) for s in manifest.executable_inputs]
    outputs = ["fixed: f32[4]", "rows: f32[n]", "y: f32[4,n]"]
    assert outputs == [str(s) for s in manifest.executable_outputs]


def test_given_batch_axes_of_outputs_must_be_true(tmp_path: Path) -> None:
    """What the options say of outputs is compared with the programs."""
    with pytest.raises(ExportProblem, match="is 1 for output 'output', but it is axis 0"):
        export_jax(
            _predict, (_X,), [("w", _W)], dir=tmp_path / "m", batch_sizes=[1], output_batch_axes=[1]
        )


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, w: jnp.concatenate([x @ w, x @ w]), "axis 0 is 4 at batch size 2, 8 at batch"),
        (lambda x, w: x @ x.T, r"has the batch size as axes 0, 1.*output_select"),
    ],
    ids=["twice", "pairs"],
)
def test_outputs_that_mix_rows_are_refused(tmp_path: Path, function: Any, said: str) -> None:
    """An output whose rows are not the batch's could not be split among requests."""
    with pytest.raises(ExportProblem, match=said):
        export_jax(function, (_X,), [("w", _W)], dir=tmp_path / "m", batch_sizes=[2, 4])

    assert [] == list(tmp_path.iterdir())


def test_names_and_letters_must_fit_the_program(tmp_path: Path) -> None:
    """Wrong lists about outputs are told at once."""
    with pytest.raises(ExportProblem) as caught:
        export_jax(
            lambda x, w: (x @ w, x),
            (_X,),
            [("w", _W)],
            dir=tmp_path / "m",
            batch_sizes=[1],
            output_names=["scores"],
            output_batch_axes=[0],
            axis_letters={"logits": "c", "input_0": "xy"},
        )

    said = "\n".join(caught.value.findings)
    assert "output_names: has 1 names ('scores'), the model returns 2 results" in said
    assert "output_batch_axes: has 1 entries" in said
    assert "axis_letters: 'logits' is neither an input nor an output" in said
    assert "2 letters for 1 axes" in said


def test_client_specs_hook_and_assets_are_included(tmp_path: Path) -> None:
    """What a hook needs is part of the bundle."""
    hooks = (
        "from pathlib import Path\n"
        "from hloserve.hooks.registration import register_model\n"
        "labels = Path(__file__).with_name('labels.txt').read_text()\n"
        "register_model('model', preprocess=lambda x: x, postprocess=lambda y: y)\n"
    )
    (tmp_path / "hooks.py").write_text(hooks)
    (tmp_path / "labels.txt").write_text("cat\n")

    report = export_jax(
        _predict,
        {"x": _X},
        [("w", _W)],
        dir=tmp_path / "model",
        batch_sizes=[1],
        hook_file=tmp_path / "hooks.py",
        assets=[tmp_path / "labels.txt"],
        labels={"label": "labels.txt"},
        client_inputs=[IOSpec("image", "u8", (1, -1), 0)],
        client_outputs=[IOSpec("label", "i32", (1,), 0)],
        description="a test",
    )

    manifest = load_manifest(report.directory)
    assert hooks == (report.directory / "model.py").read_text()
    assert "cat\n" == (report.directory / "labels.txt").read_text()
    assert {"label": "labels.txt"} == manifest.labels
    assert "a test" == manifest.description
    assert manifest.client_inputs is not None
    assert "image: u8[n,?]" == str(manifest.client_inputs[0])


def test_provenance_is_collected_and_the_author_s_wins(tmp_path: Path) -> None:
    """A manifest tells where the model comes from, how it was traced and what proves it."""
    report = export_jax(
        _predict,
        (_X,),
        [("w", _W)],
        dir=tmp_path / "model",
        batch_sizes=[1],
        matmul_precision="highest",
        compile_options={"jax_numpy_dtype_promotion": "strict", "softmax_custom_jvp": True},
        provenance={"exported_at": "never", "run": 17},
    )

    recorded = load_manifest(report.directory).provenance
    assert ("jax", "hloserve") == (recorded["source_framework"], recorded["converter"])
    assert ("never", 17) == (recorded["exported_at"], recorded["run"])
    assert "highest" == recorded["matmul_precision"]
    assert {"numpy_dtype_promotion": "strict"} == recorded["compile_options"]
    assert "proof" in recorded


def test_progress_tells_every_step(tmp_path: Path) -> None:
    """Whoever waits hears what is being done, and how much is left."""

    class Listener(ExportProgress):
        heard: list[tuple[str, int, int]] = []  # noqa: RUF012  # one test, one instance

        def step(self, what: str, done: int, total: int) -> None:
            self.heard.append((what, done, total))

    listener = Listener()

    export_jax(
        _predict, (_X,), [("w", _W)], dir=tmp_path / "model", batch_sizes=[1, 4], progress=listener
    )

    assert ("tracing", 0, 1) == listener.heard[0]
    assert ("refining to batch size 4", 1, 2) in listener.heard
    assert ("writing", 0, 1) == listener.heard[-1]
    assert all(done < total for _, done, total in listener.heard)


def test_precision_is_part_of_the_program(tmp_path: Path) -> None:
    """The precision of products is fixed when the model is traced."""
    report = export_jax(
        _predict, (_X,), [("w", _W)], dir=tmp_path / "model", matmul_precision="highest"
    )

    program = read_program((report.directory / "model.mlir").read_bytes(), "model.mlir")
    assert "precision = [HIGHEST, HIGHEST]" in str(program.module)


class _UnrefinedSource(JaxSource):
    """Cannot be refined: says so the way a frontend does."""

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        if any(isinstance(extent, str) for shape in shapes for extent in shape):
            raise SymbolicTraceFailed("splits by batch")
        return super().trace(shapes)


def test_reason_of_a_frontend_is_in_the_report(tmp_path: Path) -> None:
    """A frontend's own words say why there is a trace per size."""
    options: Any = {"dir": tmp_path / "model", "batch_sizes": [1, 2]}

    report = export_source(_UnrefinedSource(_predict, {"x": _X}, [("w", _W)], options), options)

    assert "per size (2 traces): splits by batch" == report.tracing


def test_report_says_which_newer_version_a_feature_needs(tmp_path: Path) -> None:
    """A product with an algorithm of its own is newer than 1.0.0, and the report says so."""

    def exact(x: Any, w: Any) -> Any:
        return jax.lax.dot(x, w, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32)

    report = export_jax(exact, (_X,), [("w", _W)], dir=tmp_path / "model")

    assert "1.6.0" == report.programs[0].target_version
    assert any("dot_general in a newer form" in note for note in report.notes)


def test_target_version_above_this_jaxlib_s_leaves_nothing(tmp_path: Path) -> None:
    """A version from the future is an error, not a file that nobody reads."""
    with pytest.raises(ExportProblem, match=r"target_version: .*got 1\.99\.0"):
        export_jax(_predict, (_X,), [("w", _W)], dir=tmp_path / "model", target_version="1.99.0")

    assert [] == list(tmp_path.iterdir())


def test_model_that_compares_the_batch_size_is_traced_per_size_after_all(tmp_path: Path) -> None:
    """A comparison with an open batch size is never true; the proof finds that out."""

    def predict(x: Any, w: Any) -> Any:
        return x @ w if x.shape[0] == 1 else jnp.tanh(x @ w)

    # Its rows are not independent of their number, so servers must not pad them.
    source, options = _source(predict, tmp_path, batch_sizes=[1, 4], output_batch_axes=[None])

    report = export_source(source, options)

    assert [[("batch", 4)], [(1, 4)], [(4, 4)]] == source.shapes
    assert "does not do what the model does" in report.tracing
    assert 2 == sum(1 for program in report.programs if program.inputs_run)


def test_output_without_a_batch_axis_is_reported(tmp_path: Path) -> None:
    """Such an output keeps requests from sharing a batch, which an author may not expect."""
    report = export_jax(
        lambda x, w: (x @ w, w * 2), (_X,), [("w", _W)], dir=tmp_path / "model", batch_sizes=[1, 2]
    )

    assert any("'output_1' has no batch axis" in note for note in report.notes)
