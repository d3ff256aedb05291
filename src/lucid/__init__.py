"""Lucid: the complete supervised training loop on PyTorch."""
