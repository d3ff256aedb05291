"""A small residual network for small images.

Source: He et al. 2016, arXiv:1512.03385, section 4.2 (basic blocks, three stages), widths as arguments.
"""

import torch
from torch import nn


class Block(nn.Module):
    """Two 3x3 convolutions with a path around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Build it; a 1x1 convolution fits the path when the shape changes."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, outputs, H / stride, W / stride)."""
        return torch.relu(self.body(x) + self.around(x))


class ResNet(nn.Module):
    """A stem and three stages of basic blocks, channels doubling where height and width halve."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        width: int = 16,
        depth: int = 1,
    ) -> None:
        """Build it.

        Args:
            input_shape: (channels, height, width) of one image.
            num_outputs: classes, or numbers to predict.
            width: channels of the first stage.
            depth: blocks per stage; 3 gives the paper's ResNet-20.
        """
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        stages: list[nn.Module] = []
        channels = width
        for stage in range(3):
            for index in range(depth):
                outputs = width * 2**stage
                stages.append(Block(channels, outputs, stride=2 if stage and not index else 1))
                channels = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, num_outputs) for images x: (B, C, H, W)."""
        out: torch.Tensor = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return out
