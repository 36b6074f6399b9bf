"""The example of docs/hooks.md works as it is printed."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.models_bundles import fake_text

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.errors import InvalidInput
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.loader import load_model

PAGE = Path(__file__).parents[3] / "docs" / "hooks.md"


def test_example_loads_and_answers(tmp_path: Path) -> None:
    """Manifest and hooks are taken from the page."""
    code, manifest = re.findall(
        r"```(?:python|yaml)\n# digits/[^\n]*\n(.*?)```", PAGE.read_text(), re.S
    )
    program = fake_text("head", ["1x8x8xf32"], ["1x10xf32"])
    bundle = write_bundle(
        tmp_path / "digits", "digits",
        [IOSpec("x", "f32", (1,), 0)], [IOSpec("y", "f32", (1,), 0)], {1: program}, {},
        files={"model.py": code},
    )  # fmt: skip
    (bundle / "manifest.yaml").write_text('format_version: "2.1"\n' + manifest)
    head = {"head": lambda arguments: [np.eye(10, dtype=np.float32)[[3]]]}
    model = load_model(bundle, FakeBackend(head))
    (image,) = model.preprocess({"pixels": np.full((1, 8, 8), 8, np.uint8)})
    assert image.dtype == np.float32
    assert (image == 0.5).all()
    assert model.postprocess([np.eye(10, dtype=np.float32)[[3]]])["digit"].tolist() == [3]
    with pytest.raises(InvalidInput, match="pixels must be 0 to 16"):
        model.preprocess({"pixels": np.full((1, 8, 8), 17, np.uint8)})
