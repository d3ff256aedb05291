"""A small convolutional network."""

import torch
from torch import nn


def block(inputs: int, outputs: int) -> nn.Sequential:
    """3x3 convolution, batch norm, ReLU; height and width stay."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class CNN(nn.Module):
    """Three blocks, channels doubling, one pooling; then a linear layer on a 2x2 map. Any image of 4x4 or more."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        width: int = 32,
        dropout: float = 0.4,
    ) -> None:
        """Build it.

        Args:
            input_shape: (channels, height, width) of one image.
            num_outputs: classes, or numbers to predict.
            width: channels of the first block.
            dropout: share of features dropped before the last layer in training.
        """
        super().__init__()
        self.features = nn.Sequential(
            block(input_shape[0], width),
            block(width, 2 * width),
            nn.MaxPool2d(2),
            block(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(2),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4 * width * 4, num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, num_outputs) for images x: (B, C, H, W)."""
        out: torch.Tensor = self.head(self.dropout(self.features(x).flatten(1)))
        return out
