"""Metrics as sums and counts: exact on ragged batches, kept on the device, read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lucid.errors import ConfigError, DataError

Metric = Callable[[Any, Any], Any]

_OBJECT_METHODS = ("update", "compute", "reset")


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return for each row whether the largest output is the target's class: (N,) float32.

    Args:
        output: (N, C) logits or probabilities; (N, C, ...) counts each position.
        target: (N) or (N, ...) class numbers.
    """
    _check_classes("accuracy", output, target)
    return (output.argmax(dim=1) == target).float().flatten()


def top_k(k: int) -> Metric:
    """Return a metric: for each row, whether the target's class is among the `k` largest outputs.

    Args:
        k: how many of the largest outputs count.

    Raises:
        ConfigError: if `k` is below 1.
    """
    if k < 1:
        raise ConfigError(f"top_k needs k of at least 1, got {k}.")

    def metric(output: Tensor, target: Tensor) -> Tensor:
        _check_classes(f"top_k({k})", output, target)
        if k > output.shape[1]:
            raise ConfigError(f"top_k({k}) needs at least {k} classes, the output has {output.shape[1]}.")
        return (output.topk(k, dim=1).indices == target.unsqueeze(1)).any(dim=1).float().flatten()

    return metric


def mean_absolute_error(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    """Return the sum of absolute differences and how many there are.

    Args:
        output: predictions of any shape.
        target: values of the same shape.
    """
    _check_same_shape("mean_absolute_error", output, target)
    return (output - target).abs().double().sum(), output.numel()


def mean_squared_error(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    """Return the sum of squared differences and how many there are.

    Args:
        output: predictions of any shape.
        target: values of the same shape.
    """
    _check_same_shape("mean_squared_error", output, target)
    return (output - target).double().square().sum(), output.numel()


class R2:
    """Share of the target's variance that the predictions explain, from four sums."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._sums: Tensor | None = None

    def update(self, output: Tensor, target: Tensor) -> None:
        """Count a batch of predictions and values of the same shape."""
        _check_same_shape("R2", output, target)
        wide = _wide(target.device)
        y, error = target.to(wide), (target - output).to(wide)
        count = torch.tensor(float(y.numel()), dtype=wide, device=y.device)
        # Sums of y are taken around the first batch's mean: far from zero, sums of squares would lose all digits.
        if self._sums is None:
            self._shift = y.mean()
            self._sums = torch.zeros(4, dtype=wide, device=y.device)
        y = y - self._shift
        self._sums += torch.stack([count, y.sum(), y.square().sum(), error.square().sum()])

    def compute(self) -> Tensor:
        """Return 1 - residual sum of squares / total sum of squares; NaN where the target does not vary."""
        if self._sums is None:
            return torch.tensor(float("nan"))
        count, total, squares, residual = self._sums
        spread = squares - total.square() / count
        return torch.where(spread > 0, 1 - residual / spread, torch.nan)


class MetricSet:
    """Several metrics over a whole data set.

    Args:
        metrics: by name, either a function of output and target that returns one value per row (N,), a mean over
            the rows (), or a pair (sum, count); or an object with `update`, `compute` and `reset`, such as those
            of torchmetrics.

    Raises:
        ConfigError: if one is neither.

    Example:
        >>> metrics = MetricSet({"score": lambda output, target: output})
        >>> metrics.update(torch.full((1,), 2.0), torch.zeros(1))
        >>> metrics.update(torch.full((9,), 10.0), torch.zeros(9))
        >>> metrics.compute()
        {'score': 9.2}
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._objects: dict[str, Any] = {}
        self._functions: dict[str, Metric] = {}
        for name, metric in metrics.items():
            is_class = isinstance(metric, type)
            if not is_class and all(callable(getattr(metric, method, None)) for method in _OBJECT_METHODS):
                self._objects[name] = metric
            elif callable(metric) and not is_class:
                self._functions[name] = metric
            else:
                what = f"the class {metric.__name__}" if is_class else f"a {type(metric).__name__}"
                raise ConfigError(
                    f"metric {name!r} must be a function of output and target, or an object with update, compute and "
                    f"reset, got {what}."
                )
        self._order = list(metrics)
        self._sums: dict[str, tuple[Any, Any]] = {}
        self._updated = False

    def __len__(self) -> int:
        return len(self._order)

    @torch.no_grad()
    def update(self, output: Any, target: Any) -> None:
        """Count one batch; nothing is read from the device.

        Raises:
            DataError: if a metric returns something that is none of the three forms.
        """
        if not self._updated:
            self._updated = True
            self._move_objects(output)
        for metric in self._objects.values():
            metric.update(output, target)
        for name, function in self._functions.items():
            total, count = _sum_and_count(name, function(output, target), output, target)
            before = self._sums.get(name, (0.0, 0))
            self._sums[name] = (before[0] + total, before[1] + count)

    @torch.no_grad()
    def compute(self, reduce: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Return every metric over all batches since `reset`, in one read; NaN where nothing was counted.

        Args:
            reduce: adds a tensor up over all processes. None: there is one. Objects add up by their own means.
        """
        sums = self._stack()
        if reduce is not None:
            sums = reduce(sums)
        values = dict(zip(self._functions, sums[:, 0] / sums[:, 1], strict=True))
        for name, metric in self._objects.items():
            # Over several processes every one must take part, also one that had no batch.
            values[name] = _one_number(name, metric.compute()) if self._updated or reduce else _nan()
        return dict(zip(self._order, _read([values[name] for name in self._order]), strict=True))

    def reset(self) -> None:
        """Forget everything counted."""
        self._sums.clear()
        self._updated = False
        for metric in self._objects.values():
            metric.reset()

    def _stack(self) -> Tensor:
        """Sums and counts of all functions: (K, 2) float64, on the device of the first sum."""
        parts = [part for name in self._functions for part in self._sums.get(name, (0.0, 0))]
        device = next((part.device for part in parts if isinstance(part, Tensor)), torch.device("cpu"))
        wide = _wide(device)
        if not parts:
            return torch.zeros(0, 2, dtype=wide)
        return torch.stack([torch.as_tensor(part, dtype=wide, device=device) for part in parts]).view(-1, 2)

    def _move_objects(self, output: Any) -> None:
        if isinstance(output, Tensor):
            for metric in self._objects.values():
                if isinstance(metric, torch.nn.Module):
                    metric.to(output.device)


def _sum_and_count(name: str, value: Any, output: Any, target: Any) -> tuple[Any, Any]:
    if isinstance(value, tuple) and len(value) == 2:
        return _widen(name, value[0]), _widen(name, value[1])
    if isinstance(value, Tensor) and value.dim() == 1:
        return value.to(_wide(value.device)).sum(), value.shape[0]
    if isinstance(value, int | float) or (isinstance(value, Tensor) and value.dim() == 0):
        rows = _num_rows(name, target, output)
        return _widen(name, value) * rows, rows
    shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise DataError(
        f"metric {name!r} must return one value per row (N,), a mean over the rows (a number), or a pair (sum, count), "
        f"got {shown}. Reduce it to one of these."
    )


def _widen(name: str, part: Any) -> Any:
    if isinstance(part, Tensor) and part.dim() == 0:
        return part.to(_wide(part.device))
    if isinstance(part, int | float):
        return part
    shown = f"a tensor of shape {tuple(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"
    raise DataError(f"metric {name!r} must return a pair of numbers (sum, count), got {shown} in it.")


def _num_rows(name: str, *values: Any) -> int:
    for value in values:
        if isinstance(value, Tensor) and value.dim() > 0:
            return value.shape[0]
        if isinstance(value, Mapping) and value:
            return _num_rows(name, *value.values())
        if isinstance(value, list | tuple) and value:
            return _num_rows(name, *value)
    raise DataError(
        f"metric {name!r} returned one number, but neither target nor output tells how many rows it is the mean of. "
        "Return a pair (sum, count)."
    )


def _one_number(name: str, value: Any) -> Tensor:
    if isinstance(value, int | float):
        return torch.tensor(float(value), dtype=torch.float64)
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().reshape(())
    shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise DataError(
        f"metric {name!r} must compute one number, got {shown}. Give each of its values a metric of its own."
    )


def _read(values: list[Tensor]) -> list[float]:
    """Bring 0-d tensors to the host in one read, as long as they are on one device."""
    if not values:
        return []
    device = next((value.device for value in values if value.device.type != "cpu"), values[0].device)
    wide = _wide(device)
    read: list[float] = torch.stack([value.to(device, wide) for value in values]).tolist()
    return read


def _nan() -> Tensor:
    return torch.tensor(float("nan"))


def _wide(device: torch.device) -> torch.dtype:
    """The widest floating dtype the device has: float64, except on Metal."""
    return torch.float32 if device.type == "mps" else torch.float64


def _check_classes(name: str, output: Tensor, target: Tensor) -> None:
    expected = (output.shape[0], *output.shape[2:]) if output.dim() >= 2 else None
    if expected is None or tuple(target.shape) != expected:
        raise DataError(
            f"{name} needs output (N, C, ...) and class numbers (N, ...), got output {tuple(output.shape)} and target "
            f"{tuple(target.shape)}. One-hot targets: pass target.argmax(1). One logit per row: stack it to two."
        )


def _check_same_shape(name: str, output: Tensor, target: Tensor) -> None:
    if output.shape != target.shape:
        raise DataError(
            f"{name} needs output and target of one shape, got {tuple(output.shape)} and {tuple(target.shape)}. "
            "For (N, 1) against (N,), squeeze the output."
        )
