"""Programs that older versions of jaxlib wrote.

The files of `artifacts/` are what `tests/compatibility/write_artifact.py` wrote, run by those
versions; `make test-compatibility` does it anew.
"""

from pathlib import Path

import numpy as np
import pytest

from hloserve.engine.xla_backend import XlaBackend

pytestmark = pytest.mark.xla

ARTIFACTS = Path(__file__).with_name("artifacts")


@pytest.fixture(scope="module")
def backend() -> XlaBackend:
    """One CPU device for all tests of the file."""
    return XlaBackend("cpu")


@pytest.mark.parametrize("version", ["0.4.31", "0.5.3", "0.6.2"])
def test_artifact_of_an_older_jaxlib_computes_what_it_did_there(
    backend: XlaBackend, version: str
) -> None:
    """Artifacts since jaxlib 0.4.31 load, compile and give the numbers that they gave there."""
    file = ARTIFACTS / f"jaxlib-{version}.mlir"
    with np.load(ARTIFACTS / "values.npz") as values:
        arguments = [values[name] for name in values.files if name.startswith("argument_")]
        expected = [values[name] for name in values.files if name.startswith("result_")]

    program = backend.read_program(file.read_bytes(), file.name)
    executable = backend.compile(program, "m")
    on_device = backend.to_device(arguments)
    results = backend.to_host(backend.execute(executable, on_device))

    assert [value.dtype for value in expected] == [value.dtype for value in results]
    for wanted, got in zip(expected, results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
