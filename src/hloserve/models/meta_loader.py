"""From a bundle of kind `meta` to a model that serves.

What lives here: making a `Model` that has a `run` and nothing on the device. What does not: which
of its sub-models serve, which only the registry knows (`hloserve.models.meta_models`). Runs on a
loader thread.
"""

from pathlib import Path

from hloserve.bundle.labels import load_labels
from hloserve.bundle.manifest import Manifest
from hloserve.engine.device_model import DeviceModel
from hloserve.models.hook_file import load_meta_hook
from hloserve.models.model import Model, metadata_of

__all__ = ["load_meta"]


def load_meta(
    bundle: Path, manifest: Manifest, platform: str, hook_timeout_s: float | None
) -> Model:
    """Load a meta model: run its hook file.

    Args:
        bundle: its directory.
        manifest: of kind ``meta``.
        platform: of the device that its sub-models run on.
        hook_timeout_s: how long the hook file may run; None for as long as it likes.

    Raises:
        HookProblem: it fails to run, or does not register exactly one meta model.
        BundleProblem: the labels are wrong.
    """
    labels = load_labels(bundle, manifest)
    return Model(
        name=manifest.name,
        bundle=bundle,
        manifest=manifest,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        hooks=load_meta_hook(bundle, manifest.name, hook_timeout_s),
        device=DeviceModel(manifest.name, (), (), {}),
        metadata=metadata_of(manifest.name, platform, manifest.inputs, manifest.outputs),
        warnings=manifest.warnings,
        labels=labels,
    )
