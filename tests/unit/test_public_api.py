"""What a user imports."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import hloserve

LIGHT_ROOMS = ("core", "hooks", "config", "bundle", "wire", "client")
MODULES = sorted(
    module.name
    for room in LIGHT_ROOMS
    for module in pkgutil.walk_packages(
        importlib.import_module(f"hloserve.{room}").__path__, f"hloserve.{room}."
    )
    if "protos" not in module.name
)


@pytest.mark.parametrize("name", hloserve.__all__)
def test_every_public_name_exists(name: str) -> None:
    """Each public name of the package is there, and listed."""
    assert getattr(hloserve, name) is not None
    assert name in dir(hloserve)


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that the package does not have is told as Python tells it."""
    with pytest.raises(AttributeError, match="module 'hloserve' has no attribute 'Klient'"):
        hloserve.Klient  # noqa: B018  # looking it up is the test


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module: str) -> None:
    """What a docstring shows is what happens."""
    failed, _ = doctest.testmod(importlib.import_module(module))

    assert 0 == failed


@pytest.mark.parametrize("statement", ["import hloserve", "from hloserve import Client"])
def test_client_imports_no_xla(statement: str) -> None:
    """The client's side of the package never loads jax, jaxlib, torch or uvloop."""
    heavy = ("jax", "jaxlib", "torch", "uvloop", "prometheus_client")
    program = f"import sys; {statement}; print(*[m for m in {heavy!r} if m in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert "" == done.stdout.strip()
