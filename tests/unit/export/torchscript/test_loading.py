"""TorchScript files, and the many files that are none."""

import pickle
import warnings
import zipfile
from pathlib import Path

import pytest
import torch

from hloserve.core.errors import ExportProblem
from hloserve.export.torchscript.loading import load_script, quiet


class Layer(torch.nn.Module):
    """A module of tests."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.linear.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scripted by tests."""
        return self.linear(x)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A whole file."""
    path = tmp_path / "layer.pt"
    with quiet():
        torch.jit.save(torch.jit.script(Layer()), str(path))
    return path


def problem_of(path: object) -> str:
    """The one finding when something is loaded that cannot be."""
    with pytest.raises(ExportProblem) as raised:
        load_script(path, "layer")
    (finding,) = raised.value.findings
    return finding


def test_file_is_loaded_in_eval_mode_with_parameters(saved: Path) -> None:
    """A parameter without gradient comes out of the file as a bare tensor, and is one again."""
    module = load_script(saved, "layer")

    assert not module.training
    assert not module.linear.training
    assert all(isinstance(each, torch.nn.Parameter) for each in module.parameters())


def test_module_given_in_memory_stays_as_it_is() -> None:
    """A copy is prepared, so that the author's module keeps its mode."""
    with quiet():
        script = torch.jit.script(Layer().train())

    module = load_script(script, "layer")

    assert script.training
    assert not module.training


def test_frozen_module_has_a_mode_too() -> None:
    """Freezing takes the attribute away, and what looks at modules asks for it."""
    with quiet():
        frozen = torch.jit.freeze(torch.jit.script(Layer().eval()))

    assert load_script(frozen, "layer").training is False


def test_missing_file_is_named(tmp_path: Path) -> None:
    """The path and the reason, as the system says it."""
    assert "No such file" in problem_of(tmp_path / "none.pt")


def test_directory_of_a_triton_model_leads_to_its_file(saved: Path) -> None:
    """Whoever gives the model's directory is told which file is meant."""
    version = saved.parent / "model" / "1"
    version.mkdir(parents=True)
    saved.rename(version / "model.pt")

    assert str(version / "model.pt") in problem_of(version.parent)


def test_damaged_weights_are_noticed(saved: Path) -> None:
    """The loader of torch takes them without a word."""
    content = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive:
        weight = next(info for info in archive.infolist() if info.filename.endswith("/data/0"))
    at = content.index(weight.filename.encode()) + len(weight.filename)
    padding = content[at - len(weight.filename) - 2] + 256 * content[at - len(weight.filename) - 1]
    content[at + padding] ^= 1
    saved.write_bytes(content)

    assert "wrong checksum" in problem_of(saved)


def test_file_that_is_cut_off_is_told_as_such(saved: Path) -> None:
    """An archive's directory is at its end."""
    saved.write_bytes(saved.read_bytes()[:500])

    assert "cut off" in problem_of(saved)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x18\x00\x00\x00PTMF\x00\x00", "lite interpreter"),
        (b"hello, world", "no TorchScript archive"),
        (pickle.dumps({"a": 1}), "state dict"),
    ],
)
def test_other_files_are_told_for_what_they_are(content: bytes, said: str, tmp_path: Path) -> None:
    """Each with its own next step."""
    path = tmp_path / "other.pt"
    path.write_bytes(content)

    assert said in problem_of(path)


@pytest.mark.parametrize("new_format", [True, False])
def test_state_dict_is_told_from_a_module(new_format: bool, tmp_path: Path) -> None:
    """The one leads to load_state_dict, the other to export_pytorch, and none is unpickled."""
    state, whole = tmp_path / "state.pt", tmp_path / "whole.pt"
    torch.save(Layer().state_dict(), state, _use_new_zipfile_serialization=new_format)
    torch.save(Layer(), whole, _use_new_zipfile_serialization=new_format)

    assert "load_state_dict" in problem_of(state)
    assert "must be trusted" in problem_of(whole)
    assert "Layer" in problem_of(whole)


def test_archive_of_torch_export_leads_to_its_loader(tmp_path: Path) -> None:
    """A .pt2 file holds a program of its own kind."""
    path = tmp_path / "program.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("program/models/model.json", "{}")

    assert "torch.export.load" in problem_of(path)


def test_zip_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """It says what a TorchScript archive would hold."""
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/b", "c")

    assert "code/" in problem_of(path)


def test_bytecode_without_a_graph_is_refused(tmp_path: Path) -> None:
    """A file of the lite interpreter cannot be traced."""
    path = tmp_path / "lite.ptl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lite/bytecode.pkl", b"")

    assert "lite interpreter" in problem_of(path)


def test_file_for_the_lite_interpreter_that_kept_its_code_is_loaded(tmp_path: Path) -> None:
    """Bytecode beside the code does not matter."""
    path = tmp_path / "lite.ptl"
    with quiet(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Lite Interpreter is deprecated")  # files are not
        torch.jit.script(Layer())._save_for_lite_interpreter(str(path))

    assert load_script(path, "layer").forward(torch.ones(1, 3)).shape == (1, 2)


def test_what_is_no_script_is_told_by_its_type() -> None:
    """A plain module leads to its own exporter, and a scripted function into a module."""
    with quiet():
        function = torch.jit.script(torch.nn.functional.relu)

    assert "export_pytorch" in problem_of(Layer())
    assert "int" in problem_of(3)
    assert "forward()" in problem_of(function)
