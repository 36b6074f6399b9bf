"""What a torch module must not be when it is exported, and what torch says when it cannot.

What lives here: checks of the module and its inputs before anything is traced, and the wording of
torch's errors. What does not: checks of the traced program (`hloserve.export.torch.program`).
"""

import inspect
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hloserve.export.author_line import author_line, error_text
from hloserve.export.torch.arrays import dtype_of, torch

__all__ = [
    "check_input",
    "check_module",
    "explain_failure",
    "is_data_dependent",
]

_MOST_NAMES = 5
"""Layers that one message names."""

_LOADING = (
    "make the module in Python, load them with"
    " module.load_state_dict(torch.load(path, weights_only=True)), and export the module"
)


def check_module(module: Any, *, scripted: bool = False, has_batch: bool = False) -> list[str]:
    """What is wrong with a module, one sentence each, the layers named.

    Args:
        module: the author's.
        scripted: TorchScript is what is expected.
        has_batch: there are batch sizes, so its rows must not depend on each other.
    """
    nn = torch.nn
    if isinstance(module, torch.jit.ScriptModule) and not scripted:
        return ["the model is a TorchScript module; use export_torchscript"]
    if not isinstance(module, nn.Module):
        return [_no_module(module)]
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
    if has_batch:
        findings += _untracked(module)
    for kind, tensors in (
        ("parameter", module.named_parameters()),
        ("buffer", module.named_buffers()),
    ):
        for name, tensor in tensors:
            wrong = _wrong_tensor(tensor)
            if wrong:
                findings.append(f"{kind} {name!r} {wrong}")
    return findings


def _no_module(given: Any) -> str:
    """Say what was given instead of a module, and what to do with it."""
    if isinstance(given, Mapping) and any(isinstance(v, torch.Tensor) for v in given.values()):
        return f"the model is a state dict, tensors without code: {_LOADING}"
    if isinstance(given, torch.export.ExportedProgram):
        return "the model is an archive of torch.export; export its module()"
    if isinstance(given, str | os.PathLike):
        return (
            f"the model is the path {str(given)!r}: a TorchScript file is for export_torchscript;"
            f" of a file of tensors, {_LOADING}"
        )
    return (
        f"the model is of type {type(given).__name__}, expected a torch.nn.Module; wrap a function"
        " in a module whose forward() calls it"
    )


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


def _untracked(module: Any) -> Iterator[str]:
    """Batch normalisation without running statistics, which is in training mode for ever."""
    found = [
        f"{name or 'the model'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if _is_untracked(part)
    ]
    if found:
        yield (
            f"{_names(found)}: without running statistics (track_running_stats=False), so that it"
            " normalises by the batch it is given, as in training, and eval() changes nothing:"
            " each row's answer depends on the rows of other requests; train it with running"
            " statistics, use another normalisation, or leave batch_sizes out"
        )


def _is_untracked(part: Any) -> bool:
    is_batch_norm = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
    return is_batch_norm and part.running_mean is None and part.running_var is None


def _differs_by_mode(part: Any) -> bool:
    if _is_untracked(part):
        return False
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
    if "float8" in str(tensor.dtype):
        return "; of these, float8_e4m3fn and float8_e5m2 can be"
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
    at = author_line(error)
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
    return f"torch.export fails{at}: {error_text(error)}"
