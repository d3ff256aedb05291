"""How torch computes: what the settings ask for is set or refused, and layout changes no result and no resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid import kernels
from lucid.amp import Precision
from lucid.errors import ConfigError


@pytest.fixture(autouse=True)
def as_torch_has_it() -> Iterator[None]:
    """Put back what holds for the whole process."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False


def train(folder: Path | None, **settings: Any) -> lucid.Trainer:
    """Train two convolutions on rows of noise, 16 steps unless told otherwise."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    rows = TensorDataset(torch.randn(32, 3, 6, 6), torch.randint(3, (32,)))
    config = lucid.TrainConfig(epochs=2, device="cpu", ema_decay=0.9, **settings)
    trainer = lucid.Trainer(
        model, lucid.optim.AdamW(model.parameters(), lr=1e-2), loss=F.cross_entropy, config=config, run_dir=folder,
        reports=(),
    )  # fmt: skip
    trainer.fit(DataLoader(rows, batch_size=4, shuffle=True), DataLoader(rows, batch_size=16))
    return trainer


def weights(trainer: lucid.Trainer) -> torch.Tensor:
    """Return all weights in the order of their indices, whatever their layout."""
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def test_channels_last_is_a_layout_and_no_more() -> None:
    """Weights and moments of convolutions have channels last from the first step to the last; results stay the same."""
    plain, last = train(None), train(None, channels_last=True)
    state = last.optimizers[0].state
    for parameter in (p for p in last.model.parameters() if p.dim() == 4):
        for tensor in (parameter, state[parameter]["exp_avg"], state[parameter]["exp_avg_sq"]):
            assert tensor.is_contiguous(memory_format=torch.channels_last)
            assert not tensor.is_contiguous()
    torch.testing.assert_close(weights(last), weights(plain), rtol=0, atol=1e-5)


def test_channels_last_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """A run in channels last that is broken off and resumed ends with the bits of the unbroken one."""
    train(tmp_path, channels_last=True, max_steps=5)
    assert torch.equal(weights(train(tmp_path, channels_last=True)), weights(train(None, channels_last=True)))


@pytest.mark.parametrize("then", [True, False])
def test_layout_may_change_at_a_resume(tmp_path: Path, then: bool) -> None:
    """Moments get the layout of their weights: the run goes on as if nothing had changed, but for rounding.

    torch's own optimizer would pair them by place in memory: weights off by 0.05.
    """
    train(tmp_path, channels_last=not then, max_steps=5)
    torch.testing.assert_close(weights(train(tmp_path, channels_last=then)), weights(train(None)), rtol=0, atol=1e-5)


def test_channels_last_needs_a_convolution() -> None:
    """A model without weights of 4 dimensions is refused: nothing would change."""
    config = lucid.TrainConfig(channels_last=True)
    with pytest.raises(ConfigError, match=r"train\.channels_last is for .* 4 dimensions, and Linear has none"):
        kernels.check(config, nn.Linear(2, 2), torch.device("cpu"))


@pytest.mark.parametrize("name", ["highest", "high", "medium"])
def test_matmul_precision_is_set(name: Any) -> None:
    """It is torch's own setting, and what describes the precision says it."""
    train(None, matmul_precision=name, max_steps=1)
    assert torch.get_float32_matmul_precision() == name
    assert f"matrix products: {name}" in Precision("fp32").describe()


def test_matmul_precision_is_torchs_unless_given() -> None:
    """Without the setting, what the user set stays; an unknown value is refused."""
    torch.set_float32_matmul_precision("high")
    train(None, max_steps=1)
    assert torch.get_float32_matmul_precision() == "high"
    with pytest.raises(ConfigError, match=r"train\.matmul_precision must be one of 'highest', 'high', 'medium', None"):
        lucid.TrainConfig(matmul_precision="low")  # type: ignore[arg-type]


def test_cudnn_benchmark_is_for_cuda() -> None:
    """It is set on an NVIDIA GPU, refused elsewhere, and refused with deterministic kernels."""
    config = lucid.TrainConfig(cudnn_benchmark=True)
    kernels.check(config, nn.Linear(2, 2), torch.device("cuda"))
    kernels.choose(config, nn.Linear(2, 2))
    assert torch.backends.cudnn.benchmark
    with pytest.raises(ConfigError, match=r"train\.cudnn_benchmark .* this run is on 'cpu'"):
        train(None, cudnn_benchmark=True)
    with pytest.raises(ConfigError, match=r"train\.cudnn_benchmark must be false with train\.deterministic"):
        lucid.TrainConfig(cudnn_benchmark=True, deterministic=True)
