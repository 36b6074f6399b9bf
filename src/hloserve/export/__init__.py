"""Make bundles: from JAX and PyTorch models to what a server loads, proved before it is written."""
