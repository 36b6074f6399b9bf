"""Every kind of fault that the format names: how to damage a good bundle, and what is then said.

The loader's and the checker's tests damage the same affine bundle (`models_bundles.write_affine`).
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from support.models_bundles import affine_text, identity_text, replace_in

from hloserve.engine.programs.program_probe import MAX_PROGRAM_BYTES

Damage = Callable[[Path], object]


def _manifest(old: str, new: str) -> Damage:
    return lambda bundle: replace_in(bundle / "manifest.yaml", old, new)


def _program(old: str, new: str, name: str = "model.b4.mlir") -> Damage:
    return lambda bundle: replace_in(bundle / name, old, new)


def _file(name: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda bundle: (bundle / name).write_bytes(data)


def _without(name: str) -> Damage:
    return lambda bundle: (bundle / name).unlink()


def _instead(name: str, make: Callable[[Path], object]) -> Damage:
    return _both(_without(name), lambda bundle: make(bundle / name))


def _both(first: Damage, second: Damage) -> Damage:
    return lambda bundle: (first(bundle), second(bundle))


def _renamed(old: str, new: str) -> Damage:
    return lambda bundle: (bundle / old).rename(bundle / new)


def _header(change: Callable[[dict[str, dict[str, object]]], object]) -> Damage:
    """Rewrite the JSON header of the weights file."""

    def damage(bundle: Path) -> None:
        path = bundle / "weights.safetensors"
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    return damage


def _metadata(**entries: str | None) -> Damage:
    def change(header: dict[str, dict[str, object]]) -> None:
        for key, value in entries.items():
            header["__metadata__"].pop(key, None)
            if value is not None:
                header["__metadata__"][key] = value

    return _header(change)


FAULTS: dict[str, tuple[Damage, str]] = {
    # section 3 and 4 of the format: the manifest
    "no manifest": (_without("manifest.yaml"), "manifest.yaml is missing"),
    "not YAML": (_file("manifest.yaml", "a: [1,"), "manifest.yaml"),
    "root is a list": (_file("manifest.yaml", "- 1\n"), "root must be a mapping"),
    "format version": (_manifest('"2.1"', '"3.0"'), r"format_version.*3\.0"),
    "kind": (_manifest("name: affine", "name: affine\nkind: robot"), "kind.*robot"),
    "unknown dtype": (_manifest("f32", "float32"), "float32"),
    "letter without size": (_manifest("{a: 4}", "{}"), "'a'"),
    "size without letter": (_manifest("{a: 4}", "{a: 4, z: 2}"), "z"),
    "size of zero": (_manifest("{a: 4}", "{a: 0}"), "0"),
    "repeated letter": (_manifest('"an"', '"aan"'), "'a'"),
    "two batch letters": (_manifest('"an"', '"anb"'), "batch"),
    "variable axis without input_shapes": (_manifest("{a: 4}", "{a: -1}"), "input_shapes"),
    "negative batch size": (_manifest("[1, 4]", "[1, -4]"), "compiled_batch_sizes"),
    "fractional batch size": (_manifest("[1, 4]", "[1, 4.0]"), "compiled_batch_sizes"),
    "client specs without hook": (
        _manifest("provenance:", "client_inputs: [{name: a, dtype: f32, shape: ''}]\nprovenance:"),
        "client_inputs",
    ),
    "meta without hook": (_manifest("name: affine", "name: affine\nkind: meta"), r"model\.py|meta"),
    # section 1 and 2: files
    "no program": (
        _both(_without("model.b1.mlir"), _without("model.b4.mlir")),
        r"neither model\.mlir nor model\.bN\.mlir",
    ),
    "listed size is missing": (_without("model.b4.mlir"), r"model\.b4\.mlir is missing"),
    "size zero": (_renamed("model.b4.mlir", "model.b0.mlir"), r"model\.b0\.mlir"),
    "two spellings of a size": (_file("model.b04.mlir", affine_text(4)), r"model\.b04\.mlir"),
    "foreign hooks": (_file("model.jl", "register_model()"), r"port them to model\.py"),
    # section 2: what is in a program
    "program is text of nothing": (
        _file("model.b4.mlir", "hello"),
        r"model\.b4\.mlir: not a valid",
    ),
    "program is empty": (_file("model.b4.mlir", ""), "the file is empty"),
    "program is a fifo": (
        _instead("model.b4.mlir", os.mkfifo),
        r"model\.b4\.mlir is not a regular file",
    ),
    "program is a directory": (
        _instead("model.b4.mlir", os.mkdir),
        r"model\.b4\.mlir is not a regular file",
    ),
    "program is a device": (
        _instead("model.b4.mlir", lambda path: path.symlink_to("/dev/zero")),
        r"model\.b4\.mlir is not a regular file",
    ),
    "program is endless": (
        lambda bundle: os.truncate(bundle / "model.b4.mlir", MAX_PROGRAM_BYTES + 1),
        r"model\.b4\.mlir: cannot be read: it is larger than 2147483648 bytes",
    ),
    "program is noise": (_file("model.b4.mlir", b"\x00\xff\x00\xff"), "starts with bytes 00 ff"),
    "artifact is damaged": (
        _file("model.b4.mlir", b"ML\xefR\rStableHLO_v1.0.0\x00\x01\x17"),
        r"artifact of version 1\.0\.0 cannot be read",
    ),
    "artifact is too new": (
        _file("model.b4.mlir", b"ML\xefR\rStableHLO_v99.1.0\x00\x01\x17"),
        r"written for StableHLO 99\.1\.0, this server reads up to \d+\.\d+\.\d+",
    ),
    "no main": (_program("@main", "@forward"), r"it has forward\); name the entry function 'main'"),
    "program of another size": (
        _file("model.b4.mlir", affine_text(8)),
        r"model\.b4\.mlir: input 'x' \(argument 0\): shape is \(8, 4\).*expected \(4, 4\)",
    ),
    "too few arguments": (
        _file("model.b4.mlir", identity_text("4x4xf32")),
        r"takes 1 argument, the bundle declares 1 input and 2 weights \(x, w, b\)",
    ),
    "too few results": (
        _manifest(
            "executable_outputs:\n",
            "executable_outputs:\n  - {name: extra, dtype: f32, shape: n}\n",
        ),
        "returns 1 result, the manifest declares 2 outputs: nothing is left for y",
    ),
    "dtype of an input": (
        _manifest("name: x, dtype: f32", "name: x, dtype: i32"),
        r"input 'x' \(argument 0\): dtype is f32 in the program.*expected i32",
    ),
    "shape of an output": (
        _manifest("{a: 3}", "{a: 5}"),
        r"output 'y' \(result 0\): shape is \(4, 3\).*expected \(4, 5\)",
    ),
    "axes the wrong way round": (
        _manifest('"an", dims: {a: 4}', '"na", dims: {a: 4}'),
        "letters of a manifest's shape run fastest-first",
    ),
    "custom call of another platform": (
        _file(
            "model.b4.mlir",
            affine_text(4).replace(
                "stablehlo.add %0, %1 : tensor<4x3xf32>",
                "stablehlo.custom_call @cu_add(%0, %1)"
                " : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>",
            ),
        ),
        r"model\.b4\.mlir: XLA cannot compile it.*cu_add.*export for cpu",
    ),
    # section 6 and 7: weights
    "no weights": (_without("weights.safetensors"), r"weights\.safetensors: the file is missing"),
    "weights are not safetensors": (
        _file("weights.safetensors", b"\x00"),
        r"weights\.safetensors: ",
    ),
    "weights are cut short": (
        lambda bundle: _file(
            "weights.safetensors", (bundle / "weights.safetensors").read_bytes()[:-4]
        )(bundle),
        r"weights\.safetensors: ",
    ),
    "no argument order": (_metadata(argument_order=None), "'argument_order' is missing"),
    "order names no tensor": (_metadata(argument_order='["w", "bias"]'), "'bias' is missing"),
    "order names a tensor twice": (_metadata(argument_order='["w", "w"]'), "twice"),
    "order is swapped": (
        _metadata(argument_order='["b", "w"]'),
        r"weight 'b' \(argument 1\): shape is \(4, 3\)",
    ),
    "unknown layout": (_metadata(axis_order="fortran"), "axis_order"),
    "legacy layout by mistake": (
        _metadata(axis_order=None),
        r"weight 'w' \(argument 1\): shape is \(4, 3\).*need axis_order: xla in the file's",
    ),
    "weights of another dtype": (
        _header(lambda header: header["b"].update(dtype="I32")),
        r"weight 'b' \(argument 2\): dtype is f32 in the program.*expected i32",
    ),
    "named weights file is missing": (
        _manifest("provenance:", "weights_file: other.safetensors\nprovenance:"),
        r"other\.safetensors: the file is missing",
    ),
    "weights file outside of the bundle": (
        _manifest("provenance:", "weights_file: ../other.safetensors\nprovenance:"),
        "weights_file",
    ),
    # worker behaviour, section 6: hooks
    "hook file fails": (_file("model.py", "import nowhere\n"), r"model\.py:1: .*nowhere"),
    "hook file registers nothing": (_file("model.py", ""), "must call register_model exactly once"),
    "hook file registers the wrong kind": (
        _file("model.py", "import hloserve\nhloserve.register_meta_model(run=print)\n"),
        "it called register_meta_model once",
    ),
}
"""Fault to damage, and a pattern of the message."""
