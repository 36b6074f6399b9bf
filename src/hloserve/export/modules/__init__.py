"""Flax and Equinox: modules as functions of their inputs and named weights."""
