"""TorchScript from a file or from the caller, as a module that can be exported.

What lives here: opening a file, saying what a file is that is none, and preparing the module. What
does not: what its graph holds (`hloserve.export.torchscript.inspection`), and exporting it
(`hloserve.export.torchscript.source`).

A file's pickles are never executed: `torch.jit.load` reads tensors, TorchScript's own types and
code, and files of any other kind are recognised by their parts, without loading them. One thread.
"""

import io
import lzma
import os
import pickle
import pickletools
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any, TypeAlias

from hloserve.core.errors import ExportProblem
from hloserve.export.torch.arrays import torch

__all__ = ["ScriptOrPath", "load_script", "quiet", "rewrap_parameters"]

ScriptOrPath: TypeAlias = Any
"""A path, or a `torch.jit.ScriptModule`."""

_DATA_MODULES = {
    "_codecs", "builtins", "collections", "numpy", "numpy.core.multiarray",
    "numpy._core.multiarray", "torch", "torch._tensor", "torch._utils", "torch.serialization",
    "torch.storage",
}  # fmt: skip
"""What a pickle of tensors alone names classes and functions of."""
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, LookupError),
    *(MemoryError, OSError, OverflowError, RuntimeError, ValueError),
)
"""What zipfile raises, for archives whose bytes are wrong: names that are no text, flags of
encryption, methods of compression that are not there, places and sizes beyond the file."""
_MOST_PICKLES = 10
"""The old format of torch.save has five in a file, and then the tensors' bytes."""
_HEAD_BYTES = 64


def load_script(script: ScriptOrPath, model: str, *, map_location: Any = "cpu") -> Any:
    """Load TorchScript, in eval mode, with every parameter a `torch.nn.Parameter`.

    Args:
        script: a path, or a ScriptModule, of which a copy is made.
        model: the bundle's name, for messages.
        map_location: where its tensors go; see `torch.jit.load`.

    Raises:
        ExportProblem: the file is missing, damaged, or of another kind; with the next step.
    """
    if isinstance(script, torch.jit.ScriptFunction):
        raise ExportProblem(
            model, "the model is a TorchScript function; call it in the forward() of a module"
        )
    if isinstance(script, torch.jit.ScriptModule):
        module = _copied(script, model)
    elif isinstance(script, str | os.PathLike):
        module = _load_file(Path(script), model, map_location)
    else:
        raise ExportProblem(
            model,
            f"expected a path or a ScriptModule, got {type(script).__name__}"
            + ("; use export_pytorch" if isinstance(script, torch.nn.Module) else ""),
        )
    _to_eval_mode(module)
    rewrap_parameters(module)
    return module


def quiet() -> Any:
    """A context in which torch does not tell that TorchScript is deprecated.

    The author of the file knows or cannot help it, and the advice (torch.export) is what we do.
    """
    return _Quiet(warnings.catch_warnings())


class _Quiet:
    """Warnings as before, less the one about torch.jit."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._context.__enter__()
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)")

    def __exit__(self, *exception: object) -> None:
        self._context.__exit__(*exception)


def rewrap_parameters(module: Any) -> None:
    """Make parameters of bare tensors.

    A parameter without gradient comes out of a file as a bare tensor, and `torch.export` takes
    only `torch.nn.Parameter` for one. Memory is shared.
    """
    for part in module.modules():
        for name, tensor in list(part.named_parameters(recurse=False)):
            if not isinstance(tensor, torch.nn.Parameter):
                setattr(part, name, torch.nn.Parameter(tensor, requires_grad=False))


def _to_eval_mode(module: Any) -> None:
    for part in module.modules():
        try:
            part._c.setattr("training", False)
        except RuntimeError:
            # A frozen or traced module has no such attribute, or it is a constant: its mode is
            # part of its code, which inspection looks at.
            part.__dict__["training"] = False


def _copied(script: Any, model: str) -> Any:
    """A copy to prepare and rewrite; a module fresh from torch.jit.script also calls its class."""
    file = io.BytesIO()
    try:
        with quiet():
            torch.jit.save(script, file)
            file.seek(0)
            return torch.jit.load(file)
    except RuntimeError as error:
        raise ExportProblem(model, f"the ScriptModule cannot be saved: {error}") from error


def _load_file(path: Path, model: str, map_location: Any) -> Any:
    finding = _file_finding(path)
    if finding is not None:
        raise ExportProblem(model, f"{path}: {finding}")
    try:
        with quiet():
            return torch.jit.load(str(path), map_location=map_location)
    except Exception as error:  # torch raises anything for a file that is not as it should be
        raise ExportProblem(model, f"{path}: {_load_error(str(error))}") from error


def _load_error(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    if "Unknown builtin op" in text:
        operator = text.split("Unknown builtin op:", 1)[1].split()[0].rstrip(".")
        return (
            f"it calls the operator {operator}, which is not registered; import the library that"
            " brings it (torchvision, torchaudio, ...) before the export"
        )
    if "Unknown type name" in text or "custom class" in text.lower():
        return f"it holds a class that torch does not know; load its library first ({line})"
    return f"torch cannot load it: {line}; save it again with torch.jit.save"


def _file_finding(path: Path) -> str | None:
    """What is wrong with a file, or None when it is TorchScript and whole."""
    if path.is_dir():
        version = next(iter(sorted(path.glob("*/model.pt"))), None)
        inside = f"; the model in it is {version}" if version else ""
        return f"it is a directory, expected a TorchScript file{inside}"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    try:
        if not zipfile.is_zipfile(path):
            return _of_other_format(path, head)
        with zipfile.ZipFile(path) as archive:
            return _archive_finding(archive)
    except _DAMAGED as error:
        reason = str(error) or type(error).__name__
        return f"the file is damaged ({reason}); fetch or save it again"


def _of_other_format(path: Path, head: bytes) -> str:
    if not head:
        return "the file is empty; fetch or save it again"
    if head.startswith(b"PK"):
        return "the archive is cut off: its directory at the end is missing; fetch it again"
    if head.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS, not the file itself; run: git lfs pull"
    if head[4:8] == b"PTMF":
        return _LITE
    if head.startswith(b"\x80"):
        return "it is a pickle of the old format of torch.save; " + _of_pickle(path.read_bytes())
    return "it is no TorchScript archive (a zip file that torch.jit.save writes)"


_LITE = (
    "it is a file of the lite interpreter, which holds bytecode without a graph; save the module"
    " that it was made from with torch.jit.save"
)


def _archive_finding(archive: zipfile.ZipFile) -> str | None:
    names = {name.partition("/")[2]: name for name in archive.namelist()}
    has_code = any(name.startswith("code/") for name in names)
    if "models/model.json" in names or "archive_format" in names:
        return (
            "it is an archive of torch.export; read it with torch.export.load, and export its"
            " module() with export_pytorch"
        )
    if "constants.pkl" in names and has_code:
        damaged = archive.testzip()  # torch itself does not look at the checksums
        if damaged is None:
            return None
        return f"the file is damaged: {damaged} has a wrong checksum; fetch or save it again"
    if "bytecode.pkl" in names:
        return _LITE
    if "data.pkl" in names:
        return "it was written by torch.save; " + _of_pickle(archive.read(names["data.pkl"]))
    return "it is a zip file, but no TorchScript archive: it has no code/ and constants.pkl"


def _of_pickle(data: bytes) -> str:
    """What a pickle of torch.save holds, told by the classes it names; it is not executed."""
    foreign = [name for name in _classes_in(data) if name.rpartition(".")[0] not in _DATA_MODULES]
    if foreign:
        return (
            f"it holds pickled Python objects ({foreign[0]}), which run code when they are loaded:"
            " it must be trusted. Load it where its classes are, and give the module to"
            " export_pytorch"
        )
    return (
        "it holds tensors (a state dict) and no code: make the module in Python, load them with"
        " module.load_state_dict(torch.load(path, weights_only=True)), and use export_pytorch"
    )


def _classes_in(data: bytes) -> list[str]:
    found: list[str] = []
    texts: list[str] = []
    file = io.BytesIO(data)
    try:
        for _ in range(_MOST_PICKLES):
            for opcode, argument, _position in pickletools.genops(file):
                if opcode.name == "GLOBAL":
                    found.append(str(argument).replace(" ", "."))
                elif opcode.name == "STACK_GLOBAL":
                    found.append(".".join(texts[-2:]))
                elif isinstance(argument, str):
                    texts.append(argument)
    except (ArithmeticError, LookupError, MemoryError, ValueError, pickle.UnpicklingError):
        pass  # cut off, or past the last one: what was seen says enough
    return found
