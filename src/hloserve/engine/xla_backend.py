"""XLA through jaxlib's PJRT client. The only module that imports jax.

What lives here: compiling, transfers and execution on one device. What does not: reading programs
(`hloserve.engine.programs.mlir`) and everything that decides
(`hloserve.engine.scheduling.scheduler`). jax serves as the carrier of shardings, of abstract values
and of the array type; nothing is traced.

Rules.
1. The names below `jax._src` and `jaxlib._jax` are private: they are bound once, here, and a
   version that moved them is refused by name (`UntestedVersion`).
2. 64-bit types stay 64 bits wide: every transfer says `enable_x64`, because without it jax turns
   int64 2**40 into 0 in silence.
3. The CPU client is our own and runs synchronously. A dispatch waits for its results anyway, and
   without the handover to another thread it takes a third of the time. Tests make one that runs
   ahead, to show on it what accelerators do.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import override

from hloserve.core.errors import (
    BackendFailed,
    ConfigProblem,
    MissingExtra,
    UntestedVersion,
)
from hloserve.core.tensors import Array
from hloserve.engine.backend import Backend, Buffer, Executable, MemoryStats, Program
from hloserve.engine.programs import mlir
from hloserve.engine.programs.compiling import (
    CompileSettings,
    pack_executable,
    plan_options,
    prepare_program,
    processor_identity,
    rewriter_revision,
    unpack_executable,
)
from hloserve.engine.programs.notes import ProgramNotes
from hloserve.engine.programs.numerics import NumericsMode, has_tf32
from hloserve.engine.programs.signature import TensorType
from hloserve.engine.programs.tf32_probe import PROBE_PROGRAM, attest, probe_inputs
from hloserve.engine.xla_client import open_devices, request_memory, translated
from hloserve.engine.xla_executable import XlaExecutable

try:
    import jax
except ImportError as missing:
    raise MissingExtra("server", "running StableHLO programs", missing) from missing
try:
    import jaxlib.version
    from jax._src.core import ShapedArray
    from jax.sharding import SingleDeviceSharding
    from jaxlib import _jax, xla_client
    from jaxlib.cpu import _lapack

    _batched_device_put = xla_client.batched_device_put
    _array_result_handler = xla_client.array_result_handler
    _XlaRuntimeError: type[Exception] = xla_client.XlaRuntimeError
    _collect_garbage = _jax.collect_garbage
    _ZERO_COPY = xla_client.HostBufferSemantics.ZERO_COPY
except (ImportError, AttributeError) as moved:
    raise UntestedVersion("jax", jax.__version__, "0.10 to 0.11") from moved

__all__ = ["XlaBackend"]

_COMPILER_VARIABLES = ("XLA_FLAGS", "NVIDIA_TF32_OVERRIDE", "TF_XLA_FLAGS", "JAX_PLATFORMS")
_AVALS_KEPT = 8192
_EMPTY_PROGRAM = b"module { func.func public @main() { return } }"


class XlaBackend(Backend):
    """One device of PJRT.

    Args:
        platform: ``cpu``, or a platform whose jax plugin is installed (``cuda``).
        ordinal: which of its devices.
        mem_fraction: share of the device's memory that may be used; None leaves it to jax.
        preallocate: take that share at once; None leaves it to jax. Like `mem_fraction` it counts
            for the first accelerator client of the process, and not for the CPU.
        runs_ahead: on the CPU, hand each execution to a thread of XLA and return, as accelerators
            do: slower for what is small, and it may run two at once.
        cpu_threads: that a program computes with on the CPU; None for one on each.
        compiling: how programs are compiled. For numerics `f32` the variable NVIDIA_TF32_OVERRIDE
            of this process is set to 0, before a client exists.

    Raises:
        ConfigProblem: there is no such device, or it or XLA cannot do what `compiling` says.

    Threading: `read_program`, `specialise` and `compile` on any thread; see `Backend`.
    """

    def __init__(
        self,
        platform: str = "cpu",
        ordinal: int = 0,
        *,
        mem_fraction: float | None = None,
        preallocate: bool | None = None,
        runs_ahead: bool = False,
        cpu_threads: int | None = None,
        compiling: CompileSettings | None = None,
    ) -> None:
        self._platform = platform
        self._compiling = compiling or CompileSettings()
        if self._compiling.numerics == "f32":
            os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        if platform != "cpu":
            request_memory(mem_fraction, preallocate)
        devices = open_devices(platform, runs_ahead=runs_ahead, cpu_threads=cpu_threads)
        if not 0 <= ordinal < len(devices):
            raise ConfigProblem(
                "device", "runtime.device_ordinal", f"{ordinal}: {platform} has {len(devices)}"
            )
        self._device = devices[ordinal]
        self._devices = [self._device]
        self._client = self._device.client
        self._sharding = SingleDeviceSharding(self._device)
        self._avals: dict[tuple[Any, Any], Any] = {}
        self._runs_ahead = runs_ahead or platform != "cpu"
        capability = str(getattr(self._device, "compute_capability", ""))
        self._is_capable = has_tf32(platform, capability)
        self._identity = json.dumps(
            {
                "jaxlib": jaxlib.version.__version__,
                "platform": [platform, str(self._client.platform_version)],
                "device": [self.device_kind, capability],
                "options": self._options().SerializeAsString().hex(),
                "overrides": plan_options(platform, self._compiling),
                "numerics": self._compiling.numerics,
                "rewriter": [self._compiling.has_rewrites, rewriter_revision()],
                "flags": {name: os.environ.get(name, "") for name in _COMPILER_VARIABLES},
                "processor": processor_identity() if platform == "cpu" else "",
                "threads": cpu_threads if platform == "cpu" else None,
            },
            sort_keys=True,
        )
        self._check_compiling()

    @property
    @override
    def platform(self) -> str:
        return self._platform

    @property
    @override
    def device_kind(self) -> str:
        return str(self._device.device_kind)

    @property
    @override
    def runs_ahead(self) -> bool:
        return self._runs_ahead

    @override
    def read_program(self, artifact: bytes, source: str) -> mlir.MlirProgram:
        return mlir.read_program(artifact, source)

    @override
    def specialise(self, program: Program, inputs: Sequence[TensorType]) -> mlir.MlirProgram:
        assert isinstance(program, mlir.MlirProgram)
        return mlir.refine_program(program, inputs)

    @override
    def compile(self, program: Program, model: str) -> XlaExecutable:
        assert isinstance(program, mlir.MlirProgram)
        if any(
            None in kind.shape for kind in (*program.signature.inputs, *program.signature.outputs)
        ):
            raise BackendFailed("compiling", model, f"extents are open: {program.signature}")
        return self._compile(program, model, self._compiling)

    def _compile(
        self, program: mlir.MlirProgram, model: str, settings: CompileSettings
    ) -> XlaExecutable:
        prepared, notes = prepare_program(
            program, self._platform, settings, is_capable=self._is_capable
        )
        _prepare_calls(program)
        try:
            loaded = self._client.compile_and_load(
                prepared.module, _jax.DeviceList((self._device,)), self._options()
            )
        except (_XlaRuntimeError, ValueError, RuntimeError) as error:
            if str(error).startswith("NOT_FOUND"):
                reason = (
                    f"{error}; it was exported for another platform: export for {self._platform}"
                )
                raise BackendFailed("compiling", model, reason) from error
            raise translated("compiling", model, error) from error
        return self._executable(program, loaded, model, notes)

    @override
    def cache_key(self, program: Program) -> str:
        assert isinstance(program, mlir.MlirProgram)
        digest = hashlib.sha256(self._identity.encode())
        digest.update(mlir.bytecode_of(program))
        return digest.hexdigest()

    @override
    def serialise(self, executable: Executable) -> bytes | None:
        assert isinstance(executable, XlaExecutable)
        if executable.restored_from is not None:
            return executable.restored_from
        try:
            payload = bytes(executable.loaded.serialize())
        except (_XlaRuntimeError, ValueError, RuntimeError):
            return None  # some platforms cannot
        return pack_executable(executable.notes, payload)

    @override
    def restore(self, payload: bytes, program: Program, model: str) -> XlaExecutable:
        assert isinstance(program, mlir.MlirProgram)
        _prepare_calls(program)
        try:
            notes, compiled = unpack_executable(payload)
            loaded = self._client.deserialize_executable(
                compiled, _jax.DeviceList((self._device,)), self._options()
            )
        except (_XlaRuntimeError, ValueError, RuntimeError) as error:
            raise translated("restoring", model, error) from error
        return self._executable(program, loaded, model, notes, payload)

    def _executable(
        self,
        program: mlir.MlirProgram,
        loaded: Any,
        model: str,
        notes: ProgramNotes,
        restored_from: bytes | None = None,
    ) -> XlaExecutable:
        handlers = [
            _array_result_handler(
                self._aval(kind.shape, kind.dtype.numpy), self._sharding, True, True
            )
            for kind in program.signature.outputs
        ]
        return XlaExecutable(program.signature, loaded, handlers, model, notes, restored_from)

    def _options(self) -> Any:
        options = xla_client.CompileOptions()
        options.num_replicas = 1
        options.num_partitions = 1
        options.env_option_overrides = list(plan_options(self._platform, self._compiling).items())
        return options

    def _check_compiling(self) -> None:
        """Find now what every program would fail with, or would not tell."""
        settings = self._compiling
        if settings.numerics == "tf32" and not self._is_capable:
            raise ConfigProblem(
                "device",
                "runtime.numerics",
                f"is 'tf32', but {self._platform} device {self.device_kind} has no TF32; set 'auto'"
                " or 'f32'",
            )
        if settings.options:
            self._check_options()
        if self._platform == "cuda":
            attest(settings.numerics, self.probe)

    def _check_options(self) -> None:
        try:
            self._client.compile_and_load(
                mlir.read_program(_EMPTY_PROGRAM, "options").module,
                _jax.DeviceList((self._device,)),
                self._options(),
            )
        except (_XlaRuntimeError, ValueError, RuntimeError, TypeError) as error:
            reason = str(error).removeprefix("INVALID_ARGUMENT: ")
            raise ConfigProblem(
                "configuration",
                "runtime.compile_options",
                f"XLA of jaxlib {jaxlib.version.__version__} refuses them: {reason.rstrip('.')};"
                " correct the option, or remove it",
            ) from error

    def probe(self, mode: NumericsMode) -> Array:
        """Run the product that tells TF32 from float32 as a mode has it, for `tf32_probe`."""
        program = self.read_program(PROBE_PROGRAM, "probe")
        settings = replace(self._compiling, numerics=mode)
        executable = self._compile(program, "probe", settings)
        arguments = self.to_device(probe_inputs())
        results = self.execute(executable, arguments)
        (result,) = self.to_host(results)
        self.free([*arguments, *results])
        return result

    @override
    def to_device(self, arrays: Sequence[Array]) -> list[Buffer]:
        sharding, devices = self._sharding, self._devices
        try:
            return [
                _batched_device_put(
                    self._aval(array.shape, array.dtype),
                    sharding,
                    [array],
                    devices,
                    True,
                    False,
                    _ZERO_COPY,
                    True,  # enable_x64
                )
                for array in arrays
            ]
        except _XlaRuntimeError as error:
            raise translated("transfer to the device", "", error) from error

    @override
    def execute(self, executable: Executable, arguments: Sequence[Buffer]) -> Sequence[Buffer]:
        assert isinstance(executable, XlaExecutable)
        try:
            results = executable.loaded.execute_sharded(arguments)
            return results.consume_with_handlers(executable.handlers)  # type: ignore[no-any-return]
        except (_XlaRuntimeError, ValueError, RuntimeError) as error:
            raise translated("execution", executable.model, error) from error

    @override
    def begin_to_host(self, buffers: Sequence[Buffer]) -> None:
        if self._runs_ahead:
            with suppress(_XlaRuntimeError, RuntimeError):  # to_host meets it again and tells
                for buffer in buffers:
                    buffer.copy_to_host_async()  # type: ignore[attr-defined]

    @override
    def to_host(self, buffers: Sequence[Buffer]) -> list[Array]:
        try:
            return [np.asarray(buffer) for buffer in buffers]
        except (_XlaRuntimeError, RuntimeError) as error:
            raise translated("execution", "", error) from error

    @override
    def free(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            buffer.delete()  # type: ignore[attr-defined]
        _collect_garbage()

    @override
    def pin(self, memory: Array) -> bool:
        try:
            self._client.dma_map(memory.ctypes.data, memory.nbytes)
        except (_XlaRuntimeError, AttributeError):  # not every platform and version has it
            return False
        return True

    @override
    def unpin(self, memory: Array) -> None:
        with suppress(_XlaRuntimeError):  # the client refuses what it does not know
            self._client.dma_unmap(memory.ctypes.data)

    @override
    def memory(self) -> MemoryStats | None:
        try:
            stats = self._device.memory_stats()
        except _XlaRuntimeError:
            return None
        if not stats:
            return None
        return MemoryStats(
            in_use_bytes=stats.get("bytes_in_use", 0),
            limit_bytes=stats.get("bytes_limit"),
            peak_in_use_bytes=stats.get("peak_bytes_in_use"),
            pool_bytes=stats.get("pool_bytes"),
        )

    def _aval(self, shape: Any, dtype: Any) -> Any:
        """The abstract value of a shape: making one costs as much as a transfer, so keep them."""
        aval = self._avals.get((shape, dtype))
        if aval is None:
            if len(self._avals) >= _AVALS_KEPT:
                self._avals.clear()
            aval = self._avals[shape, dtype] = ShapedArray(shape, dtype)
        return aval


def _prepare_calls(program: mlir.MlirProgram) -> None:
    if any(target.startswith("lapack_") for target in program.custom_calls):
        _lapack.initialize()  # jax does so when it lowers; without it a call is a null pointer
