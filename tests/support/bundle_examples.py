"""Bundles written by hand, byte by byte, independent of our own writer.

The manifests are those of the format's documentation; the weights are what the two layouts of the
sibling server hold for the same array.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from hloserve.bundle.manifest import Manifest, parse_manifest

AFFINE = """
format_version: "2.1"
name: affine
description: y = W x + c
executable_inputs:
  - {name: x, dtype: f32, shape: "a", dims: {a: 3}}
executable_outputs:
  - {name: y, dtype: f32, shape: "a", dims: {a: 2}}
batching: {compiled_batch_sizes: []}
"""

CLASSIFIER = """
format_version: "2.1"
executable_inputs:
  - {name: image, dtype: f32, shape: "whcn", dims: {w: 224, h: 224, c: 3}}
executable_outputs:
  - {name: logits, dtype: f32, shape: "kn", dims: {k: 1000}}
batching: {compiled_batch_sizes: [1, 8, 32]}
"""

VARIANTS = """
format_version: "2.1"
executable_inputs:
  - {name: image, dtype: u8, shape: "whcn", dims: {w: -1, h: -1, c: 3}}
executable_outputs:
  - {name: boxes, dtype: f32, shape: "qmn", dims: {q: 6, m: 100}}
  - {name: count, dtype: i64, shape: "n"}
batching: {compiled_batch_sizes: [1, 4]}
input_shapes:
  - {w: 1024, h: 1024}
  - {w: 1408, h: 704}
"""

HOOKED = """
format_version: "2.1"
executable_inputs:
  - {name: image, dtype: f32, shape: "whcn", dims: {w: 640, h: 640, c: 3}}
executable_outputs:
  - {name: DETECTIONS, dtype: f32, shape: "qm", dims: {q: 6, m: 300}}
  - {name: NUM_DETECTIONS, dtype: i64, shape: "a", dims: {a: 1}}
client_inputs:
  - {name: INPUT__0, dtype: u8, shape: "cwh", dims: {c: 3, w: -1, h: -1}}
client_outputs:
  - {name: OUTPUT__0, dtype: f32, shape: "qd", dims: {q: 6, d: -1}}
batching: {compiled_batch_sizes: [1]}
"""

META = """
format_version: "2.1"
kind: meta
meta:
  calls: [backbone_a, head_a]
client_inputs:
  - {name: INPUT__0, dtype: u8, shape: "cwh", dims: {c: 3, w: 640, h: 640}}
client_outputs:
  - {name: OUTPUT__0, dtype: f32, shape: "qd", dims: {q: 6, d: -1}}
"""

# The program's argument is tensor<2x3xf32> [[1,2,3],[4,5,6]].
XLA_DATA = bytes.fromhex("0000803f 00000040 00004040 00008040 0000a040 0000c040")
LEGACY_DATA = bytes.fromhex("0000803f 00008040 00000040 0000a040 00004040 0000c040")


def parse(text: str, *, name: str = "m", has_hook_file: bool = False) -> Manifest:
    """Parse a manifest as the bundle `m` would."""
    return parse_manifest(text, name=name, has_hook_file=has_hook_file, source="m")


def model(inputs: str = "[]", outputs: str = "[]", more: str = "") -> str:
    """The text of a manifest of kind model, from flow-style sections."""
    return (
        f'format_version: "2.1"\nexecutable_inputs: {inputs}\nexecutable_outputs: {outputs}\n{more}'
    )


def safetensors_bytes(header: str | bytes | Mapping[str, object], data: bytes = b"") -> bytes:
    """Join a header and data as a safetensors file does, whatever is in the header."""
    if isinstance(header, Mapping):
        header = json.dumps(header, separators=(",", ":"))
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text)) + text + data


def xla_weights() -> bytes:
    """`W` in program order, as the sibling server's newest writer stores it."""
    return safetensors_bytes(
        '{"__metadata__":{"argument_order":"[\\"W\\"]","axis_order":"xla"},'
        '"W":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}',
        XLA_DATA,
    )


def legacy_weights() -> bytes:
    """`W` as writers before format 2.1 stored it."""
    return safetensors_bytes(
        '{"__metadata__":{"argument_order":"[\\"W\\"]"},'
        '"W":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}}',
        LEGACY_DATA,
    )


def make_bundle(
    directory: Path, manifest: str, weights: bytes | None = None, *programs: str
) -> Path:
    """Write a bundle directory file by file."""
    directory.mkdir(parents=True)
    (directory / "manifest.yaml").write_text(manifest)
    if weights is not None:
        (directory / "weights.safetensors").write_bytes(weights)
    for program in programs:
        (directory / program).write_text("module {}")
    return directory
