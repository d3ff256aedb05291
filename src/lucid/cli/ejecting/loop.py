"""The loop part of an ejected file: only the branches that its configuration uses."""

from __future__ import annotations

from typing import Any

from lucid.cli.ejecting.choices import Choices, Lines, autocast_text, count_text, metric_of
from lucid.cli.ejecting.data import split_test
from lucid.cli.ejecting.lift import Code
from lucid.config import TrainConfig
from lucid.errors import ConfigError


def check(choices: Choices) -> None:
    """Refuse what has no plain form.

    Raises:
        ConfigError: with what to change.
    """
    train = choices.train
    if train.max_time is not None:
        raise ConfigError(
            "lucid eject: train.max_time ends a run by the clock, which gives no certain bits. Remove it."
        )
    monitor = train.monitor or "eval/loss"
    if monitor != "eval/loss" and not choices.is_user_step and metric_of(monitor) is None:
        raise ConfigError(f"lucid eject knows no plain form of train.monitor = {monitor!r}. Use eval/loss.")
    if choices.is_user_step and choices.has_eval:
        raise ConfigError("lucid eject with a train_step of your own needs data.validation = 0: how to judge is yours.")
    if choices.schedule == "plateau" and not choices.has_eval:
        raise ConfigError("scheduler.name = 'plateau' needs rows for validation.")


def constants(choices: Choices) -> Code:
    """Return the settings at the top of the file."""
    config, train = choices.built.config, choices.train
    lines = Lines()
    lines.add(0, f"SEED = {train.seed}", f"DEVICE = {str(choices.built.trainer.device)!r}", f"EPOCHS = {train.epochs}")
    if train.max_steps is not None:
        lines.add(0, f"MAX_STEPS = {train.max_steps}")
    lines.add(0, f"BATCH_SIZE = {config.data.batch_size}")
    if train.gradient_accumulation_steps > 1:
        lines.add(0, f"ACCUMULATION = {train.gradient_accumulation_steps}  # batches per step")
    if choices.has_eval:
        lines.add(0, f"EVAL_BATCH_SIZE = {config.data.eval_batch_size or 4 * config.data.batch_size}")
    if train.max_grad_norm is not None:
        lines.add(0, f"MAX_GRAD_NORM = {train.max_grad_norm!r}")
    if train.ema_decay is not None:
        lines.add(0, f"EMA_DECAY = {train.ema_decay!r}")
    if train.patience:
        lines.add(0, f"PATIENCE = {train.patience}")
    split = (config.data.validation, split_test(config), config.data.split_seed)
    lines.add(0, "VALIDATION, TEST, SPLIT_SEED = " + ", ".join(map(repr, split)))
    return Code({"import hashlib", "import torch", "import torch.nn.functional as F"}, lines.text())


def main(choices: Choices) -> Code:
    """Return the loop."""
    lines = Lines()
    _set_up(lines, choices)
    _epoch(lines, choices)
    imports: set[str] = set()
    lines.add(0, "", "", 'if __name__ == "__main__":', "    main()")
    if choices.is_user_step:
        imports.add(f"import {choices.built.config.task.partition(':')[0]}")
    return Code(imports, lines.text())


def _set_up(lines: Lines, choices: Choices) -> None:
    train = choices.train
    lines.add(0, "def main():")
    if train.deterministic:
        lines.add(1, "torch.use_deterministic_algorithms(True)")
    if train.threads is not None:
        lines.add(1, f"torch.set_num_threads({train.threads})")
    lines.add(1, "seed_all(SEED)", "train, validation, test = load_data()")
    if not choices.in_memory:
        lines.add(1, "seed_all(SEED)  # weights follow the seed, whatever the data drew")
    lines.add(1, "model = make_model()", "optimizer = make_optimizer(model)", "model.to(DEVICE)", "model.train()")
    lines.add(1, 'parameters = [p for group in optimizer.param_groups for p in group["params"]]')
    if train.compile:
        lines.add(1, "model.compile()")
    if choices.mode == "fp16":
        lines.add(1, f"scaler = torch.amp.GradScaler({choices.built.trainer.device.type!r})")
    if train.ema_decay is not None:
        lines.add(1, "average = {name: p.detach().clone() for name, p in model.named_parameters()}")
    length = "len(train[0])" if choices.in_memory else "len(train)"
    batches = f"{length} // BATCH_SIZE" if choices.built.config.data.drop_last else f"-(-{length} // BATCH_SIZE)"
    lines.add(1, f"batches = {batches}")
    steps = "EPOCHS * batches"
    if train.gradient_accumulation_steps > 1:
        steps = "EPOCHS * -(-batches // ACCUMULATION)"
    lines.add(1, f"total_steps = {steps if train.max_steps is None else f'min({steps}, MAX_STEPS)'}")
    _set_up_schedule(lines, choices)
    if choices.needs_best:
        worst = "inf" if train.monitor_mode == "min" else "-inf"
        lines.add(1, f'best, best_weights, since_best = float("{worst}"), None, 0')
    lines.add(1, 'seed_all(derive(SEED, "train"))  # dropout', "step = 0")


def _set_up_schedule(lines: Lines, choices: Choices) -> None:
    name, options = choices.schedule, choices.built.config.scheduler.options
    if name == "none":
        return
    arguments = "".join(f", {key}={value!r}" for key, value in options.items())
    if name == "plateau":
        mode = "" if "mode" in options else f", mode={choices.train.monitor_mode!r}"
        lines.add(1, f"scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer{mode}{arguments})")
    elif ":" in name:
        lines.add(1, f"scheduler = {name.replace(':', '.')}(optimizer, total_steps{arguments})")
    else:
        lines.add(1, 'base_lrs = [group["lr"] for group in optimizer.param_groups]', "updates = 0")


def _epoch(lines: Lines, choices: Choices) -> None:
    train = choices.train
    lines.add(1, "for epoch in range(EPOCHS):")
    length = "len(train[0])" if choices.in_memory else "len(train)"
    lines.add(2, 'generator = torch.Generator().manual_seed(derive(SEED, "order", epoch, -1))')
    lines.add(2, f"order = torch.randperm({length}, generator=generator).split(BATCH_SIZE)[:batches]")
    if train.gradient_accumulation_steps > 1:
        lines.add(2, "for first in range(0, batches, ACCUMULATION):")
        _window(lines, choices)
        ended = "first + ACCUMULATION >= batches"
    else:
        lines.add(2, "for batch, rows in enumerate(order):")
        _batch(lines, choices)
        ended = "batch + 1 == batches"
    _update(lines, choices)
    lines.add(3, "step += 1")
    if train.ema_decay is not None:
        lines.add(3, "if good:", "    ema(average, model)")
    _after(lines, choices, ended)
    lines.add(3, "if step == total_steps:")
    lines.add(4, *_end(choices), "return")


def _end(choices: Choices) -> list[str]:
    rows = ['torch.save(model.state_dict(), "last.pt")']
    if choices.needs_best:
        rows.append('torch.save(best_weights, "best.pt")')
    if choices.train.ema_decay is not None:
        rows.append('torch.save(average, "average.pt")')
    return rows


def _forward(choices: Choices) -> list[str]:
    if choices.is_user_step:
        return [f"loss = {choices.built.config.task.replace(':', '.')}(model, [x, y])"]
    return ["loss = loss_of(model(x), y)"]


def _take(choices: Choices) -> str:
    return "x, y = take(train, rows)" if choices.in_memory else "x, y = take(train, rows, SEED, epoch)"


def _rates(lines: Lines, choices: Choices) -> None:
    if ":" in choices.schedule or choices.schedule in ("none", "plateau"):
        return
    lines.add(3, "for group, base in zip(optimizer.param_groups, base_lrs):")
    lines.add(4, 'group["lr"] = base * factor(updates, total_steps)')


def _batch(lines: Lines, choices: Choices) -> None:
    _rates(lines, choices)
    lines.add(3, _take(choices))
    _add_forward(lines, 3, choices)
    lines.add(3, "optimizer.zero_grad()", f"{_scaled('loss', choices)}.backward()")
    if choices.mode == "fp16":
        lines.add(3, "scaler.unscale_(optimizer)")
    lines.add(3, "gradients = [p.grad for p in parameters if p.grad is not None]", "probe = loss.detach() * 0")


def _window(lines: Lines, choices: Choices) -> None:
    _rates(lines, choices)
    count = "len(y)" if choices.is_user_step else count_text(choices)
    lines.add(3, "optimizer.zero_grad()", "counts, probe = [], 0")
    lines.add(3, "for rows in order[first : first + ACCUMULATION]:")
    lines.add(4, _take(choices))
    _add_forward(lines, 4, choices)
    lines.add(4, f"counts.append({count})  # each loss weighs as much as the targets that it is a mean over")
    lines.add(
        4, f"{_scaled('(loss * (counts[-1] / counts[0]))', choices)}.backward()", "probe = probe + loss.detach() * 0"
    )
    if choices.mode == "fp16":
        lines.add(3, "scaler.unscale_(optimizer)")
    lines.add(3, "gradients = [p.grad for p in parameters if p.grad is not None]")
    lines.add(3, "torch._foreach_mul_(gradients, counts[0] / sum(counts))")


def _add_forward(lines: Lines, depth: int, choices: Choices) -> None:
    if choices.mode != "fp32":
        lines.add(depth, autocast_text(choices))
        depth += 1
    lines.add(depth, *_forward(choices))


def _scaled(loss: str, choices: Choices) -> str:
    return f"scaler.scale({loss})" if choices.mode == "fp16" else loss


def _update(lines: Lines, choices: Choices) -> None:
    train = choices.train
    lines.add(3, "norm = torch.nn.utils.get_total_norm(gradients)")
    lines.add(3, "good = bool(torch.isfinite(norm + probe))  # NaN or inf: the step is left out")
    if train.non_finite != "skip":
        lines.add(3, "if not good:", '    raise ArithmeticError(f"NaN or inf in loss or gradient after step {step}")')
    lines.add(3, "if good:")
    if train.max_grad_norm is not None:
        lines.add(4, *_clip(train))
    lines.add(4, "optimizer.step()")
    if ":" in choices.schedule:
        lines.add(4, "scheduler.step()")
    elif choices.schedule not in ("none", "plateau"):
        lines.add(4, "updates += 1")
    if choices.mode == "fp16":
        lines.add(3, "scaler.update()")


def _clip(train: TrainConfig) -> list[str]:
    if train.clip == "value":
        return ["torch.nn.utils.clip_grad_value_(parameters, MAX_GRAD_NORM)"]
    if train.clip == "adaptive":
        return ["clip_adaptive_([p for p in parameters if p.grad is not None], MAX_GRAD_NORM)"]
    return [
        "if norm > MAX_GRAD_NORM:",
        "    torch.nn.utils.clip_grads_with_norm_(parameters, MAX_GRAD_NORM, norm)",
    ]


def _due(every: Any, ended: str) -> str:
    if every == "epoch":
        return f"{ended} or step == total_steps"
    return f"step % {every} == 0 or step == total_steps" if every else "step == total_steps"


def _after(lines: Lines, choices: Choices, ended: str) -> None:
    train = choices.train
    lines.add(3, f"if {_due(train.log_every, ended)}:")
    lines.add(4, 'print(f"step {step}  loss {loss.item():.4f}  norm {norm.item():.4f}")')
    if not choices.has_eval:
        return
    lines.add(3, f"if {_due(train.eval_every, ended)}:")
    if train.ema_decay is not None:
        lines.add(4, "raw = swap(model, average)")
    lines.add(4, "eval_loss, accuracy = evaluate(model, validation)")
    if train.ema_decay is not None:
        lines.add(4, "swap(model, raw)")
    lines.add(4, 'print(f"step {step}  eval loss {eval_loss:.4f}  accuracy {accuracy:.4f}")')
    value = "accuracy" if metric_of(train.monitor or "eval/loss") == "accuracy" else "eval_loss"
    better = "<" if train.monitor_mode == "min" else ">"
    lines.add(4, "since_best += 1", f"if {value} {better} best:")
    kept = "{**model.state_dict(), **average}" if train.ema_decay is not None else "model.state_dict()"
    lines.add(5, f"best, since_best = {value}, 0", f"best_weights = {{name: t.clone() for name, t in {kept}.items()}}")
    if choices.schedule == "plateau":
        lines.add(4, f"scheduler.step({value})")
    if train.patience:
        lines.add(4, "if since_best >= PATIENCE:")
        lines.add(5, *_end(choices), "return")
