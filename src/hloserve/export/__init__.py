"""Make bundles: from JAX and PyTorch models to what a server loads, proved before it is written.

The names are looked up when they are used, so that importing this needs neither jax nor torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hloserve.core.errors import MissingExtra

if TYPE_CHECKING:
    from hloserve.bundle import IOSpec, write_bundle
    from hloserve.core.errors import ExportProblem, ProofFailed
    from hloserve.export.arity import (
        assert_bundle_arity,
        bundle_arity_report,
        bundle_entry_arity,
    )
    from hloserve.export.detection.config import DetectorConfig
    from hloserve.export.detection.detector import TwoStageDetector, export_two_stage_detector
    from hloserve.export.jax.source import export_jax
    from hloserve.export.modules.equinox_source import export_equinox
    from hloserve.export.modules.flax_source import export_flax
    from hloserve.export.options import ExportOptions, ExportProgress
    from hloserve.export.pipeline import export_source
    from hloserve.export.provenance import collect_provenance
    from hloserve.export.report import ExportReport
    from hloserve.export.torch.source import export_pytorch
    from hloserve.export.torchscript.source import export_torchscript

_HOMES = {
    "DetectorConfig": "hloserve.export.detection.config",
    "ExportOptions": "hloserve.export.options",
    "ExportProblem": "hloserve.core.errors",
    "ExportProgress": "hloserve.export.options",
    "ExportReport": "hloserve.export.report",
    "IOSpec": "hloserve.bundle",
    "ProofFailed": "hloserve.core.errors",
    "TwoStageDetector": "hloserve.export.detection.detector",
    "assert_bundle_arity": "hloserve.export.arity",
    "bundle_arity_report": "hloserve.export.arity",
    "bundle_entry_arity": "hloserve.export.arity",
    "collect_provenance": "hloserve.export.provenance",
    "export_equinox": "hloserve.export.modules.equinox_source",
    "export_flax": "hloserve.export.modules.flax_source",
    "export_jax": "hloserve.export.jax.source",
    "export_pytorch": "hloserve.export.torch.source",
    "export_source": "hloserve.export.pipeline",
    "export_torchscript": "hloserve.export.torchscript.source",
    "export_two_stage_detector": "hloserve.export.detection.detector",
    "write_bundle": "hloserve.bundle",
}

_EXTRAS = {
    "jax": "export-jax",
    "jaxlib": "export-jax",
    "torch": "export-torch",
    "torchax": "export-torch",
}

__all__ = [
    "DetectorConfig",
    "ExportOptions",
    "ExportProblem",
    "ExportProgress",
    "ExportReport",
    "IOSpec",
    "ProofFailed",
    "TwoStageDetector",
    "assert_bundle_arity",
    "bundle_arity_report",
    "bundle_entry_arity",
    "collect_provenance",
    "export_equinox",
    "export_flax",
    "export_jax",
    "export_pytorch",
    "export_source",
    "export_torchscript",
    "export_two_stage_detector",
    "write_bundle",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'hloserve.export' has no attribute {name!r}") from None
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as missing:
        extra = _EXTRAS.get((missing.name or "").split(".")[0])
        if extra is None:
            raise
        raise MissingExtra(extra, name, missing) from missing
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
