"""A multi-layer perceptron."""

import math

import torch
from torch import nn


class MLP(nn.Module):
    """Linear layers with ReLU and dropout between; the first flattens its input."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        width: int = 128,
        depth: int = 2,
        dropout: float = 0.0,
    ) -> None:
        """Build it.

        Args:
            input_shape: shape of one row.
            num_outputs: classes, or numbers to predict.
            width: units of a hidden layer.
            depth: hidden layers; 0 is a linear model.
            dropout: share of hidden units dropped in training.
        """
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        units = math.prod(input_shape)
        for _ in range(depth):
            layers += [nn.Linear(units, width), nn.ReLU(), nn.Dropout(dropout)]
            units = width
        self.layers = nn.Sequential(*layers, nn.Linear(units, num_outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, num_outputs) for rows x: (B, *input_shape)."""
        out: torch.Tensor = self.layers(x)
        return out
