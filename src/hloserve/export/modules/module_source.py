"""Modules of JAX libraries as a source of bundles.

What lives here: `JaxModule`, which each library's modules become, and `ModuleSource`, which traces
them as JAX functions (`hloserve.export.jax.source`) and explains what must not be served. What does
not: the libraries themselves (`hloserve.export.modules.flax_linen`,
`hloserve.export.modules.flax_nnx`, `hloserve.export.modules.equinox_module`).

Rules.
1. The traced program calls the module with arguments in the places of its weights; the proof runs
   the author's module as its library does, without replacing anything.
2. An error that comes from the module names the layer.

One thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import jax
import numpy as np
from typing_extensions import override

from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.export.jax.source import JaxSource
from hloserve.export.modules.layers import Layer, argument_problem, layer_of
from hloserve.export.modules.trees import WeightTree
from hloserve.export.options import ExportOptions
from hloserve.export.source import Shape, SymbolicTraceFailed, Traced

__all__ = ["JaxModule", "ModuleSource"]


class JaxModule(ABC):
    """A module of a JAX library, ready to be called.

    Attributes:
        framework: recorded as provenance.
        provenance: likewise.
        weights: its leaves.
        keywords: constant keyword arguments of the call.
        trailing: positional arguments of the call after the inputs.
        hint: how the inputs reach the layers, when that is not obvious; for errors.
        failed: the last error of `call`, and the layer that it came from.
    """

    framework: ClassVar[str]
    provenance: Mapping[str, object]
    weights: WeightTree
    keywords: Mapping[str, Any]
    trailing: int = 0
    hint: str = ""
    failed: tuple[BaseException, Layer | None] | None = None

    @property
    @abstractmethod
    def called(self) -> Callable[..., Any]:
        """What is called with the inputs and the keywords, for its signature."""

    @abstractmethod
    def call(self, inputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """Call the module with `leaves` in place of its own; traceable."""

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> Any:
        """Call the author's module as its library does."""

    @abstractmethod
    def explain(
        self, error: BaseException, layer: Layer | None, inputs: Sequence[Any]
    ) -> list[str]:
        """Say what an error of the library means for an author; empty for other errors."""

    @abstractmethod
    def leftovers(self, inputs: Sequence[Any]) -> list[str]:
        """Findings about what the last `call` did besides computing results."""

    def random_findings(self, names: Sequence[str]) -> list[str]:
        """Explain that results depend on this random state."""
        return [
            f"random key {name!r} is part of the model, and the results depend on it; answers must"
            " follow from the inputs: take the random part out"
            for name in names
        ]

    @contextmanager
    def locating(self, layers: Callable[[], Mapping[int, Layer]]) -> Iterator[None]:
        """Note an error and its layer in `failed`, and let it pass.

        Args:
            layers: by identity.
        """
        try:
            yield
        except Exception as error:
            self.failed = error, layer_of(error, layers())
            raise


class ModuleSource(JaxSource):
    """A module with example inputs.

    Args:
        module: opened by its library's file.
        example_inputs: one per argument.
        options: those of the export.
    """

    def __init__(self, module: JaxModule, example_inputs: Any, options: ExportOptions) -> None:
        super().__init__(
            self._apply,
            example_inputs,
            list(module.weights.named),
            options,
            framework=module.framework,
            provenance=module.provenance,
        )
        self._module = module
        finding = argument_problem(
            module.called, len(self._examples()) + module.trailing, module.keywords
        )
        if finding is not None:
            raise ExportProblem(self._model, finding)

    @override
    def trace(self, shapes: Sequence[Shape]) -> Traced:
        self._module.failed = None
        try:
            traced = super().trace(shapes)
        except (ExportProblem, SymbolicTraceFailed) as problem:
            raise self._explained(problem) from problem.__cause__
        with self.settings():
            examples = self._examples()
            findings = self._module.leftovers(examples)
            random = self._module.weights.used_random_state(
                lambda leaves: self.results(self._module.call(examples, leaves))[1]
            )
        if random:
            findings += self._module.random_findings(random)
        if findings:
            raise ExportProblem(self._model, findings)
        return traced

    @override
    def run(self, inputs: Sequence[Array]) -> list[Array]:
        with self.settings():
            given = self.arguments([jax.numpy.asarray(array) for array in inputs])
            _, results = self.results(self._module.run(given))
            return [np.asarray(result) for result in results]

    def _examples(self) -> tuple[Any, ...]:
        return self.arguments([array for _, array in self.inputs])

    def _apply(self, *arguments: Any) -> Any:
        """What is traced: the inputs, then an argument per weight of the module."""
        count = len(arguments) - len(self._module.weights.named)
        leaves = self._module.weights.leaves(arguments[count:])
        return self._module.call(arguments[:count], leaves)

    def _explained(
        self, problem: ExportProblem | SymbolicTraceFailed
    ) -> ExportProblem | SymbolicTraceFailed:
        """The problem in terms of the module, when it came from there."""
        if self._module.failed is None or problem.__cause__ is not self._module.failed[0]:
            return problem
        error, layer = self._module.failed
        with self.settings():
            findings = self._module.explain(error, layer, self._examples())
        if findings:  # has nothing to do with open extents, and no trace per size would help
            return ExportProblem(self._model, findings)
        where = f"{layer}: " if layer is not None else ""
        if isinstance(problem, SymbolicTraceFailed):
            return SymbolicTraceFailed(f"{where}{problem}")
        hint = f" ({self._module.hint})" if where and self._module.hint else ""
        return ExportProblem(
            self._model, [f"{where}{finding}{hint}" for finding in problem.findings]
        )
