"""A small decoder for language modelling.

Shapes: B rows, T positions, H heads, C channels, V tokens of the vocabulary.
Source: Radford et al. 2019 (GPT-2): pre-norm blocks, learnt positions, tied head, residual projections started smaller.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """Causal self-attention and a feed-forward net, each with a path around it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        """Build it; `width` must be a multiple of `heads`."""
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x: (B, T, C) with what each position takes from those before it."""
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in parts)
        p = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.project(seen), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class GPT(nn.Module):
    """Token and position embeddings, layers, a norm, and a head that shares the token embedding."""

    def __init__(
        self,
        num_outputs: int,
        input_shape: tuple[int, ...],
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        dropout: float = 0.0,
    ) -> None:
        """Build it.

        Args:
            num_outputs: V, tokens in the vocabulary.
            input_shape: (T,), the longest row.
            layers: blocks.
            heads: attention heads of a block.
            width: C, channels; a multiple of `heads`.
            dropout: share dropped in training.
        """
        super().__init__()
        self.tokens = nn.Embedding(num_outputs, width)
        self.positions = nn.Embedding(input_shape[0], width)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_outputs, bias=False)
        self.dropout = dropout
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                small = name.endswith(("project.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if small else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (B, T, V) of the next token for tokens: (B, T) int64."""
        at = torch.arange(tokens.shape[1], device=tokens.device)
        x = F.dropout(self.tokens(tokens) + self.positions(at), self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits
