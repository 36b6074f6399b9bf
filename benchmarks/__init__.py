"""Benchmarks: load against real servers, and the loops they are compared with."""
