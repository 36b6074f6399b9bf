"""Programs of bundles, run on the device without a server: what its answers are compared with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hloserve
from hloserve.core.tensors import Array
from hloserve.engine.xla_backend import XlaBackend

__all__ = ["run_program"]


def run_program(bundle: Path, file: str, inputs: Sequence[Array]) -> dict[str, Any]:
    """Run one program of a bundle on the CPU, without a server.

    Args:
        bundle: its directory.
        file: the program's file name.
        inputs: in the order of the manifest, of the program's batch size.
    """
    manifest = hloserve.load_manifest(bundle)
    backend = XlaBackend("cpu")
    program = backend.read_program((bundle / file).read_bytes(), file)
    executable = backend.compile(program, manifest.name)
    weights = list(hloserve.read_bundle_weights(bundle).values())
    arguments = backend.to_device([*inputs, *weights])
    outputs = backend.execute(executable, arguments)
    arrays = [array.copy() for array in backend.to_host(outputs)]
    backend.free([*arguments, *outputs])
    names = (spec.name for spec in manifest.executable_outputs)
    return dict(zip(names, arrays, strict=True))
