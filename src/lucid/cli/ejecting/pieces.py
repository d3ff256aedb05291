"""The functions that an ejected loop calls: only those of its configuration."""

from __future__ import annotations

from lucid.cli.ejecting.choices import Choices
from lucid.cli.ejecting.judging import evaluate
from lucid.cli.ejecting.lift import Code, code, lift, literal
from lucid.tasks import LOSSES

_LOSS_TEXT = {
    "cross_entropy": "F.cross_entropy(output, y)",
    "binary_cross_entropy": "F.binary_cross_entropy_with_logits(output, y)",
    "mse": "F.mse_loss(output, y)",
    "l1": "F.l1_loss(output, y)",
    "huber": "F.huber_loss(output, y)",
    "next_token": "F.cross_entropy(output.flatten(0, 1), y.flatten())",
}
_DERIVE = code(
    '''
    def derive(*parts):
        """A seed that depends on these parts alone, such as (seed, "order", epoch)."""
        return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1
    '''
)
_TAKE_TENSORS = code(
    '''
    def take(data, rows):
        """One batch on the device."""
        return [part[rows].to(DEVICE) for part in data]
    '''
)
_TAKE_ROWS = code(
    '''
    def take(data, rows):
        """One batch on the device."""
        items = [data[row] for row in rows.tolist()]
        return [part.to(DEVICE) for part in torch.utils.data.default_collate(items)]
    '''
)
_MIX = code(
    '''
    def mix(base, key):
        """The seed of a row, by the finalizer of splitmix64."""
        mixed = (base + (key + 1) * 0x9E3779B97F4A7C15) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return mixed ^ (mixed >> 31)
    '''
)
_TAKE_DRAWING_ROWS = '''
def take(data, rows, seed, epoch):
    """One batch on the device; what a row draws at random depends on (seed, epoch, row) alone."""
    before, base, items = {streams}, derive(seed, "row", epoch), []
    for row in rows.tolist():
        {seed_row}
        items.append(data[row])
    {put_back}
    return [part.to(DEVICE) for part in torch.utils.data.default_collate(items)]
'''
_STREAMS = code(
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
_PUT_BACK = code(
    '''
    def streams():
        """Where the random streams stand."""
        return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


    def put_back(before):
        """Let the random streams go on from where they stood."""
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        numpy.random.set_state(before[2])
    '''
)
_SEED_ROW = code(
    '''
    def seed_row(number):
        """Seed what a row may draw from; no accelerator is touched."""
        torch.default_generator.manual_seed(number)
        numpy.random.seed(number & (2**32 - 1))
        random.seed(number)
    '''
)


def tools(choices: Choices) -> Code:
    """Return the functions that the loop calls."""
    found = _DERIVE
    if not choices.is_all_ours:
        found = found + _STREAMS
        if choices.loading.draws == "all" or choices.has_eval:
            found = found + _PUT_BACK
    found = found + _take(choices)
    if not choices.is_user_step:
        found = found + _loss(choices)
    if choices.schedule not in ("none", "plateau"):
        found = found + _schedule(choices)
    if choices.train.max_grad_norm is not None and choices.train.clip == "adaptive":
        found = found + lift("lucid.optim.clipping", "clip_adaptive_")
    if choices.has_eval:
        found = found + evaluate(choices)
    return found + _average(choices)


def _take(choices: Choices) -> Code:
    draws = choices.loading.draws
    if choices.loading.in_memory:
        return _TAKE_TENSORS
    if not draws:
        return _TAKE_ROWS
    words = {
        "torch": {
            "streams": "torch.get_rng_state()",
            "seed_row": "torch.default_generator.manual_seed(mix(base, row))",
            "put_back": "torch.set_rng_state(before)",
        },
        "all": {"streams": "streams()", "seed_row": "seed_row(mix(base, row))", "put_back": "put_back(before)"},
    }[draws]
    return _MIX + (_SEED_ROW if draws == "all" else Code()) + code(_TAKE_DRAWING_ROWS.format(**words))


def _loss(choices: Choices) -> Code:
    name = choices.built.config.loss
    if ":" in name:
        return _loss_text(f"{name.replace(':', '.')}(output, y)", {f"import {name.partition(':')[0]}"})
    known = next(key for key, function in LOSSES.items() if function is choices.built.task.loss)
    return _loss_text(_LOSS_TEXT[known], {"import torch.nn.functional as F"})


def _loss_text(text: str, imports: set[str]) -> Code:
    return Code(imports, f'def loss_of(output, y):\n    """Mean loss of a batch."""\n    return {text}\n')


def _schedule(choices: Choices) -> Code:
    config = choices.built.config
    if ":" in config.scheduler.name:
        return Code({f"import {config.scheduler.name.partition(':')[0]}"})
    name, options = config.scheduler.name, dict(config.scheduler.options)
    arguments = "".join(f", {key}={literal(value)}" for key, value in options.items())
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


def _average(choices: Choices) -> Code:
    if choices.train.ema_decay is None:
        return Code()
    move = code(
        '''
        @torch.no_grad()
        def ema(average, model):
            """Move the average towards the weights."""
            torch._foreach_lerp_(list(average.values()), [p.detach() for p in model.parameters()], 1 - EMA_DECAY)
        '''
    )
    swap = code(
        '''
        @torch.no_grad()
        def swap(model, values):
            """Put values in the place of the weights; return what was there."""
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            for name, p in model.named_parameters():
                p.copy_(values[name])
            return before
        '''
    )
    return move + (swap if choices.has_eval else Code())
