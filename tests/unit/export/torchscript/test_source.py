"""TorchScript as a source of bundles: what is traced, and what is refused with its line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hloserve.core.errors import ExportProblem
from hloserve.export import export_torchscript
from hloserve.export.torchscript.loading import quiet

pytestmark = pytest.mark.xla


class Dense(torch.nn.Module):
    """A layer, then what a subclass does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)


class Reshaping(Dense):
    """Computes with its batch, as flattening does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scripted by tests."""
        return self.linear(x).view(x.size(0), -1)


class Branching(Dense):
    """Decides by values, each way the same shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scripted by tests."""
        y = self.linear(x)
        return y if bool(x.sum() > 0) else y * 2


class Looping(Dense):
    """Loops as long as values say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scripted by tests."""
        while bool(x.sum() < 100.0):
            x = x + 1
        return x


class Scaled(Dense):
    """Takes a number that has a default."""

    def forward(self, x: torch.Tensor, factor: int = 3) -> torch.Tensor:
        """Scripted by tests."""
        return self.linear(x) * factor


class Stepping(Dense):
    """A state as argument and result, in a nested tuple, checked by its length."""

    def forward(
        self, x: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Scripted by tests."""
        if len(state) != 2:
            raise ValueError("two parts")
        h = torch.tanh(self.linear(x) + state[0]).data
        return h * torch.tensor([1.0, 2.0, 3.0, 4.0]), (h, state[1] + h)


class Remembering(Dense):
    """Keeps its state in itself."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(1, 4)
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scripted by tests."""
        self.last = torch.tanh(self.inner(x) + self.last)
        return self.last


def scripted(module: torch.nn.Module) -> Any:
    """The module as TorchScript."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    with quiet():
        return torch.jit.script(module.eval())


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def test_script_that_computes_with_its_batch_is_traced_once(tmp_path: Path) -> None:
    """The converter of torch keeps open what the interpreter would fix."""
    report = export_torchscript(scripted(Reshaping()), X, dir=tmp_path / "m", batch_sizes=[1, 3])

    assert report.tracing == "once, batch open"


def test_state_in_nested_tuples_is_traced_once(tmp_path: Path) -> None:
    """Neither the tuple, `len`, `.data` nor a literal tensor fixes the batch."""
    report = export_torchscript(
        scripted(Stepping()),
        (X, torch.zeros(2, 2, 4)),
        dir=tmp_path / "m",
        batch_sizes=[1, 3],
        input_batch_axes=[0, 1],
    )

    names = [output.name for output in report.programs[0].outputs]
    assert report.tracing == "once, batch open"
    assert names == ["output_0", "output_1.0", "output_1.1"]


def test_branch_on_values_becomes_one_of_the_program(tmp_path: Path) -> None:
    """Both ways are in it, as the proof shows."""
    report = export_torchscript(scripted(Branching()), X, dir=tmp_path / "m")

    assert report.programs


def test_loop_on_values_is_refused_with_its_line(tmp_path: Path) -> None:
    """The author learns the line, and the way out; no file is left."""
    with pytest.raises(ExportProblem, match=r"values at test_source\.py line \d+.*wrap"):
        export_torchscript(scripted(Looping()), X, dir=tmp_path / "m")

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [(X,), (X, 5)])
def test_number_is_fixed_whether_given_or_left_out(given: Any, tmp_path: Path) -> None:
    """It is no input of the program."""
    report = export_torchscript(scripted(Scaled()), given, dir=tmp_path / "m")

    assert len(report.programs) == 1


def test_kept_state_is_refused_by_its_name(tmp_path: Path) -> None:
    """A served model keeps nothing from request to request."""
    with pytest.raises(ExportProblem, match=r"keeps 'last' from call to call.*wrap"):
        export_torchscript(scripted(Remembering()), X, dir=tmp_path / "m")


def test_wrap_exports_a_part(tmp_path: Path) -> None:
    """The part's weights are those of the bundle, and no others."""

    class Part(torch.nn.Module):
        def __init__(self, script: Any) -> None:
            super().__init__()
            self.inner = script.inner

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x)

    report = export_torchscript(
        scripted(Remembering()), X, wrap=Part, dir=tmp_path / "m", batch_sizes=[1, 2]
    )

    assert report.weights == 2


@pytest.mark.parametrize(
    ("wrap", "said"),
    [(lambda script: 3, "returned int"), (lambda script: script.nothing, "wrap fails")],
)
def test_wrap_that_does_not_work_is_told(wrap: Any, said: str, tmp_path: Path) -> None:
    """What it raised or returned instead of a module."""
    with pytest.raises(ExportProblem, match=said):
        export_torchscript(scripted(Reshaping()), X, wrap=wrap, dir=tmp_path / "m")


def test_training_that_is_traced_in_is_refused(tmp_path: Path) -> None:
    """`.eval()` came too late: it is in the code."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).train()
    with quiet():
        script = torch.jit.trace(module, X, check_trace=False)

    with pytest.raises(ExportProblem, match="1 x dropout in training mode"):
        export_torchscript(script, X, dir=tmp_path / "m")


def test_file_is_recorded_without_its_directory(tmp_path: Path) -> None:
    """Name and digest, not where it lay on the exporting machine."""
    path = tmp_path / "scaled.pt"
    with quiet():
        torch.jit.save(scripted(Scaled()), str(path))

    report = export_torchscript(path, np.asarray(X), dir=tmp_path / "m")

    manifest = (tmp_path / "m" / "manifest.yaml").read_text(encoding="utf-8")
    assert report.framework == "torchscript"
    assert "torchscript_path: scaled.pt" in manifest
    assert "torchscript_sha256" in manifest
    assert str(tmp_path) not in manifest
