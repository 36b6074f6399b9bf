"""TorchScript: files and scripts as exported programs, and what is in them."""
