"""Parameter groups: which parameters get which learning rate and weight decay, by rule, and listed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from lucid.errors import ConfigError

Rule = Callable[[str, Tensor], bool]

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_INDEX = re.compile(r"(?:^|(?<=\.))(\d+)\.")


def is_bias_or_norm(name: str, param: Tensor) -> bool:
    """Whether a parameter is a bias, a gain of a normalisation, or another vector or scalar: at most one dimension."""
    return param.dim() <= 1 or name.endswith("bias")


def param_groups(
    model: nn.Module,
    *,
    lr: float | None = None,
    weight_decay: float = 0.01,
    no_decay: Rule | None = is_bias_or_norm,
    layer_decay: float | None = None,
    lr_by_pattern: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Return the trainable parameters of a model in groups for an optimizer.

    Args:
        model: whose parameters; frozen ones are left out.
        lr: base learning rate; needed for `layer_decay` and `lr_by_pattern`, which scale it.
        weight_decay: weight decay of all parameters but those of `no_decay`.
        no_decay: name and parameter -> whether it gets no weight decay. Default: biases, normalisation layers, other
            vectors and scalars, and what the model's own `no_weight_decay()` lists. None: all get it.
        layer_decay: factor on the rate from each block to the one before it, so that early blocks move least. The
            blocks are the longest numbered list in the model; what stands before them is one layer below the
            first, everything else gets the full rate. None: one rate.
        lr_by_pattern: pattern of full parameter names (`*` stands for anything) -> factor on the rate. The first
            that fits counts.

    Returns:
        Groups with `params` as (name, parameter) pairs, `name`, `weight_decay`, and `lr` where `lr` is given.

    Raises:
        ConfigError: if there is nothing to train, a pattern fits no parameter, or a factor has no rate to scale.

    Source: layer-wise rates: Clark et al. 2020, arXiv:2003.10555, appendix A; Bao et al. 2022, arXiv:2106.08254.
    """
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    if not named:
        raise ConfigError(f"{type(model).__name__} has no trainable parameter: all have requires_grad=False, or none.")
    if lr is None and (layer_decay is not None or lr_by_pattern):
        raise ConfigError("param_groups needs lr=... for layer_decay and lr_by_pattern: they scale it.")
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise ConfigError(f"layer_decay must lie above 0 and be at most 1, got {layer_decay!r}.")
    if lr_by_pattern is not None and not isinstance(lr_by_pattern, Mapping):
        raise ConfigError(f"lr_by_pattern must be a mapping of patterns to factors, got {lr_by_pattern!r}.")
    scales = _scales([name for name, _ in named], layer_decay, lr_by_pattern or {})
    plain = _plain_parameters(model) if no_decay is is_bias_or_norm else set()
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, param in named:
        decays = not (name in plain or (no_decay is not None and no_decay(name, param)))
        key = (scales[name], decays)
        if key not in groups:
            groups[key] = _new_group(lr, weight_decay, *key)
        groups[key]["params"].append((name, param))
    return [groups[key] for key in sorted(groups)]


def describe_groups(groups: Iterable[Mapping[str, Any]]) -> str:
    """Return a table of parameter groups, those of `param_groups` or of any optimizer, one line each.

    Example:
        >>> print(describe_groups(param_groups(nn.Linear(2, 3), lr=0.1, weight_decay=0.01)))
        group              lr  weight_decay  tensors  parameters
        lr x 1, no decay  0.1             0        1           3
        lr x 1            0.1          0.01        1           6
    """
    rows: list[tuple[str, ...]] = [("group", "lr", "weight_decay", "tensors", "parameters")]
    for number, group in enumerate(groups):
        params = [item[1] if isinstance(item, tuple) else item for item in group["params"]]
        numbers = [f"{float(group[key]):.4g}" if key in group else "-" for key in ("lr", "weight_decay")]
        size = sum(param.numel() for param in params)
        rows.append((str(group.get("name", number)), *numbers, str(len(params)), f"{size:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([f"{row[0]:<{widths[0]}}", *cells]))
    return "\n".join(lines)


def _new_group(lr: float | None, weight_decay: float, scale: float, decays: bool) -> dict[str, Any]:
    name = f"lr x {scale:.4g}" + ("" if decays else ", no decay")
    group: dict[str, Any] = {"params": [], "name": name, "weight_decay": weight_decay if decays else 0.0}
    if lr is not None:
        group["lr"] = lr * scale
    return group


def _plain_parameters(model: nn.Module) -> set[str]:
    """Parameters of normalisation layers, some of more than one dimension, and those that the model lists itself."""
    own: Any = getattr(model, "no_weight_decay", None)  # timm's custom
    listed = own() if callable(own) else ()
    return set(listed) | {
        f"{name}.{key}" if name else key
        for name, module in model.named_modules()
        if isinstance(module, _NORMS)
        for key, _ in module.named_parameters(recurse=False)
    }


def _scales(names: list[str], layer_decay: float | None, by_pattern: Mapping[str, float]) -> dict[str, float]:
    for pattern in by_pattern:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"lr_by_pattern {pattern!r} fits no trainable parameter. Names look like {names[0]!r}.")
    layers = _layers(names) if layer_decay is not None else {}
    top = max(layers.values(), default=0)
    scales = {}
    for name in names:
        scale = 1.0 if layer_decay is None else layer_decay ** (top - layers[name])
        matched = (factor for pattern, factor in by_pattern.items() if fnmatch.fnmatchcase(name, pattern))
        scales[name] = scale * next(matched, 1.0)
    return scales


def _layers(names: list[str]) -> dict[str, int]:
    """Layer of each parameter: 0 before the blocks, 1 + index in them, one more than the last after them."""
    members: dict[str, dict[int, None]] = {}
    for name in names:
        for found in _INDEX.finditer(name):
            members.setdefault(name[: found.start()], {})[int(found[1])] = None
    if not members:
        raise ConfigError("layer_decay needs a model with a numbered list of blocks, such as an nn.ModuleList of them.")
    prefix = max(members, key=lambda key: len(members[key]))
    order = {index: place for place, index in enumerate(sorted(members[prefix]))}
    layers, seen = {}, False
    for name in names:
        inside = _INDEX.match(name, len(prefix)) if name.startswith(prefix) else None
        seen = seen or inside is not None
        layers[name] = order[int(inside[1])] + 1 if inside else (len(order) + 1 if seen else 0)
    return layers
