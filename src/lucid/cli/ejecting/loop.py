"""The loop part of an ejected file: only the branches that its configuration uses."""

from __future__ import annotations

from typing import Any

from lucid.cli.ejecting.choices import Choices, Lines, autocast_text, count_text, user_step
from lucid.cli.ejecting.judging import target_std
from lucid.cli.ejecting.lift import Code, literal
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
            "lucid eject: train.max_time ends a run by the clock, so that no two runs need to end at one step. Leave "
            "it out, or say train.max_steps."
        )
    if train.spike_factor is not None:
        raise ConfigError("lucid eject has no plain form of train.spike_factor. Leave it out: NaN and inf are found.")
    known = ["eval/loss", *(f"eval/{name}" for name in choices.built.task.metrics)]
    if train.monitor not in (None, *known):
        raise ConfigError(f"train.monitor must be one of {', '.join(known)}, got {train.monitor!r}.")
    if not choices.has_eval:
        for setting in ("scheduler.name = 'plateau'", "train.patience", "train.monitor"):
            is_set = choices.schedule == "plateau" if setting[0] == "s" else getattr(train, setting.partition(".")[2])
            if is_set:
                raise ConfigError(f"{setting} needs rows for validation, and an eval_step that gives their loss.")


def constants(choices: Choices) -> Code:
    """Return the settings at the top of the file."""
    config, train, loading = choices.built.config, choices.train, choices.loading
    lines = Lines()
    device = literal(str(choices.built.trainer.device))
    lines.add(0, f"SEED = {train.seed}", f"DEVICE = {device}", f"EPOCHS = {train.epochs}")
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
        lines.add(0, f"PATIENCE = {train.patience}  # evaluations without a better one")
    if (std := target_std(choices)) is not None:
        lines.add(0, f"TARGET_STD = {std}  # of the training rows: the error in the target's own unit")
    if loading.is_split:
        shares = [0.0 if part in loading.own else getattr(config.data, part) for part in ("validation", "test")]
        lines.add(0, f"VALIDATION, TEST = {shares[0]!r}, {shares[1]!r}  # shares of the rows")
        if loading.is_shuffled:
            lines.add(0, f"SPLIT_SEED = {config.data.split_seed}")
    return Code({"import hashlib", "import torch"}, lines.text())


def main(choices: Choices) -> Code:
    """Return the loop."""
    lines = Lines()
    _finish(lines, choices)
    _set_up(lines, choices)
    _epoch(lines, choices)
    imports: set[str] = set()
    lines.add(0, "", "", 'if __name__ == "__main__":', "    main()")
    if choices.is_user_step:
        imports.add(f"import {choices.built.config.task.partition(':')[0]}")
    return Code(imports, lines.text())


def _finish(lines: Lines, choices: Choices) -> None:
    kept = [*(["best"] if choices.has_eval else []), *(["average"] if _has_average(choices) else [])]
    given, words = ["model", *kept, *(["test"] if choices.has_test else [])], "Keep the weights"
    words += ", and judge the best on rows that had no say." if choices.has_test else "."
    lines.add(0, f"def finish({', '.join(given)}):", f'    """{words}"""')
    lines.add(1, 'torch.save(model.state_dict(), "last.pt")')
    lines.add(1, *(f'torch.save({name}, "{name}.pt")' for name in kept))
    if choices.has_test:
        lines.add(1, "if best is not None:", "    model.load_state_dict(best)")
        lines.add(1, 'print(*(f"test {name} {value:.4f}" for name, value in evaluate(model, test).items()), sep="  ")')
    lines.add(0, "", "")


def _end(choices: Choices) -> list[str]:
    given = ["model", *(["best_weights"] if choices.has_eval else []), *(["average"] if _has_average(choices) else [])]
    return [f"finish({', '.join([*given, *(['test'] if choices.has_test else [])])})", "return"]


def _has_average(choices: Choices) -> bool:
    return choices.train.ema_decay is not None


def _set_up(lines: Lines, choices: Choices) -> None:
    train = choices.train
    lines.add(0, "def main():")
    if train.deterministic:
        lines.add(1, "torch.use_deterministic_algorithms(True)")
    if train.threads is not None:
        lines.add(1, f"torch.set_num_threads({train.threads})")
    if train.matmul_precision is not None:
        lines.add(1, f"torch.set_float32_matmul_precision({literal(train.matmul_precision)})")
    if train.cudnn_benchmark:
        lines.add(1, "torch.backends.cudnn.benchmark = True")
    seed = "torch.manual_seed({})" if choices.is_all_ours else "seed_all({})"
    parts = f"train, {'validation' if choices.has_eval else '_'}, {'test' if choices.has_test else '_'}"
    lines.add(1, seed.format("SEED"), f"{parts} = load_data()")
    if choices.loading.draws == "all":
        lines.add(1, "seed_all(SEED)  # weights follow the seed, whatever the data drew")
    lines.add(1, "model = make_model().to(DEVICE)", "optimizer = make_optimizer(model)")
    if not choices.built.model.training:
        lines.add(1, "model.train()")
    lines.add(1, 'parameters = [p for group in optimizer.param_groups for p in group["params"]]')
    if train.channels_last:
        lines.add(1, "model.to(memory_format=torch.channels_last)")
    if train.compile:
        lines.add(1, "model.compile()  # the run compiles loss and backward with it: the last digits differ")
    if choices.mode == "fp16":
        lines.add(1, f"scaler = torch.amp.GradScaler({literal(choices.built.trainer.device.type)})")
    if _has_average(choices):
        lines.add(1, "average = {name: p.detach().clone() for name, p in model.named_parameters()}")
    length = "len(train[0])" if choices.loading.in_memory else "len(train)"
    batches = f"{length} // BATCH_SIZE" if choices.built.config.data.drop_last else f"-(-{length} // BATCH_SIZE)"
    lines.add(1, f"batches = {batches}")
    steps = "EPOCHS * batches"
    if train.gradient_accumulation_steps > 1:
        steps = "EPOCHS * -(-batches // ACCUMULATION)"
    lines.add(1, f"total_steps = {steps if train.max_steps is None else f'min({steps}, MAX_STEPS)'}")
    _set_up_schedule(lines, choices)
    if choices.has_eval:
        lines.add(1, f'best, best_weights = float("{"inf" if train.monitor_mode == "min" else "-inf"}"), None')
        if train.patience:
            lines.add(1, "since_best = 0")
    lines.add(1, seed.format('derive(SEED, "train")') + "  # dropout", "step = 0")


def _set_up_schedule(lines: Lines, choices: Choices) -> None:
    name, options = choices.schedule, choices.built.config.scheduler.options
    if name == "none":
        return
    arguments = "".join(f", {key}={literal(value)}" for key, value in options.items())
    if name == "plateau":
        mode = "" if "mode" in options else f", mode={literal(choices.train.monitor_mode)}"
        lines.add(1, f"scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer{mode}{arguments})")
    elif ":" in name:
        lines.add(1, f"scheduler = {name.replace(':', '.')}(optimizer, total_steps{arguments})")
    else:
        lines.add(1, 'base_lrs = [group["lr"] for group in optimizer.param_groups]', "updates = 0")


def _epoch(lines: Lines, choices: Choices) -> None:
    train = choices.train
    lines.add(1, "for epoch in range(EPOCHS):")
    length = "len(train[0])" if choices.loading.in_memory else "len(train)"
    lines.add(2, 'generator = torch.Generator().manual_seed(derive(SEED, "order", epoch, -1))')
    lines.add(2, f"order = torch.randperm({length}, generator=generator).split(BATCH_SIZE)[:batches]")
    if train.gradient_accumulation_steps > 1:
        lines.add(2, "for first in range(0, batches, ACCUMULATION):")
        _window(lines, choices)
        ended = "first + ACCUMULATION >= batches"
    else:
        counts = "epoch" in (train.log_every, train.eval_every if choices.has_eval else "")
        lines.add(2, "for batch, rows in enumerate(order):" if counts else "for rows in order:")
        _batch(lines, choices)
        ended = "batch + 1 == batches"
    _update(lines, choices)
    lines.add(3, "step += 1")
    if train.ema_decay is not None:
        lines.add(3, "if good:")
        lines.add(4, "ema(average, model)")
    _after(lines, choices, ended)
    lines.add(3, "if step == total_steps:")
    lines.add(4, *_end(choices))


def _forward(choices: Choices) -> list[str]:
    if choices.is_user_step:
        return user_step(choices.step_form, f"{choices.built.config.task.replace(':', '.')}(model, [x, y])")
    return ["loss = loss_of(model(x), y)"]


def _take(choices: Choices) -> str:
    return f"x, y = take(train, rows{', SEED, epoch' if choices.loading.draws else ''})"


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
    count = "count" if choices.step_form == "sum" else count
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
    if _has_average(choices):
        lines.add(4, "raw = swap(model, average)")
    lines.add(4, "values = evaluate(model, validation)")
    lines.add(4, 'print(f"step {step}", *(f"eval {name} {value:.4f}" for name, value in values.items()), sep="  ")')
    if train.patience:
        lines.add(4, "since_best += 1")
    value = f"values[{literal(choices.monitor)}]"
    lines.add(4, f"if {value} {'<' if train.monitor_mode == 'min' else '>'} best:")
    lines.add(5, f"best, best_weights = {value}, {{name: t.clone() for name, t in model.state_dict().items()}}")
    if train.patience:
        lines.add(5, "since_best = 0")
    if _has_average(choices):
        lines.add(4, "swap(model, raw)")
    if choices.schedule == "plateau":
        lines.add(4, f"scheduler.step({value})")
    if train.patience:
        lines.add(4, "if since_best == PATIENCE:", *(f"    {row}" for row in _end(choices)))
