"""hloserve: a model server for StableHLO programs.

The public names below are loaded on first use, so that `import hloserve` stays cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hloserve.bundle import (
        IOSpec,
        load_manifest,
        read_bundle_weights,
        write_bundle,
        write_meta_bundle,
    )
    from hloserve.client import Client
    from hloserve.core.errors import HloserveError, InvalidInput
    from hloserve.core.tensors import NamedTensor
    from hloserve.hooks.registration import register_meta_model, register_model

__version__ = "0.1.0"

_HOMES = {
    "Client": "hloserve.client",
    "HloserveError": "hloserve.core.errors",
    "IOSpec": "hloserve.bundle",
    "InvalidInput": "hloserve.core.errors",
    "NamedTensor": "hloserve.core.tensors",
    "load_manifest": "hloserve.bundle",
    "read_bundle_weights": "hloserve.bundle",
    "register_meta_model": "hloserve.hooks.registration",
    "register_model": "hloserve.hooks.registration",
    "write_bundle": "hloserve.bundle",
    "write_meta_bundle": "hloserve.bundle",
}

__all__ = [
    "Client",
    "HloserveError",
    "IOSpec",
    "InvalidInput",
    "NamedTensor",
    "__version__",
    "load_manifest",
    "read_bundle_weights",
    "register_meta_model",
    "register_model",
    "write_bundle",
    "write_meta_bundle",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'hloserve' has no attribute {name!r}") from None
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
