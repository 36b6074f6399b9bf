"""PyTorch: exported programs run on JAX, operator by operator."""
