"""From a bundle to a model, step by step, on the NumPy backend."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models_bundles import ROWS4, RecordingProgress, fake_text, replace_in, write_fake
from typing_extensions import override

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.errors import (
    BackendFailed,
    BundleProblem,
    HookProblem,
    ManifestProblem,
    ProgramProblem,
    WeightsProblem,
)
from hloserve.core.tensors import Array
from hloserve.engine.backend import Executable, Program
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.loader import LoadOptions, load_model, reason_of

HOOK = "from hloserve import register_model\n"
Y = IOSpec("y", "f32", (1, 4), batch_axis=0)


@pytest.fixture
def backend() -> FakeBackend:
    """A device of NumPy."""
    return FakeBackend()


def test_model_is_complete(tmp_path: Path, backend: FakeBackend) -> None:
    """Specs, programs, weights and metadata are there when the load is done."""
    model = load_model(write_fake(tmp_path), backend, LoadOptions(max_batch_size=3))
    assert model.name == "m"
    assert sorted(model.device.executables[()]) == [1, 4]
    assert model.device.can_coalesce
    assert model.device.max_batch_size == 3
    assert [array.tolist() for array in backend.to_host(model.device.weights)] == [[1, 2, 3, 4]]
    assert (model.metadata.platform, model.metadata.versions) == ("fake", ())
    (x,) = model.metadata.inputs
    assert (x.name, x.datatype, x.shape) == ("x", "FP32", (-1, 4))


def test_weights_are_not_copied_again(tmp_path: Path, backend: FakeBackend) -> None:
    """The device uses the arena's bytes: read-only and aligned."""
    (weight,) = backend.to_host(load_model(write_fake(tmp_path), backend).device.weights)
    assert weight.ctypes.data % 64 == 0
    assert not weight.flags.writeable


def test_every_program_is_warmed_up_and_its_cost_is_known(
    tmp_path: Path, backend: FakeBackend
) -> None:
    """The first run pays for lazy initialisation; only the cost of the later ones is kept."""
    model = load_model(write_fake(tmp_path), backend)
    for shape in ((1, 4), (4, 4)):
        assert 2 <= backend.executed.count(shape) <= 11
    assert sorted(backend.executed) == backend.executed
    statistics = model.device.statistics
    assert statistics.dispatch_count == 0
    assert sorted(statistics.costs_ns[()]) == [1, 4]
    assert all(cost_ns > 0 for cost_ns in statistics.costs_ns[()].values())
    assert backend.in_use_bytes == 16  # the weights; what the warm-up used is freed


def test_failing_warm_up_is_a_warning(tmp_path: Path) -> None:
    """Zeros may be out of a program's domain."""
    backend = FakeBackend(fail_when=lambda arguments: not arguments[0].any())
    heard = RecordingProgress()
    load_model(write_fake(tmp_path), backend, progress=heard)
    assert [event[:2] for event in heard.events if event[0] == "warning"] == [("warning", "m")] * 2
    assert heard.events[-1] == ("ready", "m")
    assert backend.in_use_bytes == 16


def test_progress_is_told_in_order(tmp_path: Path, backend: FakeBackend) -> None:
    """A terminal can draw a bar from it."""
    heard = RecordingProgress()
    load_model(write_fake(tmp_path), backend, progress=heard)
    assert heard.events == [
        ("started", "m"),
        ("programs", "m", 2),
        ("compiled", "m", "model.b1.mlir"),
        ("compiled", "m", "model.b4.mlir"),
        ("ready", "m"),
    ]


def test_failure_is_told_with_all_findings(tmp_path: Path, backend: FakeBackend) -> None:
    """What the index shows is what the error says, without the path."""
    bundle = write_fake(tmp_path)
    (bundle / "model.b4.mlir").unlink()
    heard = RecordingProgress()
    with pytest.raises(ProgramProblem) as raised:
        load_model(bundle, backend, progress=heard)
    assert heard.events[-1] == ("failed", "m", reason_of(raised.value))
    assert reason_of(raised.value).startswith("model.b4.mlir is missing")


def test_name_is_that_of_the_directory_entry(tmp_path: Path, backend: FakeBackend) -> None:
    """A link names the model, not what it points to."""
    write_fake(tmp_path / "store", "v17").rename(tmp_path / "store" / "release-17")
    (tmp_path / "live").symlink_to(tmp_path / "store" / "release-17")
    assert load_model(tmp_path / "live", backend).name == "live"


def test_client_specs_are_those_of_the_manifest(tmp_path: Path, backend: FakeBackend) -> None:
    """With hooks, clients see something else than the program does."""
    pixels = IOSpec("pixels", "u8", (1, -1), batch_axis=0)
    hook = HOOK + (
        "def pre(inputs):\n    return {'x': inputs['pixels'].astype('f4')[:, :4] / 2}\n"
        "def post(outputs):\n    return [(t.name.upper(), t.array + 1) for t in outputs]\n"
        "register_model(preprocess=pre, postprocess=post)\n"
    )
    bundle = write_fake(
        tmp_path,
        client_inputs=[pixels],
        client_outputs=[IOSpec("Y", "f32", (1, 4), batch_axis=0)],
        files={"model.py": hook},
    )
    model = load_model(bundle, backend)
    assert [spec.name for spec in model.inputs] == ["pixels"]
    assert [spec.name for spec in model.outputs] == ["Y"]
    (x,) = model.preprocess({"pixels": np.full((2, 6), 8, np.uint8)})
    assert x.tolist() == [[4] * 4] * 2
    assert model.postprocess([x])["Y"].tolist() == [[5] * 4] * 2


def test_model_without_hooks_passes_arrays_through(tmp_path: Path, backend: FakeBackend) -> None:
    """No copies, in executable order."""
    model = load_model(write_fake(tmp_path), backend)
    x = np.zeros((1, 4), "f4")
    assert model.preprocess({"x": x})[0] is x
    assert model.postprocess([x])["y"] is x


@pytest.mark.parametrize("side", ["client_inputs", "client_outputs"])
def test_client_specs_need_their_hook(tmp_path: Path, backend: FakeBackend, side: str) -> None:
    """Specs that differ from the program's, with nothing in between, can never work."""
    other: dict[str, Any] = {side: [IOSpec("other", "u8", (1, 4), batch_axis=0)]}
    bundle = write_fake(tmp_path, files={"model.py": HOOK + "register_model()\n"}, **other)
    role = {"client_inputs": "preprocess", "client_outputs": "postprocess"}[side]
    with pytest.raises(HookProblem, match=f"{side} differ .* model.py registers no {role}"):
        load_model(bundle, backend)


def test_equal_client_specs_need_no_hook(tmp_path: Path, backend: FakeBackend) -> None:
    """Declaring what the program takes anyway is redundant, not wrong."""
    hook = {"model.py": HOOK + "register_model()\n"}
    bundle = write_fake(tmp_path, client_inputs=[ROWS4], files=hook)
    assert load_model(bundle, backend).inputs[0].name == "x"


def test_problems_of_all_parts_are_reported_together(tmp_path: Path, backend: FakeBackend) -> None:
    """Weights, programs and hooks are all looked at before the load gives up."""
    bundle = write_fake(tmp_path, files={"model.py": "1 / 0\n"})
    (bundle / "weights.safetensors").unlink()
    (bundle / "model.b1.mlir").write_text("rubbish")
    with pytest.raises(BundleProblem) as raised:
        load_model(bundle, backend)
    assert type(raised.value) is BundleProblem
    weights, program, hook = raised.value.findings
    assert weights.startswith("weights.safetensors: the file is missing")
    assert program.startswith("model.b1.mlir: not a program")
    assert hook.startswith("model.py:1: the hook file failed: ZeroDivisionError")


def test_broken_manifest_ends_the_load_at_once(tmp_path: Path, backend: FakeBackend) -> None:
    """Nothing else can be judged without it."""
    bundle = write_fake(tmp_path)
    replace_in(bundle / "manifest.yaml", "f32", "f31")
    with pytest.raises(ManifestProblem, match="f31"):
        load_model(bundle, backend)


def test_nothing_is_compiled_when_a_check_fails(tmp_path: Path, backend: FakeBackend) -> None:
    """Compiling may take minutes; an author should not wait for a typo."""
    bundle = write_fake(tmp_path)
    (bundle / "model.b4.mlir").write_text(fake_text("scale", ["4x5xf32", "4xf32"], ["4x4xf32"]))
    with pytest.raises(ProgramProblem, match=r"model\.b4\.mlir: input 'x' \(argument 0\): shape"):
        load_model(bundle, backend)
    assert backend.compiled == []


class Refusing(FakeBackend):
    """A device whose compiler refuses batches of four, and which may be short of memory."""

    @override
    def compile(self, program: Program, model: str) -> Executable:
        if program.signature.inputs[0].shape[0] == 4:
            raise BackendFailed("compiling", model, "four is an unlucky number")
        return super().compile(program, model)


def test_compiler_error_names_the_program(tmp_path: Path) -> None:
    """Of several programs, the file that fails; the compiler's own words are kept."""
    with pytest.raises(ProgramProblem) as raised:
        load_model(write_fake(tmp_path), Refusing())
    (finding,) = raised.value.findings
    assert finding == "model.b4.mlir: XLA cannot compile it: four is an unlucky number"
    assert isinstance(raised.value.__cause__, BackendFailed)


class Crashing(FakeBackend):
    """A device that breaks down, in no foreseen way, when it is first used."""

    @override
    def execute(self, executable: Executable, arguments: Sequence[object]) -> Sequence[object]:
        raise RuntimeError("the device is on fire")


@pytest.mark.parametrize("backend_class", [Refusing, Crashing])
def test_failed_load_leaves_nothing_behind(
    tmp_path: Path, backend_class: type[FakeBackend]
) -> None:
    """No device memory, no module, no open file, whichever step failed."""
    backend = backend_class()
    bundle = write_fake(tmp_path, "leaky", files={"model.py": HOOK + "register_model()\n"})
    before = set(sys.modules)
    with pytest.raises((BundleProblem, RuntimeError)):
        load_model(bundle, backend)
    assert backend.in_use_bytes == 0
    assert not [name for name in set(sys.modules) - before if "leaky" in name]


def test_device_without_room_frees_what_it_took(tmp_path: Path) -> None:
    """The error is the device's own, and retryable."""
    backend = FakeBackend(limit_bytes=8)
    with pytest.raises(Exception, match="device memory is full") as raised:
        load_model(write_fake(tmp_path), backend)
    assert raised.value.retryable  # type: ignore[attr-defined]
    assert backend.in_use_bytes == 0


def test_freeing_a_model_gives_everything_back(tmp_path: Path, backend: FakeBackend) -> None:
    """Unload, and unload again."""
    bundle = write_fake(tmp_path, files={"model.py": HOOK + "register_model()\n"})
    before = set(sys.modules)
    model = load_model(bundle, backend)
    model.free()
    model.free()
    assert backend.in_use_bytes == 0
    assert not [name for name in set(sys.modules) - before if name.startswith("hloserve_bundle_")]


def test_meta_bundle_is_its_function(tmp_path: Path, backend: FakeBackend) -> None:
    """It has no program and no weights; one that registers no `run` is refused."""
    bundle = tmp_path / "both"
    bundle.mkdir()
    (bundle / "manifest.yaml").write_text(
        'format_version: "2.1"\nkind: meta\nmeta: {calls: [m]}\n'
        'client_inputs:\n  - {name: x, dtype: f32, shape: "an", dims: {a: 4}}\n'
        'client_outputs:\n  - {name: y, dtype: f32, shape: "an", dims: {a: 4}}\n'
    )
    (bundle / "model.py").write_text("from hloserve import register_meta_model\n")
    with pytest.raises(HookProblem, match="must call register_meta_model exactly once"):
        load_model(bundle, backend)
    with (bundle / "model.py").open("a") as file:
        file.write("register_meta_model(run=lambda inputs, call: inputs)\n")
    model = load_model(bundle, backend)
    assert model.is_meta
    assert ("m",) == model.manifest.calls
    assert ["x"] == [tensor.name for tensor in model.metadata.inputs]
    assert 0 == model.device.effective_max_batch_size
    model.free()


def test_symbolic_program_is_compiled_for_the_listed_sizes(
    tmp_path: Path, backend: FakeBackend
) -> None:
    """One model.mlir with an open batch axis serves every size of the manifest."""
    bundle = write_bundle(
        tmp_path / "m", "m", [ROWS4], [Y],
        {0: fake_text("scale", ["?x4xf32", "4xf32"], ["?x4xf32"])},
        {"w": np.ones(4, np.float32)},
    )  # fmt: skip
    with pytest.raises(ProgramProblem, match=r"any batch size, but batching\.compiled_batch_sizes"):
        load_model(bundle, backend)
    replace_in(bundle / "manifest.yaml", "compiled_batch_sizes: []", "compiled_batch_sizes: [1, 8]")
    heard = RecordingProgress()
    model = load_model(bundle, backend, progress=heard)
    assert model.device.sizes(()) == (1, 8)
    assert backend.executed[-1] == (8, 4)
    assert ("compiled", "m", "model.mlir at batch size 8") in heard.events


def test_baked_size_of_a_single_program_is_its_size(tmp_path: Path, backend: FakeBackend) -> None:
    """model.mlir with a batch of four coalesces and pads like model.b4.mlir."""
    bundle = write_bundle(
        tmp_path / "m", "m", [ROWS4], [Y],
        {0: fake_text("scale", ["4x4xf32", "4xf32"], ["4x4xf32"])},
        {"w": np.ones(4, np.float32)},
    )  # fmt: skip
    model = load_model(bundle, backend)
    assert model.device.sizes(()) == (4,)
    assert model.device.can_coalesce
    text = (bundle / "manifest.yaml").read_text()
    (bundle / "manifest.yaml").write_text(text.replace("sizes: []", "sizes: [8]"))
    with pytest.raises(ProgramProblem, match=r"lists 8, but model\.mlir takes batches of 4"):
        load_model(bundle, backend)
    (bundle / "manifest.yaml").write_text(text.replace("sizes: []", "sizes: [1, 8]"))
    with pytest.raises(ProgramProblem, match=r"there is only model\.mlir"):
        load_model(bundle, backend)


@pytest.mark.parametrize("kind", ["f32", "0x4xf32"])
def test_single_program_without_a_batch_is_compared_with_one(
    tmp_path: Path, backend: FakeBackend, kind: str
) -> None:
    """The batch axis that the manifest declares is missing, or empty, in the program."""
    bundle = write_bundle(
        tmp_path / "m", "m", [ROWS4], [Y],
        {0: fake_text("scale", [kind, "4xf32"], ["1x4xf32"])},
        {"w": np.ones(4, np.float32)},
    )  # fmt: skip
    with pytest.raises(ProgramProblem) as raised:
        load_model(bundle, backend)
    (finding,) = raised.value.findings
    assert finding.startswith("model.mlir: input 'x' (argument 0): shape is ")
    assert finding.endswith("expected (1, 4) (tensor<1x4xf32>)")


def _unbatched(tmp_path: Path, sizes: str) -> Path:
    bundle = write_bundle(
        tmp_path / "m", "m", [IOSpec("x", "f32", (4,))], [IOSpec("y", "f32", (4,))],
        {0: fake_text("scale", ["4xf32", "4xf32"], ["4xf32"])},
        {"w": np.ones(4, np.float32)},
    )  # fmt: skip
    replace_in(bundle / "manifest.yaml", "sizes: []", f"sizes: {sizes}")
    return bundle


@pytest.mark.parametrize("sizes", ["[]", "[1]"])
def test_unbatched_program_has_size_zero(tmp_path: Path, backend: FakeBackend, sizes: str) -> None:
    """Published bundles list [1] without a batch axis; the entry means nothing."""
    model = load_model(_unbatched(tmp_path, sizes), backend)
    assert model.device.sizes(()) == (0,)
    assert not model.device.can_coalesce


def test_variants_are_keyed_by_their_sizes(tmp_path: Path, backend: FakeBackend) -> None:
    """Each entry of input_shapes has its own programs, checked against its sizes."""
    wide = IOSpec("x", "f32", (1, -1), batch_axis=0)
    programs: dict[tuple[int, ...], dict[int, str]] = {
        (width,): {
            size: fake_text("identity", [f"{size}x{width}xf32"], [f"{size}x{width}xf32"])
            for size in (1, 4)
        }
        for width in (16, 32)
    }
    bundle = write_bundle(
        tmp_path / "m", "m", [wide], [IOSpec("y", "f32", (1, -1), batch_axis=0)],
        programs, {}, input_shapes=[(16,), (32,)],
    )  # fmt: skip
    model = load_model(bundle, backend)
    assert {key: model.device.sizes(key) for key in model.device.executables} == {
        (16,): (1, 4),
        (32,): (1, 4),
    }
    first, second = bundle / "model.v0.b1.mlir", bundle / "model.v1.b1.mlir"
    text = first.read_text()
    first.write_text(second.read_text())
    second.write_text(text)
    with pytest.raises(ProgramProblem) as raised:
        load_model(bundle, backend)
    assert [finding.split(":")[0] for finding in raised.value.findings] == [
        "model.v0.b1.mlir",
        "model.v1.b1.mlir",
    ]
    assert "shape is (1, 32) in the program" in raised.value.findings[0]


def _with_extra_results(tmp_path: Path, extra: dict[int, str]) -> Path:
    modules = {
        size: fake_text("both", [f"{size}x4xf32", "4xf32"], [f"{size}x4xf32", kind])
        for size, kind in extra.items()
    }
    return write_bundle(tmp_path / "m", "m", [ROWS4], [Y], modules, {"w": np.ones(4, np.float32)})


def _extra_backend(extra: Array) -> FakeBackend:
    return FakeBackend({"both": lambda arguments: [arguments[0], extra]})


def test_undeclared_result_is_served_by_number(tmp_path: Path) -> None:
    """A result beyond the declared list is output_k; the author is told."""
    heard = RecordingProgress()
    bundle = _with_extra_results(tmp_path, {1: "2xi64", 4: "2xi64"})
    model = load_model(bundle, _extra_backend(np.zeros(2, "i8")), progress=heard)
    assert [str(spec) for spec in model.outputs] == ["y: f32[n,4]", "output_1: i64[2]"]
    assert not model.device.can_coalesce
    assert "result 1 of the programs is not declared" in model.warnings[0]
    assert ("warning", "m", model.warnings[0]) in heard.events


def test_undeclared_result_that_follows_the_batch_has_a_batch_axis(tmp_path: Path) -> None:
    """Its outermost extent is the batch size in programs of two sizes: requests share batches."""
    bundle = _with_extra_results(tmp_path, {1: "1x7xi64", 4: "4x7xi64"})
    model = load_model(bundle, _extra_backend(np.zeros((4, 7), "i8")))
    assert str(model.outputs[1]) == "output_1: i64[n,7]"
    assert model.device.can_coalesce


def test_programs_must_agree_on_undeclared_results(tmp_path: Path) -> None:
    """They are served by position, so each program needs the same ones."""
    with pytest.raises(ProgramProblem, match=r"model\.b4\.mlir: result 1 is tensor<2xf32>, in"):
        load_model(
            _with_extra_results(tmp_path, {1: "2xi64", 4: "2xf32"}), _extra_backend(np.zeros(2))
        )
    bundle = _with_extra_results(tmp_path / "other", {1: "2xi64", 4: "2xi64"})
    (bundle / "model.b4.mlir").write_text(fake_text("identity", ["4x4xf32", "4xf32"], ["4x4xf32"]))
    with pytest.raises(ProgramProblem, match=r"returns 1 result, model\.b1\.mlir returns 2"):
        load_model(bundle, _extra_backend(np.zeros(2, "i8")))


def test_hooked_model_need_not_return_undeclared_results(tmp_path: Path) -> None:
    """A postprocess hook may use them, but owes only what is declared."""
    bundle = _with_extra_results(tmp_path, {1: "2xi64", 4: "2xi64"})
    (bundle / "model.py").write_text(
        HOOK
        + "register_model(postprocess=lambda o: {'y': o['y'] + o['output_1'].sum(dtype='f4')})\n"
    )
    model = load_model(bundle, _extra_backend(np.zeros(2, "i8")))
    assert [spec.name for spec in model.outputs] == ["y"]
    outputs = model.postprocess([np.zeros((1, 4), "f4"), np.zeros(2, "i8")])
    assert outputs["y"].shape == (1, 4)


def test_unlisted_weight_is_a_warning(tmp_path: Path, backend: FakeBackend) -> None:
    """Tensors that no argument uses are ignored, and the author is told."""
    bundle = write_fake(tmp_path)
    path = bundle / "weights.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'["w"]', b"[]   ").replace(b'[\\"w\\"]', b"[]     "))
    with pytest.raises(ProgramProblem, match="declares 1 input and 0 weights"):
        load_model(bundle, backend)
    for size in (1, 4):
        text = fake_text("identity", [f"{size}x4xf32"], [f"{size}x4xf32"])
        (bundle / f"model.b{size}.mlir").write_text(text)
    assert "argument_order" in load_model(bundle, backend).warnings[0]


def test_shrinking_weights_file_fails_the_load(tmp_path: Path, backend: FakeBackend) -> None:
    """What the header promises must be there."""
    bundle = write_fake(tmp_path)
    path = bundle / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(WeightsProblem, match=r"weights\.safetensors: "):
        load_model(bundle, backend)
