"""Programs for tests of rewrites: convolutions of every form, and running text on a backend."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hloserve.core.tensors import Array
from hloserve.engine.programs.mlir import MlirProgram, copy_module, read_program
from hloserve.engine.programs.mlir_annotations import walk_ops

__all__ = ["Convolution", "convolutions", "counts", "module_of", "program_of", "run"]


def program_of(text: str) -> MlirProgram:
    """Read MLIR text as a program file."""
    return read_program(text.encode(), "model.mlir")


def module_of(text: str) -> Any:
    """A module that may be changed."""
    return copy_module(program_of(text))


def counts(module: Any, *names: str) -> dict[str, int]:
    """How many operations of each name a module has, wherever they are."""
    found = [op.name.removeprefix("stablehlo.") for op in walk_ops(module.operation)]
    return {name: found.count(name) for name in names}


def run(backend: Any, text: str | MlirProgram, *arrays: Array) -> list[Array]:
    """Compile a program and run it once."""
    program = program_of(text) if isinstance(text, str) else text
    arguments = backend.to_device(arrays)
    results = backend.execute(backend.compile(program, "m"), arguments)
    outputs = [np.array(output) for output in backend.to_host(results)]
    backend.free([*arguments, *results])
    return outputs


@dataclass(frozen=True)
class Convolution:
    """A convolution, and the program that computes it.

    Attributes:
        batch, features, made: extents of the image and of the result.
        spatial, window: extents of image and kernel.
        image_order, kernel_order, output_order: places of (b, f, 0, 1), (i, o, 0, 1), (b, f, 0, 1).
        edges: padding before and after.
    """

    batch: int
    features: int
    made: int
    groups: int
    spatial: Sequence[int]
    window: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    edges: Sequence[tuple[int, int]]
    image_order: Sequence[int]
    kernel_order: Sequence[int]
    output_order: Sequence[int]
    dtype: str = "f32"

    @property
    def image_shape(self) -> list[int]:
        """Extents of the image, in its order."""
        return _placed([self.batch, self.features, *self.spatial], self.image_order)

    @property
    def kernel_shape(self) -> list[int]:
        """Extents of the kernel, in its order."""
        return _placed([self.features // self.groups, self.made, *self.window], self.kernel_order)

    @property
    def output_shape(self) -> list[int]:
        """Extents of the result, in its order."""
        sizes = [
            (extent + low + high - (window - 1) * dilation - 1) // stride + 1
            for extent, (low, high), window, dilation, stride in zip(
                self.spatial, self.edges, self.window, self.dilations, self.strides, strict=True
            )
        ]
        return _placed([self.batch, self.made, *sizes], self.output_order)

    @property
    def arrays(self) -> tuple[Array, Array]:
        """An image and a kernel of random numbers, the same for the same convolution."""
        random = np.random.default_rng(zlib.crc32(str(self).encode()))
        dtype = {"f32": np.float32, "f64": np.float64}[self.dtype]
        shapes = (self.image_shape, self.kernel_shape)
        image, kernel = (random.standard_normal(shape).astype(dtype) for shape in shapes)
        return image, kernel

    def text(self) -> str:
        """The program."""
        image, kernel, output = (
            f"tensor<{'x'.join(map(str, shape))}x{self.dtype}>"
            for shape in (self.image_shape, self.kernel_shape, self.output_shape)
        )
        rank = len(self.spatial)
        numbers = "x".join(
            _numbers(order, names, rank)
            for order, names in ((self.image_order, "bf"), (self.kernel_order, "io"))
        )
        edges = ", ".join(f"[{low}, {high}]" for low, high in self.edges)
        window = (
            f"stride = {list(self.strides)}, pad = [{edges}], rhs_dilate = {list(self.dilations)}"
        )
        return f"""module @m {{ func.func public @main(%x: {image}, %k: {kernel}) -> {output} {{
            %y = stablehlo.convolution(%x, %k)
              dim_numbers = {numbers}->{_numbers(self.output_order, "bf", rank)},
              window = {{{window}}}
              {{batch_group_count = 1 : i64, feature_group_count = {self.groups} : i64}}
              : ({image}, {kernel}) -> {output}
            return %y : {output} }} }}"""


def _placed(extents: Sequence[int], order: Sequence[int]) -> list[int]:
    placed = [0] * len(extents)
    for extent, place in zip(extents, order, strict=True):
        placed[place] = extent
    return placed


def _numbers(order: Sequence[int], names: str, rank: int) -> str:
    placed = [""] * len(order)
    for name, place in zip([*names, *map(str, range(rank))], order, strict=True):
        placed[place] = name
    return f"[{', '.join(placed)}]"


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    """Convolutions, most of them of the forms that are rewritten."""
    rank = draw(st.integers(1, 3))
    form = draw(st.sampled_from(["pointwise", "depthwise", "plain"]))
    extents = st.integers(1, 4)
    features = draw(st.integers(2, 5) if form == "depthwise" else extents)
    few = st.lists(st.integers(1, 3), min_size=rank, max_size=rank)
    window = [1] * rank if form == "pointwise" else draw(few)
    dilations = draw(few)
    edge = st.just(0) if form == "pointwise" and draw(st.booleans()) else st.integers(-1, 2)
    edges = [(draw(edge), draw(edge)) for _ in range(rank)]
    spatial = [
        max(1, (size - 1) * dilation + 1 - low - high + draw(st.integers(0, 4)))
        for size, dilation, (low, high) in zip(window, dilations, edges, strict=True)
    ]
    order = st.permutations(range(rank + 2))
    return Convolution(
        batch=draw(extents),
        features=features,
        made=features if form == "depthwise" else draw(extents),
        groups=features if form == "depthwise" else 1,
        spatial=spatial,
        window=window,
        strides=draw(few),
        dilations=dilations,
        edges=edges,
        image_order=draw(order),
        kernel_order=draw(order),
        output_order=draw(order),
        dtype=draw(st.sampled_from(["f32", "f32", "f64"])),
    )
