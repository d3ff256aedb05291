"""The functions that an ejected loop calls: only those of its configuration."""

from __future__ import annotations

from lucid.cli.ejecting.choices import Choices, Lines, autocast_text, count_text
from lucid.cli.ejecting.lift import Code, code, lift
from lucid.tasks import LOSSES

_LOSS_TEXT = {
    "cross_entropy": "F.cross_entropy(output, y)",
    "binary_cross_entropy": "F.binary_cross_entropy_with_logits(output, y)",
    "mse": "F.mse_loss(output, y)",
    "l1": "F.l1_loss(output, y)",
    "huber": "F.huber_loss(output, y)",
    "next_token": "F.cross_entropy(output.flatten(0, 1), y.flatten())",
}


def tools(choices: Choices) -> Code:
    """Return the functions that the loop calls."""
    derive = code(
        '''
        def derive(*parts):
            """A seed that depends on these parts alone, such as (seed, "order", epoch)."""
            return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1
        '''
    )
    found = derive + (_take_tensors() if choices.in_memory else _take_rows())
    if not choices.is_user_step:
        found = found + _loss(choices)
    if choices.schedule not in ("none", "plateau"):
        found = found + _schedule(choices)
    if choices.train.max_grad_norm is not None and choices.train.clip == "adaptive":
        found = found + lift("lucid.optim.clipping", "clip_adaptive_")
    if choices.has_eval:
        found = found + _evaluate(choices)
    return found


def _take_tensors() -> Code:
    return code(
        '''
        def take(data, rows):
            """One batch on the device."""
            return [part[rows].to(DEVICE) for part in data]
        '''
    )


def _take_rows() -> Code:
    return code(
        '''
        def mix(base, key):
            """The seed of a row, by the finalizer of splitmix64."""
            mixed = (base + (key + 1) * 0x9E3779B97F4A7C15) & (2**64 - 1)
            mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
            return mixed ^ (mixed >> 31)


        def take(data, rows, seed, epoch):
            """One batch on the device; what a row draws at random depends on (seed, epoch, row) alone."""
            before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
            items = []
            for row in rows.tolist():
                number = mix(derive(seed, "row", epoch), row)
                torch.default_generator.manual_seed(number)
                numpy.random.seed(number & (2**32 - 1))
                random.seed(number)
                items.append(data[row])
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            numpy.random.set_state(before[2])
            return [part.to(DEVICE) for part in torch.utils.data.default_collate(items)]
        ''',
        "import random",
        "import numpy",
    )


def _loss(choices: Choices) -> Code:
    name = choices.built.config.loss
    if ":" in name:
        text = f"{name.replace(':', '.')}(output, y)"
        return _loss_text(text, {f"import {name.partition(':')[0]}"})
    known = next(key for key, function in LOSSES.items() if function is choices.built.task.loss)
    return _loss_text(_LOSS_TEXT[known], set())


def _loss_text(text: str, imports: set[str]) -> Code:
    return Code(imports, f'def loss_of(output, y):\n    """Mean loss of a batch."""\n    return {text}\n')


def _schedule(choices: Choices) -> Code:
    config = choices.built.config
    if ":" in config.scheduler.name:
        return Code({f"import {config.scheduler.name.partition(':')[0]}"})
    name, options = config.scheduler.name, dict(config.scheduler.options)
    arguments = "".join(f", {key}={value!r}" for key, value in options.items())
    if name.startswith("warmup") and "warmup_steps" not in options:
        arguments += ", warmup_steps=total_steps // 20"
    curve = lift("lucid.optim._curves", name, drop=("_check",))
    return curve + code(
        f'''
        def factor(step, total_steps):
            """What the base learning rate is multiplied by."""
            return {name}(step, total_steps=total_steps{arguments})
        '''
    )


def _evaluate(choices: Choices) -> Code:
    lines = Lines()
    lines.add(0, "@torch.no_grad()", "def evaluate(model, data):", '    """Mean loss and accuracy over all rows."""')
    accuracy = _accuracy(choices)
    lines.add(1, "model.eval()", "loss = right = count = seen = 0")
    length = "len(data[0])" if choices.in_memory else "len(data)"
    lines.add(1, f"for rows in torch.arange({length}).split(EVAL_BATCH_SIZE):")
    lines.add(2, "x, y = take(data, rows)" if choices.in_memory else "x, y = take(data, rows, 0, 0)")
    forward = ["output = model(x)", "value = loss_of(output, y)"]
    if choices.mode != "fp32":
        lines.add(2, autocast_text(choices))
        lines.add(3, *forward)
    else:
        lines.add(2, *forward)
    lines.add(2, f"number = {count_text(choices)}", "loss, count = loss + value.double() * number, count + number")
    if accuracy:
        lines.add(2, f"right, seen = right + {accuracy}.sum().double(), seen + {accuracy}.numel()")
    lines.add(1, "model.train()")
    second = "float(right / seen)" if accuracy else 'float("nan")'
    lines.add(1, f"return float(loss / count), {second}")
    return Code(set(), lines.text())


def _accuracy(choices: Choices) -> str | None:
    kind = choices.built.task.name
    if kind == "classification":
        return "(output.argmax(1) == y)"
    if kind == "multilabel":
        return "((output > 0) == (y > 0.5))"
    return "(output.argmax(-1) == y)" if kind == "language-modelling" else None


def seeds_and_averages(choices: Choices) -> Code:
    """Return `seed_all`, and what an average of the weights needs."""
    found = code(
        '''
        def seed_all(seed):
            """Seed every random stream."""
            torch.manual_seed(seed)
            random.seed(seed)
            numpy.random.seed(seed & (2**32 - 1))
        ''',
        "import random",
        "import numpy",
    )
    if choices.train.ema_decay is None:
        return found
    return found + code(
        '''
        @torch.no_grad()
        def ema(average, model):
            """Move the average towards the weights."""
            torch._foreach_lerp_(list(average.values()), [p.detach() for p in model.parameters()], 1 - EMA_DECAY)


        @torch.no_grad()
        def swap(model, values):
            """Put values in the place of the weights; return what was there."""
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            for name, p in model.named_parameters():
                p.copy_(values[name])
            return before
        '''
    )
