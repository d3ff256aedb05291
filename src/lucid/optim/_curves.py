"""The curves behind the named schedules: step -> factor on the base learning rate, plain numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from lucid.errors import ConfigError

_WARMUP_START = 0.01


def warmup_cosine(
    step: int,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    min_lr_ratio: float = 0.0,
    warmup_start_ratio: float = _WARMUP_START,
) -> float:
    """Factor on the base learning rate: linear warm-up, then half a cosine.

    Args:
        step: optimizer updates already done, from 0.
        total_steps: step at which the factor reaches `min_lr_ratio`; it stays there.
        warmup_steps: steps of linear rise; 0 for none.
        min_lr_ratio: lowest factor after the warm-up, in [0, 1].
        warmup_start_ratio: factor of the first step of the warm-up; not 0, so that no update is wasted.

    Raises:
        ConfigError: if a value is out of its range, or the warm-up is longer than the run.

    Example:
        >>> warmup_cosine(0, total_steps=10), warmup_cosine(5, total_steps=10), warmup_cosine(10, total_steps=10)
        (1.0, 0.5, 0.0)

    Source: Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5 (one period); warm-up of Goyal et al. 2017,
    arXiv:1706.02677, section 2.2.
    """
    _check(step, total_steps, warmup_steps, min_lr_ratio)
    if step < warmup_steps:
        return _rise(step, warmup_steps, warmup_start_ratio)
    share = _share(step, warmup_steps, total_steps)
    return min_lr_ratio + (1 - min_lr_ratio) * (1 + math.cos(math.pi * share)) / 2


def warmup_linear(
    step: int,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    min_lr_ratio: float = 0.0,
    warmup_start_ratio: float = _WARMUP_START,
) -> float:
    """Factor on the base learning rate: linear warm-up, then a straight line down.

    Args:
        step: optimizer updates already done, from 0.
        total_steps: step at which the factor reaches `min_lr_ratio`; it stays there.
        warmup_steps: steps of linear rise; 0 for none.
        min_lr_ratio: lowest factor after the warm-up, in [0, 1].
        warmup_start_ratio: factor of the first step of the warm-up.

    Raises:
        ConfigError: if a value is out of its range, or the warm-up is longer than the run.

    Example:
        >>> warmup_linear(0, total_steps=10), warmup_linear(5, total_steps=10), warmup_linear(10, total_steps=10)
        (1.0, 0.5, 0.0)

    Source: Devlin et al. 2019, arXiv:1810.04805, appendix A.2.
    """
    _check(step, total_steps, warmup_steps, min_lr_ratio)
    if step < warmup_steps:
        return _rise(step, warmup_steps, warmup_start_ratio)
    return min_lr_ratio + (1 - min_lr_ratio) * (1 - _share(step, warmup_steps, total_steps))


def warmup_stable_decay(
    step: int,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    decay_steps: int | None = None,
    decay: Literal["linear", "sqrt", "cosine"] = "sqrt",
    min_lr_ratio: float = 0.0,
    warmup_start_ratio: float = _WARMUP_START,
) -> float:
    """Factor on the base learning rate: linear warm-up, a long constant phase, then a short way down.

    Made for runs that may be extended: up to the decay the factor does not depend on `total_steps`.

    Args:
        step: optimizer updates already done, from 0.
        total_steps: step at which the factor reaches `min_lr_ratio`; it stays there.
        warmup_steps: steps of linear rise; 0 for none.
        decay_steps: steps of the way down, the last ones of the run. None: a fifth of the run, as in the source.
        decay: shape of the way down: "linear", "sqrt" (1 - sqrt of the share done) or "cosine".
        min_lr_ratio: lowest factor after the warm-up, in [0, 1].
        warmup_start_ratio: factor of the first step of the warm-up.

    Raises:
        ConfigError: if a value is out of its range, or warm-up and decay are longer than the run.

    Example:
        >>> [round(warmup_stable_decay(s, total_steps=100, decay="linear"), 2) for s in (0, 80, 90, 100)]
        [1.0, 1.0, 0.5, 0.0]

    Source: Haegele et al. 2024, arXiv:2405.18392, section 3; Hu et al. 2024, arXiv:2404.06395, section 4.
    """
    _check(step, total_steps, warmup_steps, min_lr_ratio)
    down = total_steps // 5 if decay_steps is None else decay_steps
    if not 0 <= down <= total_steps - warmup_steps:
        if decay_steps is not None:
            raise ConfigError(
                f"decay_steps must lie between 0 and total_steps - warmup_steps ({total_steps - warmup_steps}), "
                f"got {decay_steps}. Lower it or train longer."
            )
        down = total_steps - warmup_steps
    if step < warmup_steps:
        return _rise(step, warmup_steps, warmup_start_ratio)
    share = _share(step, total_steps - down, total_steps)
    if decay == "linear":
        left = 1 - share
    elif decay == "sqrt":
        left = 1 - math.sqrt(share)
    elif decay == "cosine":
        left = (1 + math.cos(math.pi * share)) / 2
    else:
        raise ConfigError(f"decay must be 'linear', 'sqrt' or 'cosine', got {decay!r}.")
    return min_lr_ratio + (1 - min_lr_ratio) * left


def one_cycle(
    step: int,
    *,
    total_steps: int,
    warmup_ratio: float = 0.3,
    start_ratio: float = 1 / 25,
    min_lr_ratio: float = 1 / 250_000,
) -> float:
    """Factor on the base learning rate: half a cosine up, then half a cosine far down; the base rate is the peak.

    The values are those of `torch.optim.lr_scheduler.OneCycleLR` with `max_lr` the base rate.

    Args:
        step: optimizer updates already done, from 0.
        total_steps: the last update, number `total_steps - 1`, uses `min_lr_ratio`; it stays there.
        warmup_ratio: share of the run that rises, in (0, 1).
        start_ratio: factor of the first update.
        min_lr_ratio: factor of the last update.

    Raises:
        ConfigError: if a value is out of its range.

    Source: Smith & Topin 2018, arXiv:1708.07120, section 3, with cosines for its straight lines.
    """
    _check(step, total_steps, 0, min_lr_ratio)
    if not 0 < warmup_ratio < 1:
        raise ConfigError(f"warmup_ratio must lie between 0 and 1, got {warmup_ratio}.")
    peak, last = warmup_ratio * total_steps - 1, float(total_steps - 1)
    if step <= peak:
        return _between(start_ratio, 1.0, step / peak if peak else 1.0)
    return _between(1.0, min_lr_ratio, 1.0 if last <= peak else min((step - peak) / (last - peak), 1.0))


def step_decay(
    step: int,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    milestones: Sequence[int | float] = (0.5,),
    gamma: float = 0.1,
    every: int | None = None,
    warmup_start_ratio: float = _WARMUP_START,
) -> float:
    """Factor on the base learning rate: multiplied by `gamma` at each milestone.

    Args:
        step: optimizer updates already done, from 0.
        total_steps: steps of the whole run, of which milestones may be shares.
        warmup_steps: steps of linear rise; 0 for none.
        milestones: steps at which the factor drops, as whole numbers, or as shares of `total_steps` below 1.
        gamma: factor of each drop, at least 0.
        every: drop every so many steps instead of at `milestones`. None: use `milestones`.
        warmup_start_ratio: factor of the first step of the warm-up.

    Raises:
        ConfigError: if a value is out of its range.

    Example:
        >>> [step_decay(s, total_steps=1000) for s in (0, 499, 500, 1000)]
        [1.0, 1.0, 0.1, 0.1]

    Source: He et al. 2016, arXiv:1512.03385, section 3.4 (a tenth at each plateau).
    """
    _check(step, total_steps, warmup_steps, 0.0)
    if not gamma >= 0:
        raise ConfigError(f"gamma must be at least 0, got {gamma}.")
    if step < warmup_steps:
        return _rise(step, warmup_steps, warmup_start_ratio)
    if every is not None:
        if every < 1:
            raise ConfigError(f"every must be at least 1 step, got {every}.")
        return float(gamma ** (step // every))
    passed = sum(step >= (round(m * total_steps) if isinstance(m, float) and m < 1 else m) for m in milestones)
    return float(gamma**passed)


def constant(
    step: int, *, total_steps: int = 1, warmup_steps: int = 0, warmup_start_ratio: float = _WARMUP_START
) -> float:
    """Factor on the base learning rate: 1, after a linear warm-up if there is one.

    Args:
        step: optimizer updates already done, from 0.
        total_steps: steps of the whole run; only checked against the warm-up.
        warmup_steps: steps of linear rise; 0 for none.
        warmup_start_ratio: factor of the first step of the warm-up.

    Raises:
        ConfigError: if a value is out of its range, or the warm-up is longer than the run.
    """
    _check(step, total_steps, warmup_steps, 0.0)
    return _rise(step, warmup_steps, warmup_start_ratio) if step < warmup_steps else 1.0


def _rise(step: int, warmup_steps: int, start: float) -> float:
    return start + (1 - start) * step / warmup_steps


def _share(step: int, first: int, last: int) -> float:
    """Share of the way from step `first` to `last` that is done, in [0, 1]."""
    if step >= last:
        return 1.0
    return (step - first) / (last - first) if step > first else 0.0


def _between(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def _check(step: int, total_steps: int, warmup_steps: int, min_lr_ratio: float) -> None:
    if step >= 0 and 0 <= warmup_steps <= total_steps and total_steps >= 1 and 0 <= min_lr_ratio <= 1:
        return
    if step < 0:
        raise ConfigError(f"step must be at least 0, got {step}.")
    if total_steps < 1:
        raise ConfigError(f"total_steps must be at least 1, got {total_steps}.")
    if not 0 <= warmup_steps <= total_steps:
        raise ConfigError(
            f"warmup_steps must be at least 0 and at most total_steps ({total_steps}), got {warmup_steps}. "
            "Lower it or train longer."
        )
    raise ConfigError(f"min_lr_ratio must lie between 0 and 1, got {min_lr_ratio}.")
