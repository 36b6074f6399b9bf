"""StableHLO programs: read, check, clean, refine. The only module by which others touch MLIR.

What lives here: from the bytes of a program file to an MLIR module whose `main` is known by its
`Signature`. What does not: taking annotations out (`hloserve.engine.programs.mlir_annotations`),
comparing that signature with the manifest and the weights
(`hloserve.engine.programs.program_check`) and compiling (`hloserve.engine.xla_backend`). jaxlib
only, no jax; nothing here needs a device.

Rules.
1. Every program has an MLIR context of its own, so programs are independent: any thread may read,
   refine or print one, one thread at a time per program.
2. What is returned is a plain one-device program: donation and sharding annotations are gone,
   because donation makes the runtime eat the weights on the first run.
"""

import io
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hloserve.core.dtypes import by_stablehlo
from hloserve.core.errors import MissingExtra, ProgramProblem, UntestedVersion
from hloserve.engine.programs.signature import Signature, TensorType

# XLA reads this when it is loaded. Its notices are no news to an operator; a set value wins.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
try:
    import jaxlib.version
    from jaxlib.mlir import ir

    from hloserve.engine.programs.mlir_annotations import strip_annotations
except ImportError as missing:
    raise MissingExtra("server", "reading StableHLO programs", missing) from missing
try:
    from jaxlib import _jax
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    _refine_polymorphic_shapes = _jax.mlir.refine_polymorphic_shapes
    _registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(_registry)
except (ImportError, AttributeError) as moved:
    raise UntestedVersion("jaxlib", jaxlib.version.__version__, "0.10 to 0.11") from moved

__all__ = [
    "Diagnostics",
    "MlirProgram",
    "bytecode_of",
    "copy_module",
    "one_line",
    "read_program",
    "refine_program",
    "unused_arguments",
]

_MAGIC = b"ML\xefR"
_PRODUCER = re.compile(rb"StableHLO_v(\d{1,9}\.\d{1,9}\.\d{1,9})")
_AROUND_ASSERTION = re.compile(
    r"^.*?error: (?:loc\([^)]*\): )?| Using the following polymorphic.*|<unknown>:0: note:.*", re.S
)  # what XLA and jax put before and after a failed assertion of the program itself


@dataclass(frozen=True, slots=True, eq=False)
class MlirProgram:
    """One program: a module and what its `main` takes and returns.

    Attributes:
        signature: types of `main`; None for an extent that is not fixed.
        module: the MLIR module; it keeps its context alive.
        source: the file it came from, for messages.
        custom_calls: targets of its custom calls.
        stablehlo_version: what the artifact was written for; empty for text and plain bytecode.
        device_count: devices that it was exported for; it is read as a program for one.
    """

    signature: Signature
    module: Any
    source: str
    custom_calls: frozenset[str] = frozenset()
    stablehlo_version: str = ""
    device_count: int = 1


def read_program(artifact: bytes, source: str) -> MlirProgram:
    """Read a portable artifact, MLIR bytecode or MLIR text.

    Args:
        artifact: content of the program file.
        source: the file's name, for messages.

    Raises:
        ProgramProblem: it is none of these, it is too new for this jaxlib, or its `main` is not
            something that can be served; all findings about `main` at once.

    Threading: any thread.
    """
    context = _new_context()
    module = _parse(artifact, context, source)
    try:
        device_count = _device_count(module.operation.attributes)
        custom_calls = strip_annotations(module, source)
        signature, version = _signature_of(module, source), _version_of(artifact)
    except (RuntimeError, ValueError) as error:  # names that are no text; endless nesting
        reason = f"{type(error).__name__}: {one_line(str(error))}"
        raise ProgramProblem(
            source, f"a program with damaged content ({reason}); copy or export it again"
        ) from error
    return MlirProgram(signature, module, source, custom_calls, version, device_count)


def refine_program(program: MlirProgram, inputs: Sequence[TensorType]) -> MlirProgram:
    """Fix every open extent: a copy of `program` for static argument types.

    Args:
        program: left as it is.
        inputs: one static type per argument.

    Raises:
        ProgramProblem: the program does not allow these extents.

    Threading: one thread at a time per program.
    """
    source = program.source
    context = _new_context()
    copy = _reparse(_bytecode(program.module), context)
    wanted = ", ".join(map(str, inputs[:8])) + (", ..." if len(inputs) > 8 else "")
    with context, Diagnostics(context) as said:
        try:
            _pin_arguments(copy, inputs)
            refined = _refine_polymorphic_shapes(
                _bytecode(copy), enable_shape_assertions=True, validate_static_shapes=True
            )
            module = _reparse(refined, context)
        except (ValueError, RuntimeError, ir.MLIRError) as error:
            reason = one_line(_AROUND_ASSERTION.sub("", said.text() or str(error)))
            raise ProgramProblem(
                source, f"cannot be specialised to ({wanted}): {reason}"
            ) from error
    return MlirProgram(_signature_of(module, source), module, source, program.custom_calls)


def unused_arguments(program: MlirProgram) -> tuple[int, ...]:
    """The arguments of `main` that nothing in it looks at, by number.

    Threading: one thread at a time per program.
    """
    block = _functions(program.module)["main"].regions[0].blocks[0]
    return tuple(n for n, argument in enumerate(block.arguments) if not list(argument.uses))


class Diagnostics:
    """Collects what MLIR would print on stderr while the block runs."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._handler: Any = None
        self._messages: list[str] = []

    def __enter__(self) -> "Diagnostics":
        self._handler = self._context.attach_diagnostic_handler(self._collect)
        return self

    def __exit__(self, *_: object) -> None:
        self._handler.detach()

    def _collect(self, diagnostic: Any) -> bool:
        try:
            self._messages.append(str(diagnostic.message))
        except (RuntimeError, ValueError):  # it quotes bytes of the file that are no text
            self._messages.append("its content is damaged")
        return True

    def text(self) -> str:
        return "; ".join(self._messages)


def _new_context() -> Any:
    context = ir.Context()
    context.enable_multithreading(False)  # or each brings a pool of threads of its own
    context.append_dialect_registry(_registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context


def _parse(artifact: bytes, context: Any, source: str) -> Any:
    """Choose the reader by the first bytes, and say in words why one fails."""
    if not artifact:
        raise ProgramProblem(source, "the file is empty; export the program again")
    if artifact.startswith(_MAGIC):
        return _deserialize(artifact, context, source)
    try:
        text = artifact.decode("utf-8")
    except UnicodeDecodeError:
        start = artifact[:4].hex(" ")
        raise ProgramProblem(
            source,
            f"not a StableHLO program: it starts with bytes {start}, a portable artifact"
            f" starts with {_MAGIC.hex(' ')} (or the file is MLIR text); export the program with"
            " serialize_portable_artifact",
        ) from None
    if text.startswith("version https://git-lfs"):
        raise ProgramProblem(
            source, "this is a Git LFS pointer, not the program; run `git lfs pull`"
        )
    try:
        return ir.Module.parse(text, context)
    except ir.MLIRError as error:
        raise ProgramProblem(
            source, f"not a valid StableHLO program: {one_line(str(error))}"
        ) from error


def _deserialize(artifact: bytes, context: Any, source: str) -> Any:
    with Diagnostics(context) as said:
        try:
            return stablehlo.deserialize_portable_artifact(context, artifact)
        except (ValueError, RuntimeError, ir.MLIRError) as error:
            reason = one_line(said.text() or str(error))
            raise ProgramProblem(source, _why_unreadable(artifact, reason)) from error


def _why_unreadable(artifact: bytes, reason: str) -> str:
    current = str(stablehlo.get_current_version())
    runtime = f"this server reads up to {current} (jaxlib {jaxlib.version.__version__})"
    written = _version_of(artifact)
    if not written:
        return f"not a readable StableHLO artifact ({reason}); {runtime}; export the program again"
    if tuple(map(int, written.split("."))) > tuple(map(int, current.split("."))):
        return (
            f"was written for StableHLO {written}, {runtime}: export it with"
            f" target_version {current!r} or older, or upgrade jaxlib ({reason})"
        )
    return (
        f"StableHLO artifact of version {written} cannot be read ({reason}); {runtime}; the file"
        " is cut short or damaged: copy or export it again"
    )


def one_line(text: str) -> str:
    """Join MLIR's lines, without its long tail of remedies for compiler authors."""
    text = re.sub(r"\(\* corresponding to.*?\)|; for more info on dialect .*", "", text)
    text = text.removeprefix("Unable to parse module assembly:")
    return " ".join(text.split())[:600]


def _version_of(artifact: bytes) -> str:
    found = _PRODUCER.search(artifact[:64])
    return found[1].decode() if found else ""


def _device_count(attributes: Any) -> int:
    names = ("mhlo.num_partitions", "mhlo.num_replicas")
    return math.prod(ir.IntegerAttr(attributes[name]).value for name in names if name in attributes)


def copy_module(program: MlirProgram) -> Any:
    """A module of its own, in a context of its own, for whoever changes it.

    Threading: one thread at a time per program.
    """
    return _reparse(_bytecode(program.module), _new_context())


def bytecode_of(program: MlirProgram) -> bytes:
    """The program as MLIR bytecode: equal programs give equal bytes with one version of jaxlib."""
    return _bytecode(program.module)


def _bytecode(module: Any) -> bytes:
    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    return stream.getvalue()


def _reparse(bytecode: bytes, context: Any) -> Any:
    return ir.Module.parse(bytecode, context)


def _functions(module: Any) -> dict[str, Any]:
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def _function_type(function: Any) -> Any:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def _signature_of(module: Any, source: str) -> Signature:
    functions = _functions(module)
    main = functions.get("main")
    if main is None:
        names = ", ".join(functions) or "no function"
        raise ProgramProblem(
            source, f"no function is called 'main' (it has {names}); name the entry function 'main'"
        )
    findings: list[str] = []
    if not main.regions[0].blocks:
        findings.append("'main' is declared but has no body")
    for number, attributes in enumerate(_argument_attributes(main)):
        if "jax.global_constant" in attributes:
            findings.append(
                f"argument {number} is jax's platform index: the program was exported"
                " for several platforms; export it for one (platforms=['cpu'])"
            )
    types = _function_type(main)
    inputs = _tensor_types(types.inputs, "argument", findings)
    outputs = _tensor_types(types.results, "result", findings)
    if findings:
        raise ProgramProblem(source, findings)
    return Signature(tuple(inputs), tuple(outputs))


def _argument_attributes(function: Any) -> list[Any]:
    if "arg_attrs" not in function.attributes:
        return []
    return [ir.DictAttr(entry) for entry in ir.ArrayAttr(function.attributes["arg_attrs"])]


def _tensor_types(types: Sequence[Any], role: str, findings: list[str]) -> list[TensorType]:
    parsed = []
    for number, kind in enumerate(types):
        if not isinstance(kind, ir.RankedTensorType):
            findings.append(f"{role} {number} of 'main' is {kind}, not a ranked tensor")
        elif kind.encoding is not None:
            findings.append(f"{role} {number} of 'main' is {kind}: bounds are not served")
        else:
            try:
                dtype = by_stablehlo(str(kind.element_type))
            except KeyError:
                findings.append(
                    f"{role} {number} of 'main' is {kind}: element type"
                    f" {kind.element_type} has no bundle dtype"
                )
                continue
            shape = tuple(
                None if kind.is_dynamic_dim(axis) else kind.get_dim_size(axis)
                for axis in range(kind.rank)
            )
            parsed.append(TensorType(dtype, shape))
    return parsed


def _pin_arguments(module: Any, types: Sequence[TensorType]) -> None:
    """Give `main` static arguments; a convert keeps the uses inside typed as they were."""
    main = _functions(module)["main"]
    block = main.regions[0].blocks[0]
    first = block.operations[0]
    with ir.Location.unknown():
        wanted = [ir.Type.parse(str(kind)) for kind in types]
        for argument, new in zip(list(block.arguments), wanted, strict=True):
            old = argument.type
            if new == old:
                continue
            with ir.InsertionPoint(first):
                argument.set_type(new)
                converted = stablehlo.ConvertOp(old, argument)
                argument.replace_all_uses_except(converted.result, converted.operation)
        results = _function_type(main).results
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(wanted, results))
