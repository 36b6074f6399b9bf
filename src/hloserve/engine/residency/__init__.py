"""Weights of many models on one device that cannot hold them all."""
