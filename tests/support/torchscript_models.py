"""Modules that tests of the command line make TorchScript of."""

import torch

__all__ = ["Summing"]


class Summing(torch.nn.Module):
    """Adds up the last axis, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scripted by tests."""
        return (x * self.scale).sum(-1)
