"""A model that serves: what clients see, the hooks around it, and its part on the device.

What lives here: `Model` and the two steps around an execution. What does not: the making of one
(`hloserve.models.loader`) and its programs (`hloserve.engine.device_model`). Immutable once built;
the loop thread reads it, hook threads call `preprocess` and `postprocess`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hloserve.bundle.labels import Labels
from hloserve.bundle.manifest import Manifest
from hloserve.core.requests import ModelMetadata, TensorMetadata
from hloserve.core.tensors import Array, Tensors, TensorSpec
from hloserve.engine.backend import Executable
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.programs.notes import NO_NOTES, ProgramNotes
from hloserve.engine.residency.placement import WeightsPlacement
from hloserve.models.hook_file import Hooks
from hloserve.models.hook_processes import HookProcesses
from hloserve.models.hook_results import call_hook, check_rows, check_tensors, hook_tensors

__all__ = ["Model", "Uses", "metadata_of"]


class Uses:
    """How many requests a model is serving, so that it is freed under none of them.

    Attributes:
        count: raise it when a request has found the model, and `end` one when it is done with it.

    Threading: loop thread only.
    """

    __slots__ = ("_on_idle", "count")

    def __init__(self) -> None:
        self.count = 0
        self._on_idle: Callable[[], object] | None = None

    def end(self) -> None:
        """Say that a request is done with the model."""
        self.count -= 1
        if not self.count and self._on_idle is not None:
            self._tell()

    def retire(self, on_idle: Callable[[], object]) -> None:
        """Call `on_idle` when no request uses the model; at once when none does. Once per model.

        The model must no longer be in the registry, so that no request finds it.
        """
        self._on_idle = on_idle
        if not self.count:
            self._tell()

    def _tell(self) -> None:
        on_idle, self._on_idle = self._on_idle, None
        if on_idle is not None:
            on_idle()


@dataclass(frozen=True, eq=False)
class Model:
    """One loaded bundle.

    Attributes:
        name: served name.
        bundle: its directory.
        manifest: what it declares.
        inputs: what clients send.
        outputs: what clients get.
        hooks: None when the bundle has no hook file.
        hook_processes: run the hooks; None when threads of this process do.
        device: programs and weights.
        metadata: V2 metadata, made once.
        weight_bytes: what the weights take on the device.
        placement: has charge of the weights; None for a model without a program.
        warnings: what was ignored at load, one sentence each.
        labels: names of classes, by output.
        restored_programs: how many were not compiled, but came from the cache or an older model.
        compiled: its programs by the key of `Backend.cache_key`.
        notes: what was done to its programs before they were compiled.
        uses: the requests that are being served with it.
        input_names: of the executable inputs, in program order.
        output_names: of the executable outputs, in program order.
        has_preprocess: a hook makes the executable inputs.
        has_postprocess: a hook makes the client-facing outputs.
        is_meta: a function over other models answers, so `device` has no program and no weights,
            only counters.
    """

    name: str
    bundle: Path
    manifest: Manifest
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    hooks: Hooks | None
    device: DeviceModel
    metadata: ModelMetadata
    hook_processes: HookProcesses | None = field(default=None, repr=False)
    weight_bytes: int = 0
    placement: WeightsPlacement | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()
    labels: Labels = field(default_factory=dict, repr=False)
    restored_programs: int = 0
    compiled: Mapping[str, Executable] = field(default_factory=dict, repr=False)
    notes: ProgramNotes = field(default=NO_NOTES, repr=False)
    uses: Uses = field(default_factory=Uses, repr=False)
    input_names: tuple[str, ...] = field(init=False)
    output_names: tuple[str, ...] = field(init=False)
    has_preprocess: bool = field(init=False)
    has_postprocess: bool = field(init=False)
    is_meta: bool = field(init=False)

    def __post_init__(self) -> None:
        hooks = self.hooks
        derived = {
            "input_names": tuple(spec.name for spec in self.device.inputs),
            "output_names": tuple(spec.name for spec in self.device.outputs),
            "has_preprocess": hooks is not None and hooks.preprocess is not None,
            "has_postprocess": hooks is not None and hooks.postprocess is not None,
            "is_meta": hooks is not None and hooks.run is not None,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def preprocess(self, inputs: Tensors) -> list[Array]:
        """Make executable inputs of client inputs; the hook gets writable copies.

        Returns:
            One C-contiguous array per executable input, in order, checked.

        Raises:
            InvalidInput: the hook refused the input.
            HookFailed: the hook raised, or returned something that does not fit.

        Threading: hook threads.
        """
        specs = self.device.inputs
        if self.hooks is None or self.hooks.preprocess is None:
            return [inputs[spec.name] for spec in specs]
        given = hook_tensors(inputs.keys(), inputs.values())
        result = call_hook(
            self.name, "preprocess", self.hooks.directory, self.hooks.preprocess, given
        )
        prepared = check_tensors(self.name, "preprocess", specs, result)
        check_rows(self.name, "preprocess", specs, prepared)
        return prepared

    def postprocess(self, outputs: list[Array]) -> Tensors:
        """Make client outputs of the executable outputs of one request; likewise.

        Args:
            outputs: in executable order; may be views of device memory.

        Raises:
            InvalidInput: the hook refused what came of the input.
            HookFailed: the hook raised, or returned something that does not fit.

        Threading: hook threads.
        """
        names = [spec.name for spec in self.device.outputs]
        if self.hooks is None or self.hooks.postprocess is None:
            return dict(zip(names, outputs, strict=True))
        given = hook_tensors(names, outputs)
        result = call_hook(
            self.name, "postprocess", self.hooks.directory, self.hooks.postprocess, given
        )
        arrays = check_tensors(self.name, "postprocess", self.outputs, result)
        return {spec.name: array for spec, array in zip(self.outputs, arrays, strict=True)}

    def renamed(self, name: str, bundle: Path) -> "Model":
        """The same model under another name: programs, weights, queue and counters are shared.

        Requests that are being served go on with this one. From now on the device calls it `name`.

        Threading: loop thread.
        """
        self.device.name = name
        if self.hooks is not None:
            self.hooks.move(bundle)
        if self.hook_processes is not None:
            self.hook_processes.move(bundle, name)
        metadata = replace(self.metadata, name=name)
        manifest = replace(self.manifest, name=name)
        return replace(self, name=name, bundle=bundle, metadata=metadata, manifest=manifest)

    @property
    def is_servable(self) -> bool:
        """False while requests are refused for where the weights are. Any thread."""
        return self.placement is None or self.placement.is_servable(self.device)

    def free(self) -> None:
        """Give the weights and the hook module back. The model must be idle. Idempotent.

        Threading: any thread once nothing of it is dispatched.
        """
        if self.placement is not None:
            self.placement.discard(self.device)
        if self.hooks is not None:
            self.hooks.close()
        if self.hook_processes is not None:
            self.hook_processes.close()


def metadata_of(
    name: str,
    platform: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    batch_sizes: tuple[int, ...] = (),
) -> ModelMetadata:
    """What V2 metadata says of a model."""
    return ModelMetadata(name, (), platform, _metadata(inputs), _metadata(outputs), batch_sizes)


def _metadata(specs: tuple[TensorSpec, ...]) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(spec.name, spec.dtype.kserve or spec.dtype.token, spec.wire_shape)
        for spec in specs
    )
