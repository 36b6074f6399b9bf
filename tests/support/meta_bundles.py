"""Meta models over the fake device's `scale` bundles."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from hloserve.bundle import IOSpec, write_meta_bundle

_IMPORTS = "import numpy as np\nfrom hloserve import InvalidInput, register_meta_model\n\n"


def write_meta(
    repository: Path,
    run: str,
    name: str = "meta",
    *,
    calls: Sequence[str] = ("scale",),
    **more: Any,
) -> Path:
    """Write a meta model on float32 rows of four, x to y.

    Args:
        repository: where.
        run: source of the function `run`, and whatever it needs.
        name: of the bundle.
        calls: the models that it may call.
        more: further arguments of `write_meta_bundle`.
    """
    text = f"{_IMPORTS}{dedent(run)}\nregister_meta_model(run=run)\n"
    return write_meta_bundle(
        repository / name,
        name,
        calls,
        [IOSpec("x", "f32", (1, 4), batch_axis=0)],
        [IOSpec("y", "f32", (1, 4), batch_axis=0)],
        text,
        **more,
    )
