"""The example of docs/meta-models.md works as it is printed."""

import re
from pathlib import Path

from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.loader import load_model

PAGE = Path(__file__).parents[3] / "docs" / "meta-models.md"


def test_example_loads(tmp_path: Path) -> None:
    """Manifest and function are taken from the page."""
    code, manifest = re.findall(
        r"```(?:python|yaml)\n# cascade/[^\n]*\n(.*?)```", PAGE.read_text(), re.S
    )
    bundle = tmp_path / "cascade"
    bundle.mkdir()
    (bundle / "model.py").write_text(code)
    (bundle / "manifest.yaml").write_text(manifest)

    model = load_model(bundle, FakeBackend())

    assert model.is_meta
    assert () == model.warnings
    assert ("small", "large") == model.manifest.calls
    assert (None, 3, 224, 224) == model.inputs[0].shape
    model.free()
