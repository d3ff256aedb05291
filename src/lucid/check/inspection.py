"""What one process can see of model and data: the plan, rows, gradients of windows, and the first outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lucid import rng
from lucid.check import outputs, planning, windows
from lucid.check.report import Section
from lucid.check.rows import rows_section
from lucid.check.script import Script
from lucid.check.target import make
from lucid.serialization import unwrap
from lucid.utils.data import Feed


@dataclass(slots=True)
class Inspection:
    """What was seen; plain values only, to be sent to another process."""

    plan: Section
    rows: Section
    accumulation: Section
    outputs: Section
    total_steps: int | None
    has_eval: bool
    run_dir: str | None
    eval_batches: int | None
    kept_checkpoints: int
    trainable: list[str] = field(default_factory=list)


def inspect(factory: Callable[[], Any], run_dir: str | None) -> Inspection:
    """Look at a fresh target, then at its first batches, without training."""
    rng.seed_all(1)
    target = make(factory)
    trainer = target.trainer
    config, own_dir = trainer.config, trainer.run_dir
    trainer.run_dir = None  # a session would make the folder
    plan = trainer.plan(target.train_loader, target.eval_loader)
    feed = trainer.session(target.train_loader, target.eval_loader).feed
    eval_batches = None
    if target.eval_loader is not None:
        eval_batches = Feed(target.eval_loader, seed=0, device=trainer.device, role="eval").num_batches(0)
    batches = windows.first_batches(feed)
    found = Inspection(
        plan=Section("plan", ""),
        rows=rows_section(target, feed),
        accumulation=windows.accumulation(trainer, batches),
        outputs=outputs.look(trainer, batches),
        total_steps=plan.total_steps,
        has_eval=target.eval_loader is not None,
        run_dir=run_dir or (None if own_dir is None else str(own_dir)),
        eval_batches=eval_batches,
        kept_checkpoints=config.keep_last + config.keep_best,
        trainable=[name for name, p in unwrap(trainer.model).named_parameters() if p.requires_grad],
    )
    found.plan = planning.plan_section(target, plan, feed)  # last: it moves the schedules
    feed.close()
    return found


def faults(seen: Inspection, whole: Script) -> Section:
    """Return the section on the loop itself: gradients, changes, modes, first loss, outputs."""
    section = seen.outputs
    last = max(whole.steps, default=0)
    silent = [name for name in seen.trainable if name not in whole.with_gradient]
    if silent:
        section.fault(
            f"gradient of {silent[0]}",
            f"{len(silent)} trainable parameters had no gradient but 0 in {last} steps: {', '.join(silent[:5])}.",
            "Use them in the forward pass without detach(), or freeze them with requires_grad_(False).",
        )
    elif any(rate > 0 for rate in whole.rates):
        _unchanged(section, seen, whole, last)
    _modes(section, whole, last)
    return section


def _unchanged(section: Section, seen: Inspection, whole: Script, last: int) -> None:
    at_end = whole.ends.get(last, {})
    still = [n for n in seen.trainable if whole.initial.get(f"model.{n}") == at_end.get(f"model.{n}")]
    if still:
        section.fault(
            f"model.{still[0]}",
            f"has gradients but never changed in {last} steps ({len(still)} such parameters).",
            "Look at the learning rate of its group, and whether something puts the old values back.",
        )


def _modes(section: Section, whole: Script, last: int) -> None:
    first = whole.steps.get(1, {})
    for step in range(2, last + 1):
        now = whole.steps.get(step, {})
        changed = [n for n in now if n.startswith("mode of") and n in first and now[n] != first[n]]
        if changed:
            was, is_now = ("train", "eval") if first[changed[0]] == "True" else ("eval", "train")
            section.fault(
                changed[0],
                f"was {was} in step 1 and is {is_now} from step {step} on ({len(changed)} modules).",
                "Put modes back after a callback or a train_step has changed them: model.train() after model.eval().",
            )
            return
