"""Handlers of an export list, and models that need none."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from support.export_targets import write_target

from hloserve import load_manifest
from hloserve.core.dtypes import BOOL, F32, I64, U8, by_token
from hloserve.export.lists.export_list import ListedModel, load_export_list
from hloserve.export.lists.handler import (
    HandlerContext,
    NotExportable,
    example_input,
    generic_handler,
    handler_context,
)
from hloserve.export.lists.run import ListRun, Outcome, RunListener, plan_run
from hloserve.export.lists.triton_config import TritonTensor

CONFIG = """
max_batch_size: 4
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 8 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""


def _source(directory: Path, config: str | None = CONFIG, program: bool = True) -> Path:
    (directory / "1").mkdir(parents=True)
    if config is not None:
        (directory / "config.pbtxt").write_text(config)
    if program:
        (directory / "1" / "model.pt").write_bytes(b"not a model")
    return directory


def _context(source: Path | None, **options: object) -> HandlerContext:
    model = ListedModel("m", source, options=options)
    return handler_context(model, Path("out/m"), overwrite=False, progress=RunListener())


def test_context_holds_what_the_configuration_declares(tmp_path: Path) -> None:
    """A handler sees its model's source, text, tensors, batch sizes and options."""
    context = _context(_source(tmp_path / "m"), size=640)

    assert CONFIG == context.config_text
    assert (TritonTensor("image", F32, (3, 8)),) == context.inputs
    assert (TritonTensor("logits", F32, (10,)),) == context.outputs
    assert (1, 2, 4) == context.ladder == context.utils.batch_ladder(4)
    assert 4 == context.utils.parse_max_batch_size(CONFIG)
    assert (2, 3, 8) == context.utils.example_input(context.inputs[0], 2).shape
    assert "ValueError: x" == context.utils.short_error(ValueError("x"))
    assert ({"size": 640}, "m", "m") == (context.options, context.model, context.bundle_name)


@pytest.mark.parametrize("config", [None, "input {", "\x00"])
def test_context_without_a_configuration_has_batch_size_one(
    tmp_path: Path, config: str | None
) -> None:
    """A handler is called for a directory of any kind."""
    context = _context(_source(tmp_path / "m", config))

    assert ((), (1,)) == (context.inputs, context.ladder)


@pytest.mark.parametrize(
    ("config", "program", "told"),
    [
        (None, True, r"it has no config\.pbtxt; write a handler for it"),
        ("input {", True, r"expected a field's name, got ''; write a handler for it"),
        (CONFIG, False, r"it has no 1/model\.pt, so it is not a TorchScript model"),
        (CONFIG.replace("3, 8", "-1, 8"), True, r"input 'image' has open axes \(dims \[-1, 8\]\)"),
    ],
)
def test_directory_of_another_layout_is_not_exportable(
    tmp_path: Path, config: str | None, program: bool, told: str
) -> None:
    """What the generic way cannot do is said, and that a handler can."""
    with pytest.raises(NotExportable, match=told):
        generic_handler(_context(_source(tmp_path / "m", config, program)))


@pytest.mark.parametrize("token", ["f16", "bf16", "f32", "i64", "u8", "bool"])
def test_example_has_the_declared_dtype(token: str) -> None:
    """Values are random, of the right dtype and shape."""
    dtype = by_token(token)

    found = example_input(TritonTensor("x", dtype, (20, 3)), 0)

    assert (dtype.numpy, (20, 3)) == (found.dtype, found.shape)
    assert 1 < len(np.unique(found))


def test_example_integers_are_small_indices() -> None:
    """Integers are valid for any table; bytes have their whole range."""
    ids, image, mask = (
        example_input(TritonTensor("x", dtype, (100,)), 1) for dtype in (I64, U8, BOOL)
    )

    assert (0, 1) == (ids.min(), ids.max())
    assert 128 < image.max()
    assert (1, 100) == mask.shape


def _run(directory: Path, handler: str) -> Outcome:
    _source(directory / "triton" / "m")
    write_target(directory / "handlers" / "h.py", handler)
    (directory / "list.yaml").write_text(
        "output_root: models\nreport_path: report.md\nsource_dirs: [triton]\n"
        "handlers: [{file: handlers/h.py, models: [m], options: {largest: 2}}]\n"
    )
    listed = load_export_list(directory / "list.yaml")
    run = ListRun(listed, plan_run(listed), RunListener())
    run.run()
    return run.outcomes[0]


def test_handler_may_return_a_deferred_export(tmp_path: Path) -> None:
    """What a handler returns is exported like a target, with size 1 alone where more fails."""
    source = """
        def handler(ctx):
            return partial(fake_export, ctx.options["largest"], batch_sizes=ctx.ladder)
    """

    outcome = _run(tmp_path, source)

    assert ("partial", (1,)) == (outcome.verdict, outcome.batch_sizes)
    assert "only batch size 1: batch size 4 is too large" == outcome.reason


def test_handler_may_write_the_bundle_itself(tmp_path: Path) -> None:
    """A handler that wrote `out_dir` returns its batch sizes; modules beside it can be imported."""
    write_target(tmp_path / "handlers" / "beside_the_handler.py", "SIZES = [1, 2]\n")
    source = """
        from beside_the_handler import SIZES
        def handler(ctx):
            fake_export(dir=ctx.out_dir, batch_sizes=SIZES, overwrite=ctx.overwrite)
            return SIZES
    """

    outcome = _run(tmp_path, source)

    assert ("success", (1, 2), "") == (outcome.verdict, outcome.batch_sizes, outcome.reason)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("handlers = 3\n", "h.py' defines no function handler(ctx)"),
        ("def handler(ctx): return [1]\n", "no whole bundle was left: "),
        ("def handler(ctx): ...\n", "h.py' returned None, expected functools.partial"),
        ("def handler(ctx): return 1 / 0\n", "raised ZeroDivisionError: division by zero ("),
        ("def handler(ctx): return partial(fake_export, dir=ctx.out_dir, progress=3)\n", ""),
    ],
)
def test_handler_that_does_not_keep_its_contract_fails(
    tmp_path: Path, source: str, told: str
) -> None:
    """A handler without a function, a bundle or a return value fails its own models."""
    outcome = _run(tmp_path, source)

    assert ("failed" if told else "success") == outcome.verdict
    assert told in outcome.reason


@pytest.mark.xla
@pytest.mark.timeout(180)
def test_torchscript_directory_needs_no_handler(tmp_path: Path) -> None:
    """A TorchScript file with its config.pbtxt is exported, with its names and batch sizes."""
    import torch

    source = tmp_path / "triton" / "m"
    _source(source, program=False)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(24, 10)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against TorchScript; the user has it
        torch.jit.save(torch.jit.script(net), source / "1" / "model.pt")
    (tmp_path / "list.yaml").write_text(
        "output_root: models\nreport_path: report.md\nsource_dirs: [triton]\n"
    )
    listed = load_export_list(tmp_path / "list.yaml")
    run = ListRun(listed, plan_run(listed), RunListener())

    run.run()

    (outcome,) = run.outcomes
    assert ("success", (1, 2, 4)) == (outcome.verdict, outcome.batch_sizes), outcome.reason
    manifest = load_manifest(tmp_path / "models" / "m")
    assert ["image"] == [spec.name for spec in manifest.inputs]
    assert ["logits"] == [spec.name for spec in manifest.outputs]
