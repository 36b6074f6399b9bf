"""The public names of the exporter."""

import subprocess
import sys

import pytest

import hloserve.export


@pytest.mark.xla
@pytest.mark.parametrize("name", hloserve.export.__all__)
def test_every_public_name_exists(name: str) -> None:
    """Each public name is there, and listed."""
    assert getattr(hloserve.export, name) is not None
    assert name in dir(hloserve.export)


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that the package does not have is told as Python tells it."""
    with pytest.raises(
        AttributeError, match=r"module 'hloserve\.export' has no attribute 'export_x'"
    ):
        hloserve.export.export_x  # noqa: B018  # looking it up is the test


def _python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


@pytest.mark.parametrize("names", ["IOSpec, write_bundle", "ExportOptions, ExportProblem"])
def test_importing_the_exporter_loads_no_framework(names: str) -> None:
    """The package can be imported, and its plain names used, without jax and torch."""
    heavy = ("jax", "jaxlib", "torch", "flax", "equinox")

    loaded = _python(
        f"import sys; from hloserve.export import {names};"
        f" print(*[m for m in {heavy!r} if m in sys.modules])"
    )

    assert "" == loaded


@pytest.mark.parametrize(
    ("library", "name", "extra"),
    [("jax", "export_jax", "export-jax"), ("torch", "export_pytorch", "export-torch")],
)
def test_missing_framework_is_told_with_the_command_that_installs_it(
    library: str, name: str, extra: str
) -> None:
    """What an exporter needs and is not there is one sentence, not a traceback."""
    said = _python(
        f"import sys; sys.modules[{library!r}] = None\n"
        "import hloserve.export\n"
        "from hloserve.core.errors import MissingExtra\n"
        f"try: hloserve.export.{name}\n"
        "except MissingExtra as missing: print(missing)"
    )

    assert f"pip install 'hloserve[{extra}]'" in said
