"""Keys from elsewhere."""

from hloserve.config.foreign import FOREIGN_KEYS
from hloserve.config.settings import SETTINGS


def test_foreign_keys_are_not_settings() -> None:
    """A key that became a setting is no longer refused as foreign."""
    assert set() == set(FOREIGN_KEYS) & set(SETTINGS)
