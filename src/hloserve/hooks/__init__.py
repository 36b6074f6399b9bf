"""What the authors of `model.py` import."""

from hloserve.hooks.rows import trim_rows

__all__ = ["trim_rows"]
