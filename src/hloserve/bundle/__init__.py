"""The format on disk: manifest, axes, weights, layout, writing, migration.

What lives here: bundles as files and as plain values. What does not: what is in a program, and
anything that runs (`hloserve.engine`, `hloserve.models`). No jax.
"""

from hloserve.bundle.active_weights import read_bundle_weights
from hloserve.bundle.io_spec import IOSpec
from hloserve.bundle.manifest import Manifest, load_manifest
from hloserve.bundle.meta_writing import write_meta_bundle
from hloserve.bundle.writing import write_bundle

__all__ = [
    "IOSpec",
    "Manifest",
    "load_manifest",
    "read_bundle_weights",
    "write_bundle",
    "write_meta_bundle",
]
