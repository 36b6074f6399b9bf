"""What a torch module must not be when it is exported, and what torch says when it cannot.

What lives here: checks of the module and its inputs before anything is traced, and the wording of
torch's errors. What does not: checks of the traced program (`hloserve.export.torch.program`).
"""

import inspect
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any

from hloserve.export.torch.arrays import dtype_of, torch

__all__ = [
    "check_input",
    "check_module",
    "describe_author_line",
    "explain_failure",
    "is_data_dependent",
    "name_error",
]

_MOST_NAMES = 5
"""Layers that one message names."""

_TORCH = os.path.dirname(torch.__file__)
_OURS = os.path.dirname(__file__)
_STANDARD_LIBRARY = os.path.dirname(os.__file__)


def check_module(module: Any, *, scripted: bool = False) -> list[str]:
    """What is wrong with a module, one sentence each, the layers named."""
    nn = torch.nn
    if isinstance(module, torch.jit.ScriptModule) and not scripted:
        return ["the model is a TorchScript module; use export_torchscript"]
    if not isinstance(module, nn.Module):
        return [
            f"the model is of type {type(module).__name__}, expected a torch.nn.Module; wrap a"
            " function in a module whose forward() calls it"
        ]
    findings = list(_wrappers(module, scripted=scripted))
    quantised = [
        name or "the model"
        for name, part in module.named_modules()
        if ".quantized" in type(part).__module__ or ".quantizable" in type(part).__module__
    ]
    # the packed weights are a layer of their own within each
    quantised = [name for name in quantised if name.rpartition(".")[0] not in quantised]
    if quantised:
        findings.append(
            f"{_names(quantised)}: quantised layers keep their weights packed, out of reach; export"
            " the model before it is quantised"
        )
    findings += _training(module)
    for kind, tensors in (
        ("parameter", module.named_parameters()),
        ("buffer", module.named_buffers()),
    ):
        for name, tensor in tensors:
            wrong = _wrong_tensor(tensor)
            if wrong:
                findings.append(f"{kind} {name!r} {wrong}")
    return findings


def check_input(name: str, tensor: Any) -> str | None:
    """What is wrong with an example input, if anything."""
    wrong = _wrong_tensor(tensor)
    return f"example input {name!r} {wrong}" if wrong else None


def _wrappers(module: Any, *, scripted: bool) -> Iterator[str]:
    nn = torch.nn
    for name, part in module.named_modules():
        where = f"layer {name!r}" if name else "the model"
        if isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel):
            yield f"{where} is wrapped in {type(part).__name__}; export its .module"
        elif isinstance(part, torch._dynamo.OptimizedModule):
            yield f"{where} is compiled by torch.compile; export the module it was made from"
        elif isinstance(part, torch.jit.ScriptModule) and not scripted:
            yield f"{where} is a TorchScript module, which torch.export cannot look into"


def _training(module: Any) -> Iterator[str]:
    """Layers in training mode that would compute something else in eval mode."""
    differing = [
        f"{name or 'the model'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if part.training and _differs_by_mode(part)
    ]
    if differing:
        yield (
            f"{_names(differing)}: in training mode, where they compute something else than when"
            " the model is used; call model.eval() first"
        )


def _differs_by_mode(part: Any) -> bool:
    if isinstance(part, torch.nn.modules.dropout._DropoutNd):
        return bool(part.p > 0)
    if isinstance(part, torch.nn.RNNBase | torch.nn.MultiheadAttention):
        return bool(part.dropout > 0)
    forward = inspect.unwrap(type(part).forward)
    return "training" in _names_in(getattr(forward, "__code__", None))


def _names_in(code: Any) -> set[str]:
    """The attributes and globals that a function names, those of its inner functions included."""
    if code is None:
        return set()
    inner = (constant for constant in code.co_consts if inspect.iscode(constant))
    return set(code.co_names).union(*map(_names_in, inner))


def _wrong_tensor(tensor: Any) -> str | None:
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return "is not initialised; run the model once on an example"
    if tensor.device.type == "meta":
        return "is on the meta device: it has no values; load the weights first"
    if tensor.device.type != "cpu":
        return f"is on device {tensor.device}; call .cpu() first"
    if tensor.layout is not torch.strided:
        return f"is sparse ({tensor.layout}); call .to_dense() first"
    if tensor.is_quantized:
        return f"is quantised ({tensor.dtype}); export the model before it is quantised"
    if dtype_of(tensor.dtype) is None:
        return f"has dtype {tensor.dtype}, which no bundle can hold{_instead(tensor)}"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return (
            f"is of type {type(tensor).__name__}, expected a plain tensor; export the model before"
            " its tensors are converted"
        )
    return None


def _instead(tensor: Any) -> str:
    if tensor.is_complex():
        return "; take the real and the imaginary part as two tensors (torch.view_as_real)"
    return ""


def _names(found: list[str]) -> str:
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return ", ".join(found[:_MOST_NAMES]) + more


def is_data_dependent(error: BaseException) -> bool:
    """Whether torch failed because the model decides by values, whatever its shapes."""
    return "data-dependent" in str(error) or "data dependent" in str(error)


def explain_failure(error: BaseException, *, symbolic: bool) -> str:
    """Say in one line why torch could not trace the model, and where.

    Args:
        error: what torch.export or the model's own code raised.
        symbolic: whether extents were open.
    """
    at = describe_author_line(error)
    if is_data_dependent(error):
        return (
            f"the model decides by a tensor's values{at}: a program has fixed control flow and"
            " shapes; use torch.where, torch.cond or torch.while_loop"
        )
    if symbolic:
        fixed = re.findall(
            r"marked (\S+) as dynamic but your code specialized it.*?\((\d+)\)", str(error)
        )
        if fixed:
            parts = ", ".join(f"{name!r} to {extent}" for name, extent in dict(fixed).items())
            return f"torch fixes the open extent {parts}{at}: the model computes with it in Python"
        _, _, advice = str(error).partition("Suggested fixes:\n")
        limits = re.findall(r"^  ([^_\s].*)$", advice, re.MULTILINE)
        if limits:
            return f"torch limits an open extent ({', '.join(limits)}){at}"
    return f"torch.export fails{at}: {name_error(error)}"


def name_error(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else "no message"
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:300] + '...'}"


def describe_author_line(error: BaseException) -> str:
    """The innermost line of the author's code that an error passed through, as `` at ...``."""
    chain: list[BaseException] = []
    while error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__ or error
    for link in reversed(chain):
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            if not _is_foreign(frame.filename):
                return f" at {os.path.basename(frame.filename)} line {frame.lineno}"
    return ""


def _is_foreign(file: str) -> bool:
    """Whether a file is torch's, ours or of the standard library."""
    if file.startswith((_TORCH, _OURS)):
        return True
    return "site-packages" not in file and file.startswith((_STANDARD_LIBRARY, "<"))
