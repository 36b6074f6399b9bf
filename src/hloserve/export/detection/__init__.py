"""Two-stage detectors as one program with a fixed-size result."""
