"""What a program says of the machines that can run it."""

import pytest

from hloserve.engine.portability import oldest_jaxlib

pytestmark = pytest.mark.xla


@pytest.mark.parametrize(
    ("version", "jaxlib"),
    [
        ("0.9.0", "0.4.20"),
        ("1.0.0", "0.4.31"),
        ("1.4.9", "0.4.31"),
        ("1.5.0", "0.5.3"),
        ("1.11.0", "0.6.2"),
        ("1.15.0", "0.10.2"),
        ("2.0.0", ""),
        ("999999999.0.0", ""),
    ],
)
def test_jaxlib_of_a_stablehlo_version(version: str, jaxlib: str) -> None:
    """The oldest release that was tried with artifacts of the version."""
    assert jaxlib == oldest_jaxlib(version)
