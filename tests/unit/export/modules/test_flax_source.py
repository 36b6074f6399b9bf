"""What `export_flax` and `export_equinox` say where their library is not installed."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloserve.export import ExportProblem, export_equinox, export_flax


@pytest.mark.parametrize(
    ("export", "library", "command"),
    [
        (export_flax, "flax", "pip install flax"),
        (export_equinox, "equinox", "pip install equinox"),
    ],
)
def test_missing_library_is_told_with_the_command_that_installs_it(
    export: Any, library: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are the author's to bring."""
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(ExportProblem, match=command):
        export(object(), np.ones(2, np.float32), dir=tmp_path / "model")
