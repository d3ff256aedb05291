"""The model and optimizer parts of an ejected file."""

from __future__ import annotations

import textwrap
from typing import Any

import torch
from torch import nn

from lucid import models
from lucid.build import Built, bind_optimizer
from lucid.cli.ejecting.lift import Code, lift, literal
from lucid.config.names import bind, import_object
from lucid.errors import ConfigError


def model_code(built: Built) -> Code:
    """Return `make_model` and the classes that it needs."""
    section = built.config.model
    made, needs = _expression(built)
    lines = [f"model = {made}"] if section.weights else [f"return {made}"]
    imports = set[str]()
    if section.weights:
        lines += _weights(section.weights, imports)
    body = "\n".join(f"    {line}" for line in lines)
    return needs + Code(imports, f'def make_model():\n    """A fresh model."""\n{body}\n')


def _expression(built: Built) -> tuple[str, Code]:
    section, data = built.config.model, built.data
    given = {"input_shape": data.input_shape, "num_outputs": data.num_outputs, "num_classes": data.num_outputs}
    library, _, rest = section.name.partition(":")
    if section.name in models.OURS:
        name = models.OURS[section.name]
        kind = getattr(__import__(f"lucid.models.{section.name}", fromlist=[name]), name)
        arguments = bind(kind, section.options, "model.options", given)
        return _call(name, arguments), lift(f"lucid.models.{section.name}", name)
    if library == "timm":
        channels = {"in_chans": data.input_shape[0]} if len(data.input_shape) == 3 else {}
        arguments = {"num_classes": data.num_outputs, **channels, **section.options}
        return _call("timm.create_model", arguments, literal(rest)), Code({"import timm"})
    if library == "torchvision":
        arguments = {"num_classes": data.num_outputs, **section.options}
        return _call("torchvision.models.get_model", arguments, literal(rest)), Code({"import torchvision"})
    if library == "transformers":
        return _transformers(rest, section.options, data.num_outputs)
    arguments = bind(import_object(section.name, "model.name"), section.options, "model.options", given)
    return _call(section.name.replace(":", "."), arguments), Code({f"import {library}"})


def _transformers(name: str, options: dict[str, Any], num_outputs: int) -> tuple[str, Code]:
    import transformers

    if not isinstance(getattr(transformers, name, None), type):
        raise ConfigError(f"lucid eject needs a class of transformers in model.name, got {name!r}.")
    labels = {} if "CausalLM" in name or "LMHead" in name else {"num_labels": num_outputs}
    settings = _call(f"transformers.{name}.config_class", {**labels, **options})
    return f"Logits(transformers.{name}({settings}))", lift("lucid.models.outside", "Logits") + Code(
        {"import transformers"}
    )


def _call(name: str, arguments: dict[str, Any], *first: str) -> str:
    return f"{name}({', '.join([*first, *(f'{key}={literal(value)}' for key, value in arguments.items())])})"


def _weights(path: str, imports: set[str]) -> list[str]:
    if not path.endswith(".safetensors"):
        raise ConfigError(
            f"lucid eject cannot read model.weights = {path!r} without lucid. Write them as safetensors first: "
            f"lucid export {path} weights.safetensors"
        )
    imports.add("from safetensors.torch import load_file")
    return [f"model.load_state_dict(load_file({literal(path)}))", "return model"]


def optimizer_code(built: Built) -> Code:
    """Return `make_optimizer`: which parameters get which rate and decay, and torch's own optimizer."""
    optimizer, section = built.trainer.optimizers[0], built.config.optimizer
    arguments = bind_optimizer(section)
    if optimizer.param_groups[0].get("fused"):
        arguments["fused"] = True
    kind = next(cls for cls in type(optimizer).__mro__ if not cls.__module__.startswith("lucid"))
    own = not kind.__module__.startswith("torch.")
    name = section.name.replace(":", ".") if own else f"torch.optim.{kind.__name__}"
    imports = {f"import {section.name.partition(':')[0]}"} if own else set[str]()
    grouping = _rule(built.model, optimizer) or _table(built.model, optimizer)
    made = _call(name, arguments, "groups")
    return Code(imports, f"def make_optimizer(model):\n{grouping}    return {made}\n")


def _rule(model: nn.Module, optimizer: torch.optim.Optimizer) -> str | None:
    """Write the groups as a rule, if the rule gives exactly these groups."""
    groups = optimizer.param_groups
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    plain = [p for name, p in named if p.dim() <= 1 or name.endswith("bias")]
    wide = [p for name, p in named if not (p.dim() <= 1 or name.endswith("bias"))]
    wanted = [part for part in (plain, wide) if part]
    found = [group["params"] for group in groups]
    same = len(found) == len(wanted) and all(
        len(a) == len(b) and all(p is q for p, q in zip(a, b, strict=True)) for a, b in zip(found, wanted, strict=True)
    )
    if not same:
        return None
    frozen = len(named) != sum(1 for _ in model.parameters())
    listed = "list(model.named_parameters())"
    if frozen:
        listed = "[(name, p) for name, p in model.named_parameters() if p.requires_grad]"
    decays = "weight_decay" in groups[0]
    made = {
        "plain": 'plain = [p for name, p in named if p.dim() <= 1 or name.endswith("bias")]',
        "others": 'others = [p for name, p in named if not (p.dim() <= 1 or name.endswith("bias"))]',
    }
    used = [word for word, part in (("plain", plain), ("others", wide)) if part]
    words = "Biases and gains, which get no weight decay, and all other parameters."
    text = "\n".join([f'"""{words}"""', f"named = {listed}", *(made[word] for word in used)]) + "\n"
    lines = []
    for group, word in zip(groups, used, strict=True):
        decay = f', "weight_decay": {group["weight_decay"]!r}' if decays else ""
        lines.append(f'{{"params": {word}{decay}}}')
    return _indent(text + f"groups = [{', '.join(lines)}]\n")


def _table(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Write the groups out, name by name."""
    names = {id(p): name for name, p in model.named_parameters()}
    lines = ['"""Parameters with their own rate and decay, by name."""', "groups = ["]
    for group in optimizer.param_groups:
        members = ", ".join(literal(names[id(p)]) for p in group["params"])
        lr = group.get("initial_lr", group["lr"])
        decay = f', "weight_decay": {group["weight_decay"]!r}' if "weight_decay" in group else ""
        row = f'    {{"lr": {lr!r}{decay}, "params": [{members}]}},'
        lines += textwrap.wrap(row, 112, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)
    lines += ["]", "named = dict(model.named_parameters())", "for group in groups:"]
    lines.append('    group["params"] = [named[name] for name in group["params"]]')
    return _indent("\n".join(lines) + "\n")


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())
