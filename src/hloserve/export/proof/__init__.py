"""Whether a program computes what its source model does."""
