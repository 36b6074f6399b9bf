"""What the authors of `model.py` import."""
