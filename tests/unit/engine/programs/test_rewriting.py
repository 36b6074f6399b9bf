"""Which operations are rewritten, where they stand, and what is left alone."""

from typing import Any

import numpy as np
import pytest
from support.engine_programs import Convolution, counts, module_of, program_of, run

from hloserve.engine.programs.compiling import CompileSettings, prepare_program
from hloserve.engine.programs.mlir import bytecode_of
from hloserve.engine.programs.rewriting import apply_rewrites
from hloserve.engine.xla_backend import XlaBackend

pytestmark = pytest.mark.xla

_IMAGE, _KERNEL = "tensor<2x3x4x4xf32>", "tensor<5x3x1x1xf32>"
_RESULT = "tensor<2x5x4x4xf32>"
_CONVOLUTION = f"""stablehlo.convolution(%x, %k)
  dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {{}}
  {{batch_group_count = 1 : i64, feature_group_count = 1 : i64,
    precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}}
  : ({_IMAGE}, {_KERNEL}) -> {_RESULT}"""


def _pool(
    start: str, element: str = "f32", body: str = "maximum", window: str = "1, 1, 2, 2"
) -> str:
    shape, made = f"tensor<2x3x6x6x{element}>", f"tensor<2x3x3x3x{element}>"
    return f""""stablehlo.reduce_window"(%w, {start}) <{{
        window_dimensions = array<i64: {window}>, window_strides = array<i64: 1, 1, 2, 2>}}> ({{
      ^bb0(%p: tensor<{element}>, %q: tensor<{element}>):
        %m = stablehlo.{body} %p, %q : tensor<{element}>
        stablehlo.return %m : tensor<{element}>
      }}) : ({shape}, tensor<{element}>) -> {made}"""


def _widened_pool(start: str = "0xFFF0000000000000", body: str = "maximum") -> str:
    """A pool of float32 as PyTorch's exporter writes it."""
    return f"""module @m {{
      func.func public @main(%x: tensor<2x3x6x6xf32>) -> tensor<2x3x3x3xf32> {{
        %start = stablehlo.constant dense<{start}> : tensor<f64>
        %s = stablehlo.broadcast_in_dim %start, dims = [] : (tensor<f64>) -> tensor<f64>
        %w = stablehlo.convert %x : (tensor<2x3x6x6xf32>) -> tensor<2x3x6x6xf64>
        %y = {_pool("%s", "f64", body)}
        %z = stablehlo.convert %y : (tensor<2x3x3x3xf64>) -> tensor<2x3x3x3xf32>
        return %z : tensor<2x3x3x3xf32> }} }}"""


def _backend(*, has_rewrites: bool = True) -> XlaBackend:
    return XlaBackend("cpu", compiling=CompileSettings(has_rewrites=has_rewrites))


def _with(**changes: Any) -> Convolution:
    return Convolution(
        **{
            "batch": 2, "features": 3, "made": 4, "groups": 1, "spatial": (4, 4), "window": (1, 1),
            "strides": (1, 1), "dilations": (1, 1), "edges": ((0, 0), (0, 0)),
            "image_order": (0, 1, 2, 3), "kernel_order": (1, 0, 2, 3),
            "output_order": (0, 1, 2, 3), **changes,
        }
    )  # fmt: skip


def test_every_region_is_rewritten() -> None:
    """Operations in functions, branches and loops count like those of `main`."""
    module = module_of(f"""module @m {{
      func.func public @main(%x: {_IMAGE}, %k: {_KERNEL}, %i: tensor<i32>) -> {_RESULT} {{
        %a = func.call @inner(%x, %k) : ({_IMAGE}, {_KERNEL}) -> {_RESULT}
        %b = "stablehlo.case"(%i) ({{
          %c = {_CONVOLUTION}
          stablehlo.return %c : {_RESULT}
        }}, {{
          %c:2 = stablehlo.while(%n = %i, %o = %a) : tensor<i32>, {_RESULT}
          cond {{
            %t = stablehlo.constant dense<false> : tensor<i1>
            stablehlo.return %t : tensor<i1>
          }} do {{
            %d = {_CONVOLUTION}
            stablehlo.return %n, %d : tensor<i32>, {_RESULT}
          }}
          stablehlo.return %c#1 : {_RESULT}
        }}) : (tensor<i32>) -> {_RESULT}
        return %b : {_RESULT} }}
      func.func private @inner(%x: {_IMAGE}, %k: {_KERNEL}) -> {_RESULT} {{
        %c = {_CONVOLUTION}
        return %c : {_RESULT} }} }}""")

    assert {"pointwise convolution": 3} == apply_rewrites(module)
    assert {"convolution": 0, "dot_general": 3} == counts(module, "convolution", "dot_general")
    assert 3 == str(module).count("precision = [HIGHEST, HIGHEST]")
    assert module.operation.verify()


@pytest.mark.parametrize(
    "case",
    [
        _with(window=(2, 1)),
        _with(edges=((0, 0), (1, 0))),
        _with(features=4, made=4, groups=2),
        _with(features=3, made=6, groups=3),
        _with(features=2, made=2, groups=2, spatial=(10, 10), window=(10, 10)),
    ],
    ids=["larger", "edges", "groups", "two of a channel", "hundred taps"],
)
def test_other_convolutions_are_left_alone(case: Convolution) -> None:
    """They are not quicker, or were not measured."""
    module = module_of(case.text())
    before = str(module)

    assert {} == apply_rewrites(module)
    assert before == str(module)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("window = {}", "window = {lhs_dilate = [1, 1], reverse = [true, true]}"),
        ("xf32>", "xbf16>"),
        ("xf32>", "xi32>"),
        ("tensor<2x", "tensor<?x"),
        ("tensor<2x", "tensor<0x"),
    ],
    ids=["reversed", "bf16", "i32", "open", "empty"],
)
def test_what_is_not_known_for_sure_is_left_alone(wrong: str, right: str) -> None:
    """Other types, open extents and rare attributes."""
    text = f"""module @m {{ func.func public @main(%x: {_IMAGE}, %k: {_KERNEL}) -> {_RESULT} {{
      %y = {_CONVOLUTION}
      return %y : {_RESULT} }} }}"""
    module = module_of(text.replace(wrong, right))
    before = str(module)

    assert {} == apply_rewrites(module)
    assert before == str(module)


def test_pool_that_was_widened_is_exact_in_its_own_type() -> None:
    """NaN, infinities and the smallest numbers come out of it as before."""
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
    x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    x[1, 2] = -np.inf
    x[1, 1] = -np.float32(1e-45)
    module = module_of(_widened_pool())

    used = apply_rewrites(module)
    want = run(_backend(has_rewrites=False), _widened_pool(), x)
    got = run(_backend(), _widened_pool(), x)

    assert {"widened maximum": 1, "maximum over channels first": 1} == used
    assert "(tensor<2x6x6x3xf32>, tensor<f32>) -> tensor<2x3x3x3xf32>" in str(module)
    np.testing.assert_array_equal(want, got)


@pytest.mark.parametrize(
    ("start", "body"), [("0.0", "maximum"), ("0xFFF0000000000000", "add")], ids=["start", "body"]
)
def test_pool_that_may_need_its_type_keeps_it(start: str, body: str) -> None:
    """Another start, or a sum, is not one of the elements."""
    module = module_of(_widened_pool(start, body))

    assert "widened maximum" not in apply_rewrites(module)
    assert {"convert": 2} == counts(module, "convert")


@pytest.mark.parametrize("window", ["1, 2, 2, 2", "2, 1, 2, 2", "1, 1, 1, 1"])
def test_maximum_over_other_dimensions_stays(window: str) -> None:
    """Channels go last only where the window is over what follows them."""
    sizes = [int(size) for size in window.split(", ")]
    made = [2 - sizes[0] + 1, 3 - sizes[1] + 1, *((6 - size) // 2 + 1 for size in sizes[2:])]
    kind = "x".join(map(str, made))
    module = module_of(f"""module @m {{
      func.func public @main(%w: tensor<2x3x6x6xf32>, %s: tensor<f32>) -> tensor<{kind}xf32> {{
        %y = {_pool("%s", window=window).replace("2x3x3x3", kind)}
        return %y : tensor<{kind}xf32> }} }}""")

    assert {} == apply_rewrites(module)


def test_off_compiles_the_artifact_untouched() -> None:
    """With the setting off the compiler gets what is in the file."""
    program = program_of(_with().text())
    settings = CompileSettings(has_rewrites=False)

    prepared, notes = prepare_program(program, "cpu", settings, is_capable=False)

    assert bytecode_of(program) == bytecode_of(prepared)
    assert {} == notes.rewrites


def test_rewriting_leaves_the_program_that_was_read() -> None:
    """The same program can be compiled for another device, and checked, afterwards."""
    program = program_of(_with().text())
    before = bytecode_of(program)

    prepared, notes = prepare_program(program, "cpu", CompileSettings(), is_capable=False)

    assert before == bytecode_of(program)
    assert before != bytecode_of(prepared)
    assert {"pointwise convolution": 1} == notes.rewrites


def test_accelerators_get_programs_as_they_are() -> None:
    """What is quicker on a CPU need not be so elsewhere."""
    program = program_of(_with().text())

    prepared, notes = prepare_program(program, "cuda", CompileSettings(), is_capable=True)

    assert bytecode_of(program) == bytecode_of(prepared)
    assert "auto (tf32 active)" == notes.numerics
