"""Programs that are handed in, and the files they become."""

from typing import Any

import pytest

from hloserve.bundle.io_spec import IOSpec, build_specs
from hloserve.bundle.modules import ModulePlan, plan_modules

IMAGE = IOSpec("image", "u8", (1, -1, -1, 3), 0, "hwc")
MASK = IOSpec("mask", "f32", (1, -1), 0)
BATCHED = IOSpec("x", "f32", (1, 4), 0)
UNBATCHED = IOSpec("x", "f32", (4,))


class Exported:
    """What jax.export returns, as far as we look."""

    mlir_module_serialized = b"exported"


def plan(
    modules: Any,
    input_shapes: Any = None,
    inputs: tuple[IOSpec, ...] = (),
    dynamic_sizes: Any = None,
) -> tuple[ModulePlan, list[str]]:
    """The plan and what is wrong with it."""
    findings: list[str] = []
    specs = build_specs("executable_inputs", inputs, findings, distinct=True)
    return plan_modules(modules, input_shapes, specs, findings, dynamic_sizes), findings


@pytest.mark.parametrize(
    ("module", "content"),
    [
        (b"ML\xefR", b"ML\xefR"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ("module {} // é", "module {} // é".encode()),
        (Exported(), b"exported"),
    ],
)
def test_program_is_bytes_text_or_exported(module: object, content: bytes) -> None:
    """Anything that holds a program is taken as it is."""
    result, findings = plan({0: module})

    assert [] == findings
    assert ({"model.mlir": content}, []) == (result.files, result.compiled_batch_sizes)


def test_sizes_become_files_in_order() -> None:
    """Any key but 0 alone is a batch size."""
    result, findings = plan({8: b"8", 1: b"1", 16: b"16"})

    assert [] == findings
    assert ["model.b1.mlir", "model.b8.mlir", "model.b16.mlir"] == list(result.files)
    assert [1, 8, 16] == result.compiled_batch_sizes


def test_variants_are_given_in_numpy_order() -> None:
    """A tuple lists an input's axes as its shape does; the manifest gets letters."""
    variants = [(480, 640, 7), (640, 480, 9)]
    modules = {variant: {1: b"1", 4: b"4"} for variant in variants}

    result, findings = plan(modules, variants, (IMAGE, MASK))

    assert [] == findings
    assert [{"h": 480, "w": 640, "a": 7}, {"h": 640, "w": 480, "a": 9}] == result.input_shapes
    assert [f"model.v{v}.b{size}.mlir" for v in (0, 1) for size in (1, 4)] == list(result.files)
    assert [1, 4] == result.compiled_batch_sizes


def test_variants_without_batch_sizes_are_single_programs() -> None:
    """The key 0 works per variant too."""
    result, findings = plan({(5,): {0: b"x"}}, [[5]], (MASK,))

    assert [] == findings
    assert ({"model.v0.mlir": b"x"}, []) == (result.files, result.compiled_batch_sizes)


def test_shared_letter_takes_one_size() -> None:
    """Two axes may share a letter as long as their sizes agree."""
    ids, mask = (IOSpec(name, "i32", (1, -1), 0, "l") for name in ("ids", "mask"))

    result, findings = plan({(8, 8): {1: b"x"}}, [(8, 8)], (ids, mask))
    assert [] == findings
    assert [{"l": 8}] == result.input_shapes

    _, (finding,) = plan({(8, 9): {1: b"x"}}, [(8, 9)], (ids, mask))
    assert "axis 'l' is 9 in 'mask' and 8 in another input" in finding


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({}, ["modules must map batch sizes", "{} (dict)", "{0: program}"]),
        (b"x", ["modules must map batch sizes", "(bytes)"]),
        ({-1: b"x"}, ["batch sizes must be integers from 0 on, got -1"]),
        ({True: b"x"}, ["batch sizes must be integers", "True"]),
        ({"1": b"x"}, ["batch sizes must be integers", "'1'"]),
        ({0: b"x", 8: b"y"}, ["0 stands for the one program", "sizes 8"]),
        ({1: b""}, ["modules[1] must be a program", "b'' (bytes)"]),
        ({1: None}, ["modules[1] must be a program", "None"]),
        ({1: 3}, ["modules[1] must be a program", "3 (int)"]),
    ],
)
def test_fault_of_the_modules_is_named(modules: object, words: list[str]) -> None:
    """Each rule is refused with one sentence."""
    _, (finding,) = plan(modules)

    for word in words:
        assert word in finding


@pytest.mark.parametrize(
    ("modules", "shapes", "words"),
    [
        ({}, [(5,)], ["no programs for input_shapes[0] (5,)"]),
        ({(5,): b"x"}, [(5,)], ["modules[(5,)] must map batch sizes"]),
        ({(5,): {1: b"x"}, (6,): {1: b"x"}}, [(5,)], ["the keys (6,)", "does not list ((5,))"]),
        ({(5, 6): {1: b"x"}}, [(5, 6)], ["has 2 sizes", "1 variable axes: 'a of mask'"]),
        ({(0,): {1: b"x"}}, [(0,)], ["sizes must be integers above 0, got 0 (int)"]),
        (
            {(5,): {1: b"x"}, (6,): {1: b"x", 8: b"y"}},
            [(5,), (6,)],
            ["the same batch sizes", "(5,): [1]", "(6,): [1, 8]"],
        ),
    ],
)
def test_fault_of_the_variants_is_named(modules: object, shapes: object, words: list[str]) -> None:
    """Each rule is refused with one sentence."""
    _, (finding,) = plan(modules, shapes, (MASK,))

    for word in words:
        assert word in finding


def test_program_with_an_open_batch_axis_lists_its_sizes() -> None:
    """`dynamic_sizes` go to the manifest, sorted and once; the file is the one program."""
    result, findings = plan({0: b"x"}, inputs=(BATCHED,), dynamic_sizes=(8, 1, 8))

    assert [] == findings
    assert {"model.mlir": b"x"} == result.files
    assert ([1, 8], True) == (result.compiled_batch_sizes, result.is_dynamic)


def test_every_variant_may_have_an_open_batch_axis() -> None:
    """One program per variant, and the same sizes for all."""
    modules = {(5,): {0: b"5"}, (7,): {0: b"7"}}
    result, findings = plan(modules, [(5,), (7,)], (MASK,), dynamic_sizes=(2,))

    assert [] == findings
    assert {"model.v0.mlir": b"5", "model.v1.mlir": b"7"} == result.files
    assert ([2], True) == (result.compiled_batch_sizes, result.is_dynamic)


@pytest.mark.parametrize(
    ("modules", "sizes", "inputs", "says"),
    [
        ({1: b"x", 8: b"y"}, (1, 8), (BATCHED,), "there are programs for the sizes 1, 8"),
        ({0: b"x"}, (), (BATCHED,), "at least one, such as (1, 8, 32), got none"),
        ({0: b"x"}, (1, 0, -2), (BATCHED,), "got 0, -2"),
        ({0: b"x"}, (2.0,), (BATCHED,), "got 2.0"),
        ({0: b"x"}, (1,), (UNBATCHED,), "no executable input has a batch axis"),
    ],
)
def test_dynamic_sizes_that_do_not_fit(
    modules: Any, sizes: Any, inputs: tuple[IOSpec, ...], says: str
) -> None:
    """Sizes are for one program with a batch axis."""
    _, findings = plan(modules, inputs=inputs, dynamic_sizes=sizes)

    assert 1 == len(findings)
    assert says in findings[0]
