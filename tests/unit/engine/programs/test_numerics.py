"""What the modes of `runtime.numerics` make of a program."""

from typing import Any

import pytest
from support.engine_programs import module_of

from hloserve.engine.programs.numerics import (
    apply_numerics,
    check_f32,
    has_tf32,
    ungoverned_ops,
)

pytest.importorskip("jaxlib")

_T = "tensor<4x4xf32>"
_ALGORITHM = (
    "algorithm = <lhs_precision_type = {0}, rhs_precision_type = {0}, accumulation_type = f32,"
    " lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = {1},"
    " allow_imprecise_accumulation = false>"
)


def _dot(extra: str = "", kind: str = _T) -> str:
    comma = f", {extra}" if extra else ""
    return (
        f"stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]{comma}"
        f" : ({kind}, {kind}) -> {kind}"
    )


def _module(*results: str, kind: str = _T, more: str = "") -> Any:
    lines = "\n".join(f"%{number} = {result}" for number, result in enumerate(results))
    return module_of(
        f"""module @m {{ func.func public @main(%a: {kind}, %b: {kind}) -> {kind} {{
        {lines}
        return %{len(results) - 1} : {kind} }} {more} }}"""
    )


def _apply(module: Any, mode: Any, *, is_capable: bool = False) -> str:
    return apply_numerics(module, mode, is_capable=is_capable, source="model.mlir")


TF32, TF32_THRICE = _dot(_ALGORITHM.format("tf32", 1)), _dot(_ALGORITHM.format("tf32", 3))
BF16 = _dot(_ALGORITHM.format("bf16", 1))
CONVOLUTION = """stablehlo.convolution(%x, %k)
  dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {}
  {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
  : (tensor<1x4x4xf32>, tensor<4x4x1xf32>) -> tensor<1x4x4xf32>"""


@pytest.mark.parametrize(
    ("platform", "capability", "expected"),
    [
        ("cuda", "8.0", True),
        ("cuda", "9.0", True),
        ("cuda", "12.0", True),
        ("cuda", "7.5", False),
        ("cuda", "", False),
        ("cuda", "unknown", False),
        ("cuda", "-8.0", False),
        ("cpu", "8.0", False),
        ("rocm", "9.0", False),
    ],
)
def test_tf32_is_of_nvidia_from_ampere_on(platform: str, capability: str, expected: bool) -> None:
    """What cannot be determined counts as a device without."""
    assert expected is has_tf32(platform, capability)


def test_auto_strips_tf32_where_the_device_has_none() -> None:
    """A product falls back to the default precision, which is float32 there."""
    module = _module(TF32, TF32_THRICE, BF16)

    assert "auto (stripped 2 tf32 algorithm(s))" == _apply(module, "auto")
    assert "tf32" not in str(module)
    assert 1 == str(module).count("algorithm")


def test_auto_without_tf32_says_so() -> None:
    """There was nothing to take out."""
    module = _module(_dot())
    before = str(module)

    assert "auto (f32: target lacks TF32)" == _apply(module, "auto")
    assert before == str(module)


@pytest.mark.parametrize(("mode", "text"), [("auto", "auto (tf32 active)"), ("tf32", "tf32")])
def test_capable_device_gets_programs_as_they_are(mode: str, text: str) -> None:
    """Nothing is touched on a device that has TF32."""
    module = _module(TF32, _dot())
    before = str(module)

    assert text == _apply(module, mode, is_capable=True)
    assert before == str(module)


@pytest.mark.parametrize("is_capable", [True, False])
def test_f32_rewrites_algorithms_and_pins_products(is_capable: bool) -> None:
    """What says TF32 says float32 then, and what says nothing asks for the highest precision."""
    module = _module(TF32, TF32_THRICE, _dot(), _dot("precision = [DEFAULT, HIGHEST]"), BF16)

    text = _apply(module, "f32", is_capable=is_capable)

    assert "f32 (rewrote 2 tf32 algorithm(s), pinned 2 dot_general)" == text
    assert "tf32" not in str(module)
    assert "bf16" in str(module)
    assert module.operation.verify()
    assert "f32 (nothing to pin)" == _apply(module, "f32")


def test_f32_reaches_convolutions_and_every_region() -> None:
    """Functions that are called, branches and bodies of loops are rewritten like `main`."""
    module = module_of(
        f"""module @m {{
        func.func public @main(%a: {_T}, %b: {_T}, %x: tensor<1x4x4xf32>, %k: tensor<4x4x1xf32>,
                               %i: tensor<i32>) -> ({_T}, tensor<1x4x4xf32>) {{
          %c = {CONVOLUTION}
          %d = func.call @inner(%a, %b) : ({_T}, {_T}) -> {_T}
          %e = "stablehlo.case"(%i) ({{
            %n = {_dot()}
            stablehlo.return %n : {_T}
          }}, {{
            %n = "stablehlo.if"(%p) ({{
              %q = {TF32}
              stablehlo.return %q : {_T}
            }}, {{ stablehlo.return %a : {_T} }}) : (tensor<i1>) -> {_T}
            stablehlo.return %n : {_T}
          }}) : (tensor<i32>) -> {_T}
          %s = stablehlo.add %d, %e : {_T}
          return %s, %c : {_T}, tensor<1x4x4xf32> }}
        func.func private @inner(%a: {_T}, %b: {_T}) -> {_T} {{
          %n = {_dot()}
          return %n : {_T} }} }}""".replace(
            "%c = ", "%p = stablehlo.constant dense<true> : tensor<i1>\n%c = ", 1
        )
    )

    text = _apply(module, "f32")

    assert "f32 (rewrote 1 tf32 algorithm(s), pinned 2 dot_general, pinned 1 convolution)" == text
    assert [] == check_f32(module)


@pytest.mark.parametrize("kind", ["tensor<4x4xf64>", "tensor<4x4xbf16>", "tensor<4x4xi32>"])
def test_other_types_are_left_alone(kind: str) -> None:
    """The mode is about float32."""
    module = _module(_dot(kind=kind), kind=kind)

    assert "f32 (nothing to pin)" == _apply(module, "f32")
    assert "HIGHEST" not in str(module)


@pytest.mark.parametrize(
    "left", [_dot(), _dot("precision = [HIGHEST, HIGH]"), TF32], ids=["none", "high", "tf32"]
)
def test_check_finds_what_rewriting_would_miss(left: str) -> None:
    """The walk after rewriting knows no more than the rule, and names what breaks it."""
    (finding,) = check_f32(_module(left))

    assert "dot_general of tensor<4x4xf32>, tensor<4x4xf32>" in finding


def test_legacy_product_is_pinned_too() -> None:
    """Old artifacts hold `dot`, which is a product like any other."""
    module = _module(f"stablehlo.dot %a, %b : ({_T}, {_T}) -> {_T}")

    assert "f32 (pinned 1 dot)" == _apply(module, "f32")
    assert [] == check_f32(module)


def test_operations_without_a_precision_are_named() -> None:
    """Libraries that are called, and solvers, decide themselves."""
    module = _module(
        '"stablehlo.cholesky"(%a) {lower = true} : (' + f"{_T}) -> {_T}",
        "stablehlo.custom_call @lapack_spotrf_ffi(%a) : (" + f"{_T}) -> {_T}",
        _dot(),
    )

    assert ("cholesky", "custom_call lapack_spotrf_ffi") == ungoverned_ops(module)
