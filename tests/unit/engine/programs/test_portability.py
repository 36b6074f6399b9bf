"""What a program says of the machines that can run it."""

import pytest

from hloserve.engine.programs.mlir import read_program
from hloserve.engine.programs.portability import check_portability, oldest_jaxlib

pytestmark = pytest.mark.xla


@pytest.mark.parametrize(
    ("version", "jaxlib"),
    [
        ("0.9.0", "0.4.20"),
        ("1.0.0", "0.4.31"),
        ("1.4.9", "0.4.31"),
        ("1.5.0", "0.5.3"),
        ("1.11.0", "0.6.2"),
        ("1.15.0", "0.10.2"),
        ("2.0.0", ""),
        ("999999999.0.0", ""),
    ],
)
def test_jaxlib_of_a_stablehlo_version(version: str, jaxlib: str) -> None:
    """The oldest release that was tried with artifacts of the version."""
    assert jaxlib == oldest_jaxlib(version)


def _texts(constant: str, resource: str = "") -> list[str]:
    """What is said of a program with a constant, less what is said of all text."""
    text = f"""module {{ func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
      %c = stablehlo.constant {constant}
      return %x : tensor<2xf32> }} }}{resource}"""
    texts = [finding.text for finding in check_portability(read_program(text.encode(), "m.mlir"))]
    return [text for text in texts if "MLIR text" not in text]


ELEMENTS = {
    "i4": 8,
    "i64": 64,
    "ui8": 8,
    "f8E4M3FN": 8,
    "bf16": 16,
    "f64": 64,
    "complex<f32>": 64,
    "complex<f64>": 128,
}
"""Element types, and the bits that an element of a dense constant takes when it is written."""


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("values", ["one", "few"])
def test_constants_of_any_type_can_be_small(element: str, values: str) -> None:
    """A constant of a type that the binding knows no object for is looked at like any other."""
    value = "(1.0, 2.0)" if "complex" in element else "1" if "i" in element else "1.0"
    other = value.replace("1", "3")
    many = value if values == "one" else f"[{value}, {other}, {value}]"

    assert _texts(f"dense<{many}> : tensor<3x{element}>") == []


@pytest.mark.parametrize("element", ELEMENTS)
def test_large_constant_of_any_type_is_a_warning(element: str) -> None:
    """Whatever its elements are; one value everywhere takes no room."""
    bits = ELEMENTS[element]
    count = (64 * 1024 + 64) * 8 // (4 if element == "i4" else bits)
    content = "01" * (bits // 8) + "02" * ((count - 1) * bits // 8)
    value = "(1.0, 2.0)" if "complex" in element else "1" if "i" in element else "1.0"

    (text,) = _texts(f'dense<"0x{content}"> : tensor<{count}x{element}>')

    assert f"a large constant of 64.1 KiB (the largest is tensor<{count}x{element}>" in text
    assert _texts(f"dense<{value}> : tensor<{count}x{element}>") == []


def test_large_constant_in_a_resource_is_a_warning() -> None:
    """Large arrays are often written apart, after the program."""
    resource = f'{{-# dialect_resources: {{ builtin: {{ w: "0x04000000{"01" * 80000}" }} }} #-}}'

    (text,) = _texts("dense_resource<w> : tensor<20000xf32>", resource)

    assert "a large constant of 78.1 KiB" in text
