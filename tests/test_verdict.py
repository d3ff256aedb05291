"""An update that is queued before the norm is read gives what one gives that waits for it, and waits last."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import lucid
from faults import Faulty, Look, loader, make, records, same
from lucid import state, verdict
from lucid.amp import GradScaler, Precision
from lucid.errors import NonFiniteError
from lucid.optim import veto
from lucid.step import OVERFLOW, UNSURE
from lucid.verdict import QueuedVerdict, Signal, Verdict, make_verdict

CPU = torch.device("cpu")


class Watched(Signal):
    """A signal that writes down what happens to it."""

    def __init__(self, events: list[str]) -> None:
        super().__init__(CPU)
        self.events = events

    def send(self, flag: Tensor) -> None:
        """Queue the flag."""
        self.events.append("send")
        super().send(flag)

    def arrived(self) -> bool:
        """Wait for the flag."""
        self.events.append("wait")
        return super().arrived()


class Form(lucid.Callback):
    """Has the run settle its steps in one form; the queued one notes what happens."""

    def __init__(self, queued: bool, events: list[str] | None = None) -> None:
        self.queued, self.events = queued, [] if events is None else events

    def on_train_start(self, state: Any) -> None:
        """Set the form."""
        state.verdict = QueuedVerdict(Watched(self.events)) if self.queued else Verdict()


def groups(parameters: Any) -> Any:
    """Return two groups with rates of their own."""
    first, *rest = parameters
    return [{"params": [first], "lr": 0.02}, {"params": rest}]


def two(parameters: Any) -> list[Optimizer]:
    """Return two optimizers of two kinds."""
    first, *rest = parameters
    return [torch.optim.SGD([first], lr=0.01, momentum=0.9, fused=True), lucid.optim.Adam(rest, lr=0.01)]


MAKERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, fused=True),
    "our AdamW": lambda p: lucid.optim.AdamW(p, lr=0.01),
    "our SGD": lambda p: lucid.optim.SGD(p, lr=0.01, momentum=0.9),
    "our Adagrad": lambda p: lucid.optim.Adagrad(p, lr=0.01),
    "groups": lambda p: lucid.optim.AdamW(groups(p), lr=0.01),
    "two": two,
}


def outcome(folder: Path, queued: bool, rows: Any, fault: str, precision: Any = None, **options: Any) -> Any:
    """Train in one form; return (what happened to the signal, everything that a user can see of the run)."""
    form, look = Form(queued), Look()
    trainer = make(
        rows, fault, callbacks=[form, look], run_dir=folder, **{"save_every": 0, **options},
        scheduler=lambda optimizer, total: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=total),
    )  # fmt: skip
    if precision is not None:
        trainer.precision = precision
    error = None
    try:
        trainer.fit(loader())
    except NonFiniteError as raised:
        error = str(raised)
    written = records(folder, "log", "skip", "resume", "save", "end", "stop")
    for record in written:
        record.pop("time")
        record["values"].pop("train/rows_per_second", None)
        record["info"].pop("run_dir", None)
    bundles = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("replay/*/bundle.json")}
    for bundle in bundles.values():
        bundle["compared"] = None  # has the folder's name
    return form.events, (error, look.trace, trainer.precision.state_dict(), written, bundles)


def compare(folder: Path, *arguments: Any, settles: int = 8, precision: Any = None, **options: Any) -> Any:
    """Assert that both forms give the same; return it."""
    made = precision or (lambda: None)
    _, plain = outcome(folder / "a" / "run", False, *arguments, precision=made(), **options)
    events, queued = outcome(folder / "b" / "run", True, *arguments, precision=made(), **options)
    assert events == ["send", "wait"] * settles
    for one, other in zip(plain[1], queued[1], strict=True):
        assert same(one[0], other[0])
        assert one[1:] == other[1:]
    assert (plain[0], plain[2:]) == (queued[0], queued[2:])
    return queued


@pytest.mark.parametrize("name", MAKERS)
def test_bad_steps_are_the_same_in_both_forms(tmp_path: Path, name: str) -> None:
    """Weights, buffers, moments, counts, rates, records and bundles; the first two steps are bad, and one later."""
    seen = compare(tmp_path, (1, 5, 17), "nan gradient", optimizer=MAKERS[name])
    assert len(seen[4]) == 3


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("fault", ["nan loss", "nan gradient"])
@pytest.mark.parametrize("limit", [None, 1e-2, 1e6])
def test_clipping_and_windows_are_the_same(tmp_path: Path, limit: float, fault: str, accumulate: int) -> None:
    """Always clipped, never clipped, and without a limit; the parameter that is named is the same."""
    seen = compare(
        tmp_path, (17,), fault, optimizer=MAKERS["our AdamW"], max_grad_norm=limit, settles=-(-8 // accumulate),
        gradient_accumulation_steps=accumulate,
    )  # fmt: skip
    (skip,) = (record for record in seen[3] if record["kind"] == "skip")
    assert skip["info"]["parameter"] == "first.weight"


@pytest.mark.parametrize("policy", ["skip", "raise", "rollback"])
def test_policies_are_the_same(tmp_path: Path, policy: str) -> None:
    """The run goes on, ends with the same error, or goes back."""
    seen = compare(
        tmp_path, (17, 25), "nan loss", optimizer=MAKERS["momentum"], non_finite=policy, save_every=2,
        settles=5 if policy == "raise" else 8,
    )  # fmt: skip
    assert (seen[0] is not None) == (policy == "raise")


def test_spikes_are_the_same(tmp_path: Path) -> None:
    """A spike is forbidden on the device like NaN."""
    seen = compare(
        tmp_path, (30,), "spike", optimizer=MAKERS["our AdamW"], spike_factor=20.0, spike_window=4, epochs=2, settles=16
    )
    assert [r["info"]["reason"][:11] for r in seen[3] if r["kind"] == "skip"] == ["spike: loss"] * 2


@pytest.mark.parametrize(
    ("fault", "reason"), [("nan loss", "NaN or inf in loss or gradient"), ("nan gradient", UNSURE)]
)  # fmt: skip
def test_fp16_is_the_same(tmp_path: Path, fault: str, reason: str) -> None:
    """A scale that is too high is searched, and a true fault found, with the same scale after each step."""

    def scaled() -> Precision:
        return Precision("fp16", scaler=GradScaler("cpu", init_scale=2.0**22, growth_interval=3))

    seen = compare(
        tmp_path, (25,), fault, precision=scaled, optimizer=MAKERS["our AdamW"], max_skips=20, epochs=2, settles=16
    )
    reasons = [record["info"]["reason"] for record in seen[3] if record["kind"] == "skip"]
    assert set(reasons) == {OVERFLOW, reason}
    assert 0 < len(reasons) < 16


class Dot(nn.Module):
    """The gradient of the mean output is the mean input."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def gradient_after(queued: bool, gradient: list[float], **options: Any) -> list[float]:
    """Return what the optimizer and the callbacks saw of a gradient."""
    model, seen = Dot(), []

    class Keep(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            seen.extend(model.w.grad.tolist())  # type: ignore[union-attr]

    config = lucid.TrainConfig(epochs=1, device="cpu", **options)
    lucid.Trainer(
        model, lucid.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, target: output.mean(), config=config,
        callbacks=[Form(queued), Keep()], reports=(),
    ).fit([(torch.tensor([gradient]), torch.zeros(1))])  # fmt: skip
    return seen


@pytest.mark.parametrize("gradient", [[3.0, 4.0], [6.0, 8.0], [math.inf, 4.0], [2e38, 3e38]], ids=str)
def test_the_limit_itself_is_not_clipped(gradient: list[float]) -> None:
    """Norm 5 at limit 5 keeps its bits, 10 is clipped, inf and a norm that overflows leave every element as it is."""
    plain, queued = (gradient_after(queued, gradient, max_grad_norm=5.0) for queued in (False, True))
    assert plain == queued
    assert (queued == torch.tensor(gradient).tolist()) == (gradient != [6.0, 8.0])


@pytest.mark.parametrize("clip", ["value", "adaptive"])
def test_other_ways_to_clip_read_first(clip: str) -> None:
    """They would spoil the gradients of a bad step before these are looked at."""
    assert gradient_after(True, [3.0, 4.0], clip=clip, max_grad_norm=1.0) != [3.0, 4.0]
    assert gradient_after(True, [math.inf, 4.0], clip=clip, max_grad_norm=1.0) == [math.inf, 4.0]
    note = notes(lucid.optim.SGD(nn.Linear(2, 1).parameters()), clip=clip)
    assert note == f"the device waits while the gradient norm is read, before each update: clip is '{clip}', not 'norm'"


def test_optimizers_are_queued_before_the_host_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step: the flag is sent, both kernels are queued, and only then somebody waits, once."""
    events: list[str] = []
    assert [veto.why_not(one) for one in two(nn.Linear(2, 1).parameters())] == [None, None]  # tries them
    for name in ("_fused_sgd_", "_fused_adam_"):
        kernel = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, kernel=kernel, **o: (events.append("update"), kernel(*a, **o)))
    truth = Tensor.__bool__
    monkeypatch.setattr(Tensor, "__bool__", lambda self: (events.append("read"), truth(self))[1])
    make((), optimizer=two, callbacks=[Form(True, events)], epochs=2, log_every=0, save_every=0).fit(loader())
    once = ["send", "update", "update", "wait", "read"]
    assert events[: 16 * 5] == once * 16


def notes(optimizer: Optimizer, queued: bool = True, **options: Any) -> str:
    """Return what the plan of a run with this optimizer says about when the norm is read."""
    model = nn.Module()
    model.weights = nn.ParameterList(p for group in optimizer.param_groups for p in group["params"])
    config = lucid.TrainConfig(device="cpu", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "make_verdict", lambda device: make_verdict(device, "queued" if queued else "auto"))
        facts = lucid.Trainer(model, optimizer, config=config, reports=()).session([(torch.ones(1, 2),)]).facts
    return ", ".join(facts["notes"])


@pytest.mark.parametrize("kind", [lucid.optim.SGD, lucid.optim.Adam, lucid.optim.AdamW, lucid.optim.Adagrad])
@pytest.mark.parametrize("lost", ["", "the kernel", "the count"])
def test_a_kernel_that_does_not_obey_is_found(kind: Any, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once per device: where found_inf is ignored, weights would take NaN and nobody would know."""
    names = ("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_")
    for name in names if lost == "the kernel" else ():
        kernel = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, kernel=kernel, **o: kernel(*a, **{**o, "found_inf": None}))
    if lost == "the count":
        monkeypatch.setattr(torch, "_foreach_sub_", lambda *_: None)
    veto.obeys.cache_clear()
    try:
        assert veto.obeys(kind, "cpu") == (not lost or (lost == "the count" and kind is lucid.optim.SGD))
        if lost == "the kernel":
            name = kind.__name__
            assert veto.why_not(kind(weights())) == f"the fused kernel of {name} does not heed found_inf on 'cpu'"
    finally:
        veto.obeys.cache_clear()


def test_nothing_stays_on_the_optimizer() -> None:
    """The flag is gone after the step: a later step of one's own is not forbidden."""
    (weight,) = weights()
    optimizer = torch.optim.SGD([weight], lr=0.5, fused=True)
    weight.grad = torch.ones(2)
    veto.step_unless(optimizer, torch.ones(()))
    assert weight.tolist() == [1.0, 1.0]
    optimizer.step()
    assert weight.tolist() == [0.5, 0.5]


class Own(torch.optim.AdamW):
    """Does something of its own in a step."""

    def step(self, closure: Any = None) -> Any:
        """Step."""
        return super().step(closure)


class Renamed(lucid.optim.AdamW):
    """Steps as its base does."""


def weights() -> list[nn.Parameter]:
    """Return something to optimize."""
    return [nn.Parameter(torch.ones(2))]


def hooked() -> Optimizer:
    """Return an optimizer whose steps are watched."""
    optimizer = lucid.optim.AdamW(weights())
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def replaced() -> Optimizer:
    """Return an optimizer whose step is a user's function."""
    optimizer = lucid.optim.AdamW(weights())
    optimizer.step = lambda closure=None: None  # type: ignore[method-assign]
    return optimizer


def scheduled(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer with a schedule of torch."""
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


PLAIN = {"fused": False}
REASONS = {
    "torch's": (lambda: torch.optim.SGD(weights(), fused=True), None),
    "ours": (lambda: lucid.optim.Adagrad(weights()), None),
    "subclass": (lambda: Renamed(weights()), None),
    "scheduled": (lambda: scheduled(lucid.optim.Adam(weights())), None),
    "not fused": (lambda: torch.optim.AdamW(weights()), "AdamW is not fused"),
    "one group": (lambda: lucid.optim.SGD([{"params": weights()}, {"params": weights(), **PLAIN}]), "SGD is not fused"),
    "no kernel": (lambda: torch.optim.RMSprop(weights()), "the step of RMSprop is not torch's own"),
    "own step": (lambda: Own(weights(), fused=True), "the step of Own is not torch's own"),
    "replaced": (replaced, "the step of AdamW is not torch's own"),
    "hooks": (hooked, "hooks watch the steps of AdamW"),
}


@pytest.mark.parametrize("name", REASONS)
def test_why_a_step_cannot_be_forbidden(name: str) -> None:
    """Torch's own fused steps can, whoever made the object; others say why not, also in the plan."""
    made, reason = REASONS[name]
    assert veto.why_not(made()) == reason
    words = "the device waits while the gradient norm is read, before each update: "
    assert notes(made()) == (f"{words}{reason}" if reason else "the update is queued before the gradient norm is read")
    assert notes(made(), queued=False) == ""


@pytest.mark.parametrize("kind", [torch.optim.AdamW, lucid.optim.AdamW])
def test_other_optimizers_read_first(kind: Any) -> None:
    """With a step that cannot be forbidden nothing is sent, and a bad step never reaches the optimizer."""
    calls: list[int] = []

    def optimizer(parameters: Any) -> Optimizer:
        made: Optimizer = kind(parameters)
        made.register_step_pre_hook(lambda *_: calls.append(1))
        return made

    form = Form(True)
    make((17,), optimizer=optimizer, callbacks=[form]).fit(loader())
    assert (form.events, len(calls)) == ([], 7)


def test_sparse_gradients_read_first() -> None:
    """No fused kernel takes them; the optimizer finds out in its first step and is no longer fused."""
    model = nn.Sequential(nn.Embedding(8, 1, sparse=True), nn.Flatten(0))
    form = Form(True)
    config = lucid.TrainConfig(epochs=2, device="cpu")
    optimizer = lucid.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.tensor([row]), torch.ones(1)) for row in range(8)]
    lucid.Trainer(
        model, optimizer, loss=nn.functional.mse_loss, config=config, callbacks=[form], reports=()
    ).fit(data)  # fmt: skip
    assert form.events == []
    assert optimizer.param_groups[0]["fused"] is False


def test_hand_written_loop_has_it_too() -> None:
    """`Run` settles its steps in the same form."""
    torch.manual_seed(0)
    model, form = Faulty((17,)), Form(True)
    run = lucid.Run(
        model, lucid.optim.AdamW(model.parameters()), loader(), config=lucid.TrainConfig(epochs=1, device="cpu"),
        callbacks=[form], reports=(),
    )  # fmt: skip
    for x, y in run:
        run.step(nn.functional.mse_loss(model(x), y))
    assert form.events == ["send", "wait"] * 8


class FakeEvent:
    """An event of a device that does not exist."""

    calls: ClassVar[list[Any]] = []

    def __init__(self, device: torch.device) -> None:
        FakeEvent.calls.append(("event on", device))

    def record(self, stream: str) -> None:
        """Note the stream."""
        FakeEvent.calls.append(("record", stream))

    def synchronize(self) -> None:
        """Note the wait."""
        FakeEvent.calls.append("synchronize")


def test_signal_copies_to_locked_memory_and_waits_for_the_event_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without blocking, then the event on the device's current stream; the host waits for that event and reads."""
    zeros, copy, device = torch.zeros, Tensor.copy_, torch.device("cuda", 1)
    monkeypatch.setattr(FakeEvent, "calls", [])
    seen = FakeEvent.calls
    monkeypatch.setattr(
        verdict.torch, "zeros", lambda size, **o: (seen.append(("zeros", o)), zeros(size))[1]
    )  # fmt: skip
    monkeypatch.setattr(verdict.torch, "Event", FakeEvent)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda where: f"stream of {where}")
    monkeypatch.setattr(Tensor, "copy_", lambda self, *a, **o: (seen.append(("copy", o)), copy(self, *a, **o))[1])
    signal = Signal(device)
    for flag in (0.0, 1.0, 0.0):
        del seen[-4:]
        signal.send(torch.tensor(flag))
        assert signal.arrived() == bool(flag)
        assert seen[-3:] == [("copy", {"non_blocking": True}), ("record", "stream of cuda:1"), "synchronize"]


def test_form_belongs_to_the_device() -> None:
    """At once on a CPU and on a device without events or page-locked memory; by name, both forms are there."""
    assert type(make_verdict(CPU)) is Verdict
    assert type(make_verdict(torch.device("meta"))) is Verdict
    assert type(make_verdict(CPU, "queued")) is QueuedVerdict
    assert type(make_verdict(CPU, "at once")) is Verdict
