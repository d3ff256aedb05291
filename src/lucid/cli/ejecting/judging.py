"""The function `evaluate` of an ejected file: the loss, and the metric that decides or is worth a look."""

from __future__ import annotations

from lucid.cli.ejecting.choices import Choices, Lines, autocast_text, count_text, user_step
from lucid.cli.ejecting.lift import Code, literal
from lucid.tasks import InOwnUnit

_RIGHT = {
    "classification": "output.argmax(1) == y",
    "multilabel": "(output > 0) == (y > 0.5)",
    "language-modelling": "output.argmax(-1) == y",
}


def evaluate(choices: Choices) -> Code:
    """Return `evaluate`, which gives values by name."""
    lines, metric = Lines(), choices.metric
    words = f"Mean loss and {metric} over all rows." if metric else "Mean loss over all rows."
    lines.add(0, "@torch.no_grad()", "def evaluate(model, data):", f'    """{words}"""')
    if not choices.is_all_ours:
        lines.add(1, "before = streams()", "seed_all(0)")
    if choices.has_mixed_modes:
        lines.add(1, "modes = [(module, module.training) for module in model.modules()]")
    lines.add(1, "model.eval()", "loss_sum = count_sum = 0")
    if metric == "r2":
        lines.add(1, "sums, shift = 0, None")
    elif metric:
        lines.add(1, f"{metric}_sum = {metric}_count = 0")
    length = "len(data[0])" if choices.loading.in_memory else "len(data)"
    lines.add(1, f"for rows in torch.arange({length}).split(EVAL_BATCH_SIZE):")
    streams = ', derive(0, "eval"), 0' if choices.loading.draws else ""
    lines.add(2, f"x, y = take(data, rows{streams})")
    depth = 2
    if choices.mode != "fp32":
        lines.add(2, autocast_text(choices))
        depth = 3
    lines.add(depth, *_forward(choices))
    if choices.eval_form != "sum":
        lines.add(2, f"count = {'len(y)' if choices.is_user_step else count_text(choices)}")
    lines.add(2, "loss_sum, count_sum = loss_sum + loss.double() * count, count_sum + count")
    if metric:
        lines.add(2, *_count_metric(choices, metric))
    if not choices.is_all_ours:
        lines.add(1, "put_back(before)")
    if choices.has_mixed_modes:
        lines.add(1, "for module, mode in modes:", "    module.training = mode")
    else:
        lines.add(1, "model.train()")
    lines.add(1, *_values(metric))
    return Code(set(), lines.text())


def _forward(choices: Choices) -> list[str]:
    task = choices.built.config.task
    if not choices.is_user_step:
        return ["output = model(x)", "loss = loss_of(output, y)"]
    name = f"{task.partition(':')[0]}.eval_step" if choices.built.task.eval_step else task.replace(":", ".")
    return user_step(choices.eval_form, f"{name}(model, [x, y])")


def _count_metric(choices: Choices, metric: str) -> list[str]:
    if metric == "accuracy":
        rows = ["right = " + _RIGHT[choices.built.task.name], "accuracy_sum = accuracy_sum + right.double().sum()"]
        return [*rows, "accuracy_count = accuracy_count + right.numel()"]
    if metric == "mae":
        unit = choices.built.task.metrics["mae"]
        error = "(output - y).abs()"
        if isinstance(unit, InOwnUnit):
            error = f"({error} * torch.tensor(TARGET_STD, device=DEVICE))"
        return [f"mae_sum = mae_sum + {error}.double().sum()", "mae_count = mae_count + y.numel()"]
    return [
        "wide, error = y.double(), (y - output).double()",
        "shift = wide.mean() if shift is None else shift  # sums of squares around 0 could lose their digits",
        "wide = wide - shift",
        "number = torch.tensor(float(y.numel()), dtype=torch.float64, device=DEVICE)",
        "sums = sums + torch.stack([number, wide.sum(), wide.square().sum(), error.square().sum()])",
    ]


def _values(metric: str | None) -> list[str]:
    if metric is None:
        return ['return {"loss": float(loss_sum / count_sum)}']
    if metric == "r2":
        return [
            "number, total, squares, residual = sums",
            "r2 = 1 - residual / (squares - total.square() / number)",
            'return {"loss": float(loss_sum / count_sum), "r2": float(r2)}',
        ]
    return [f'return {{"loss": float(loss_sum / count_sum), {literal(metric)}: float({metric}_sum / {metric}_count)}}']


def target_std(choices: Choices) -> list[float] | None:
    """Return what an error has to be multiplied by to be in the target's own unit, if that is needed."""
    unit = choices.built.task.metrics.get("mae")
    return unit.std.tolist() if choices.has_eval and choices.metric == "mae" and isinstance(unit, InOwnUnit) else None
