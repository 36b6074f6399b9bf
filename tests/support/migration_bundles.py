"""Legacy bundles to migrate, and a reader that knows nothing newer than format 2.0."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import yaml
from safetensors import deserialize

from hloserve.bundle.weights_writing import plan_weights
from hloserve.core.tensors import Array

MANIFEST = """\
# how it was made: see the wiki
format_version: "2.0"   # old servers
name: model
executable_inputs:
  - {name: x, dtype: f32, shape: "an", dims: {a: 3}}  # n is the batch
executable_outputs: [{name: y, dtype: f32, shape: "an", dims: {a: 3}}]

batching:
    compiled_batch_sizes: [ 1 ]
"""

WEIGHTS: dict[str, Array] = {
    "wide": np.arange(6, dtype=np.float64).reshape(2, 3),
    "w": np.array([[np.nan, -0.0, 1], [np.inf, 5e-324, -2]], np.float32),
    "deep": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
    "half": np.arange(6).reshape(3, 2).astype(ml_dtypes.bfloat16),
    "scalar": np.array(7, np.int64),
    "nothing": np.zeros((0, 5), np.uint8),
}


def legacy_weights(weights: Mapping[str, Any]) -> bytes:
    """The bytes of a weights file in the legacy layout."""
    return b"".join(bytes(chunk) for chunk in plan_weights(weights, "legacy", []).chunks())


def legacy_bundle_files(tag: str = "") -> dict[str, tuple[bytes, ...]]:
    """The files of a legacy bundle; the tag is in its program."""
    return {
        "model.b1.mlir": (b"module {}", tag.encode()),
        "weights.safetensors": (legacy_weights(WEIGHTS),),
        "manifest.yaml": (MANIFEST.encode(),),
    }


def write_legacy(
    bundle: Path, manifest: str | bytes = MANIFEST, weights: Mapping[str, Any] | None = None
) -> Path:
    """Write a legacy bundle, file by file."""
    bundle.mkdir(parents=True)
    for name, chunks in legacy_bundle_files().items():
        (bundle / name).write_bytes(b"".join(chunks))
    text = manifest.encode() if isinstance(manifest, str) else manifest
    (bundle / "manifest.yaml").write_bytes(text)
    if weights is not None:
        (bundle / "weights.safetensors").write_bytes(legacy_weights(weights))
    return bundle


def bits(arrays: Mapping[str, Array]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Everything about arrays that can be compared: NaN equals nothing, its bytes do."""
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()}


def read_as_old_server(bundle: Path) -> dict[str, bytes] | None:
    """The weights as a server that knows format 2.0 only reads them; None when it refuses.

    It reads the key and the one file that it knows, permutes whatever is in there, and would not
    notice a newer layout.
    """
    manifest = yaml.safe_load((bundle / "manifest.yaml").read_text())
    if str(manifest["format_version"]) not in ("2.0", "2"):
        return None
    content = (bundle / "weights.safetensors").read_bytes()
    raw = deserialize(content)  # type: ignore[no-untyped-call]  # its stub has no types
    size = {"BF16": 2, "F32": 4, "F64": 8, "I16": 2, "I64": 8, "U8": 1}
    return {
        name: np.frombuffer(part["data"], f"u{size[part['dtype']]}")
        .reshape(part["shape"])
        .T.tobytes()
        for name, part in raw
    }


def files_of(directory: Path) -> dict[str, bytes]:
    """Name to bytes of all files, without what servers keep for themselves."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
