"""`compile = true`: the same training as without, one graph per shape, and everything around the step as ever."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.compiled import check_compiler, compile_model
from lucid.errors import ConfigError
from lucid.finders import lr_find
from lucid.records import Record
from lucid.serialization import load

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method:DeprecationWarning")  # torch's own, at load


COMPILE = torch.compile


@pytest.fixture(params=["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)], autouse=True)
def _backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are traced and guarded as ever; in the quick suite torch runs their operations one by one."""
    monkeypatch.setattr(torch, "compile", functools.partial(COMPILE, backend=request.param))


class Net(nn.Module):
    """Running averages, two biases whose gradient is one and the same, a parameter that is never used."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(8, 3)
        self.one, self.two, self.unused = (nn.Parameter(torch.zeros(3)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) + self.one + self.two


Dropping = functools.partial(Net, dropout=0.5)


class Seen:
    """A report that keeps the records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.write = self.records.append

    def rewind(self, step: int) -> None:
        """Nothing to do."""

    tick = rewind

    def close(self) -> None:
        """Nothing to do."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return what the records of a kind say."""
        return [record.info for record in self.records if record.kind == kind]


ROWS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
CLASSES = ROWS[:, :3].argmax(1)


def loader(rows: Tensor = ROWS, classes: Tensor = CLASSES, size: int = 8) -> DataLoader[Any]:
    """Return rows in shuffled batches."""
    return DataLoader(TensorDataset(rows, classes), batch_size=size, shuffle=True)


def make(model_of: Any = Net, run_dir: Path | None = None, **settings: Any) -> tuple[lucid.Trainer, Seen]:
    """Return a trainer and what it reports."""
    torch.manual_seed(1)
    given = {name: settings.pop(name) for name in ("loss", "train_step", "callbacks") if name in settings}
    options: dict[str, Any] = {"loss": F.cross_entropy, **given}
    if "train_step" in options:
        options["loss"] = None
    model, seen = model_of(), Seen()
    trainer = lucid.Trainer(
        model,
        lucid.optim.AdamW(model.parameters(), lr=1e-2),
        scheduler=lambda optimizer, total: lucid.optim.warmup_cosine(optimizer, 2, total),
        config=lucid.TrainConfig(**{"epochs": 2, "compile": True, "max_grad_norm": 0.5, "device": "cpu", **settings}),
        run_dir=run_dir,
        reports=[seen],
        **options,
    )
    return trainer, seen


def state_of(trainer: lucid.Trainer) -> list[Tensor]:
    """Return weights, buffers and moments."""
    moments = [value for state in trainer.optimizers[0].state.values() for value in state.values()]
    return [*(value.clone() for value in trainer.model.state_dict().values()), *(value.clone() for value in moments)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 2, "ema_decay": 0.9},
        pytest.param({"precision": "bf16"}, marks=pytest.mark.slow),
        pytest.param({"clip": "value"}, marks=pytest.mark.slow),
    ],
    ids=["plain", "accumulation and average", "bf16", "clip by value"],
)
def test_trains_as_without(settings: dict[str, Any]) -> None:
    """Weights, buffers and moments are those of the uncompiled run within rounding; unused parameters stay."""
    classes = CLASSES.clone()
    classes[::3] = -100  # the micro-batches of a window are means over different counts
    both = []
    for compiled in (False, True):
        trainer, seen = make(compile=compiled, **settings)
        trainer.fit(loader(classes=classes), loader())
        assert len(seen.of("compile")) == compiled
        both.append(state_of(trainer))
    wide = 2e-2 if "precision" in settings else 1e-5
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=wide, atol=wide)


def test_one_graph_though_the_rate_moves() -> None:
    """Ten steps with another rate each make one graph; plan and end say what was compiled."""
    rates: list[float] = []

    class Rate(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            rates.append(state.lr())

    trainer, seen = make(callbacks=[Rate()])
    trainer.fit(loader())
    assert len(set(rates)) == len(rates) == 10
    (told,) = seen.of("compile")
    assert told["graphs"] == 1
    assert told["seconds"] > 0
    assert "again" not in told
    assert seen.of("plan")[0]["compiled"] == "forward, loss and backward as one graph"
    assert seen.of("end")[0]["compiled"].startswith("1 graph in ")


def test_the_compiler_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """One real compilation in the quick suite: Inductor's code trains as the operations that it stands for."""
    both = []
    for backend in ("eager", "inductor"):
        monkeypatch.setattr(torch, "compile", functools.partial(COMPILE, backend=backend))
        trainer, seen = make(epochs=1)
        trainer.fit(loader())
        assert [one["graphs"] for one in seen.of("compile")] == [1]
        both.append(state_of(trainer))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


def test_a_shape_more_is_a_graph_more() -> None:
    """A short last batch is compiled once, and the record says why."""
    trainer, seen = make()
    trainer.fit(loader(ROWS[:20], CLASSES[:20]))
    first, second = seen.of("compile")
    assert (first["graphs"], second["graphs"]) == (1, 1)
    assert "size mismatch at index 0. expected 8, actual 4" in second["again"]
    assert seen.of("end")[0]["compiled"].endswith("s, 1 of them again")


def test_a_bad_step_changes_nothing(tmp_path: Path) -> None:
    """NaN in a row: weights, running averages, moments and rate stay; the row's batch is named, a bundle left."""
    rows = ROWS.clone()
    rows[13] = torch.nan
    kept: list[list[Tensor]] = []

    class Keep(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            kept.append([*state_of(trainer), torch.tensor(state.lr())])

    trainer, seen = make(run_dir=tmp_path, epochs=1, callbacks=[Keep()])
    trainer.fit(DataLoader(TensorDataset(rows, CLASSES), batch_size=8))
    (skip,) = [record for record in seen.records if record.kind == "skip"]
    assert (skip.step, skip.info["rows"]) == (2, list(range(8, 16)))
    assert (tmp_path / skip.info["replay"]).is_dir()
    before, after, _, _, end = kept
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not any(torch.isnan(value).any() for value in end)


@pytest.mark.parametrize("at", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)])
def test_broken_and_resumed_gives_the_same_bits(tmp_path: Path, at: int) -> None:
    """Wherever it is broken, before a short batch too, with dropout: the bits are those of the unbroken run."""

    class Leave(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            if state.step == at:
                state.interrupt = "test"

    data = loader(ROWS[:20], CLASSES[:20])
    unbroken, _ = make(Dropping, callbacks=[lucid.Callback()])
    unbroken.fit(data)
    with pytest.raises(SystemExit):
        make(Dropping, run_dir=tmp_path, callbacks=[Leave()])[0].fit(data)
    resumed, seen = make(Dropping, run_dir=tmp_path, callbacks=[lucid.Callback()])
    resumed.fit(data)
    assert len(seen.of("resume")) == 1
    assert all(torch.equal(one, other) for one, other in zip(state_of(unbroken), state_of(resumed), strict=True))


def test_checkpoints_are_the_same_in_structure(tmp_path: Path) -> None:
    """A compiled run's checkpoint has the names, shapes and types of any other; each kind goes on from the other's."""
    trees = []
    for compiled in (False, True):
        make(run_dir=tmp_path / str(compiled), compile=compiled, epochs=1)[0].fit(loader())
        (path,) = (tmp_path / str(compiled) / "checkpoints").glob("*.lcs")
        trees.append(load(path))
    assert shape_of(trees[0], "compile") == shape_of(trees[1], "compile")
    for compiled in (False, True):
        trainer, seen = make(run_dir=tmp_path / str(compiled), compile=not compiled)
        assert trainer.fit(loader()).step == 10
        (change,) = [one for one in seen.of("resume")[0]["changes"] if one["setting"] == "train.compile"]
        assert change["rule"].startswith("goes on")


def shape_of(tree: Any, *without: str) -> Any:
    """Return a tree with types in place of values."""
    if isinstance(tree, dict):
        left_out = (*without, "environment", "compared")
        return {name: shape_of(value, *without) for name, value in tree.items() if name not in left_out}
    if isinstance(tree, list):
        return [shape_of(value, *without) for value in tree]
    return (tree.dtype, tree.shape) if isinstance(tree, Tensor) else type(tree)


def test_gradients_are_there_after_a_step() -> None:
    """Callbacks find them clipped, in the parameters' own layout; none where a parameter was not used."""
    norms: list[float] = []

    class Look(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            found = {name: p.grad for name, p in state.model.named_parameters()}
            assert found.pop("unused") is None
            assert all(g.stride() == state.model.get_parameter(name).stride() for name, g in found.items())
            norms.append(float(torch.nn.utils.get_total_norm(list(found.values()))))

    make(callbacks=[Look()], epochs=1)[0].fit(loader())
    assert norms == pytest.approx([0.5] * 5, rel=1e-4)


class Shared(nn.Module):
    """Two parameters with one gradient, and one whose gradient is a single number, spread out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Parameter(torch.rand(3)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.one + self.two).exp().sum() + self.three.sum()) * x.sum()


@pytest.mark.parametrize("max_grad_norm", [0.5, None], ids=["clipped", "not clipped"])
def test_gradients_are_nobody_elses(max_grad_norm: float | None) -> None:
    """Where a graph hands out one tensor for two gradients, each is clipped once."""
    data = DataLoader(TensorDataset(torch.ones(4)), batch_size=2)
    both = []
    for compiled in (False, True):
        step = lambda model, batch: model(batch[0])  # noqa: E731
        trainer, _ = make(Shared, compile=compiled, train_step=step, max_grad_norm=max_grad_norm)
        trainer.fit(data)
        both.append(state_of(trainer))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


def test_logged_parts() -> None:
    """Parts of a loss and (sum, count) come out of the graph as without one."""

    def step(model: nn.Module, batch: Any) -> dict[str, Any]:
        output = model(batch[0])
        loss = F.cross_entropy(output, batch[1], reduction="sum"), len(output)
        return {"loss": loss, "size": output.square().mean()}

    logged = []
    for compiled in (False, True):
        trainer, seen = make(compile=compiled, train_step=step, epochs=1, gradient_accumulation_steps=2, log_every=3)
        trainer.fit(loader())
        logged.append([record.values for record in seen.records if record.kind == "log"][-1])
    assert logged[1]["train/size"] == pytest.approx(logged[0]["train/size"], rel=1e-5)
    assert logged[1]["train/loss"] == pytest.approx(logged[0]["train/loss"], rel=1e-5)


class Breaks(nn.Linear):
    """Leaves the graph, as a print or a read of a tensor would."""

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return super().forward(x)


def hooked() -> nn.Module:
    """Return a model with a hook on a gradient."""
    model = nn.Linear(4, 3)
    model.weight.register_hook(lambda gradient: gradient * 0)
    return model


@pytest.mark.parametrize(
    ("model", "settings", "why"),
    [
        (Net, {"precision": "fp16"}, "fp16 scales the loss before the backward pass"),
        (hooked, {}, "there are hooks on the backward pass"),
        (lambda: nn.DataParallel(Net()), {}, "the model is wrapped in DataParallel"),
    ],
    ids=["fp16", "hook", "wrapper"],
)
def test_known_beforehand_to_be_no_one_graph(model: Any, settings: dict[str, Any], why: str) -> None:
    """The plan says that the model alone is compiled, and why; then it is."""
    trainer, seen = make(model, epochs=1, **settings)
    trainer.fit(loader())
    assert seen.of("plan")[0]["compiled"] == f"the model alone: {why}"
    assert trainer.model._compiled_call_impl is not None


def two_counts(model: nn.Module, batch: Any) -> dict[str, Any]:
    """Return losses over different counts, whose sum has no single one."""
    loss = F.cross_entropy(model(batch[0]), batch[1])
    return {"one": (loss, 1), "two": (loss, 2)}


@pytest.mark.parametrize(
    ("model", "settings", "why"),
    [
        (lambda: Breaks(4, 3), {}, "Call to `torch._dynamo.graph_break()`: User-inserted graph break. Message: None"),
        (Net, {"train_step": two_counts}, "train_step returns losses with counts of their own"),
    ],
    ids=["graph break", "counts"],
)
def test_found_out_to_be_no_one_graph(model: Any, settings: dict[str, Any], why: str) -> None:
    """A record says why; the run goes on with `model.compile()`, and ends where the uncompiled one does."""
    both = []
    for compiled in (False, True):
        trainer, seen = make(model, compile=compiled, **settings)
        trainer.fit(loader())
        both.append(state_of(trainer))
    assert seen.of("compile")[0] == {"instead": "model.compile()", "reason": why}
    assert trainer.model._compiled_call_impl is not None
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


@dataclass
class Found:
    """What a model that computes its loss returns."""

    loss: Tensor


class OwnLoss(nn.Module):
    """Computes its loss, and says how many classes it has, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.config = SimpleNamespace(num_labels=3, problem_type=None)

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        return Found(F.cross_entropy(self.body(x), labels))


def test_a_model_that_computes_its_loss_is_one_graph() -> None:
    """What is checked of the first batch's labels stands in no graph."""
    rows = [{"x": x, "labels": y} for x, y in zip(ROWS, CLASSES, strict=True)]
    trainer, seen = make(OwnLoss, loss=None, epochs=1)
    trainer.fit(DataLoader(rows, batch_size=8))  # type: ignore[arg-type]
    assert [one.get("graphs") for one in seen.of("compile")] == [1]


def test_runs_of_a_process_share_no_limit() -> None:
    """torch keeps a number of graphs for one piece of code, also of runs that are over: each run has its own."""
    told = []
    with torch._dynamo.config.patch(accumulated_recompile_limit=2):
        for _ in range(3):
            trainer, seen = make(epochs=1)
            trainer.fit(loader())
            told += seen.of("compile")
    assert [one.get("graphs") for one in told] == [1, 1, 1]


def test_more_shapes_than_graphs() -> None:
    """Data of many lengths leave the eight graphs to `model.compile()`, whose lengths are open."""
    lengths = [torch.randn(4, length, 4) for length in range(2, 14)]
    data = [(x, torch.zeros(4, dtype=torch.long)) for x in lengths]
    step = lambda model, batch: F.cross_entropy(model(batch[0].mean(1)) + batch[0].sum() * 0, batch[1])  # noqa: E731
    trainer, seen = make(lambda: nn.Linear(4, 3), train_step=step, epochs=1)
    assert trainer.fit(DataLoader(data, batch_size=None)).step == 12  # type: ignore[arg-type]
    told = seen.of("compile")
    (instead,) = [index for index, one in enumerate(told) if "instead" in one]
    assert sum(one["graphs"] for one in told[:instead]) == 8
    assert told[instead]["reason"] == "it would take more than 8 graphs"


def test_a_loop_of_your_own_compiles_the_model() -> None:
    """`Run` leaves the loss to the user, so the model alone is compiled; what is made is told as well."""
    model, seen = nn.Sequential(nn.Linear(4, 3)), Seen()
    config = lucid.TrainConfig(epochs=1, compile=True, device="cpu")
    run = lucid.Run(model, lucid.optim.AdamW(model.parameters()), loader(), config=config, reports=[seen])
    for x, y in run:
        run.step(F.cross_entropy(model(x), y))
    assert seen.of("plan")[0]["compiled"] == "the model alone: the loop is your own"
    assert [one["graphs"] for one in seen.of("compile")] == [1]
    assert sorted(model.state_dict()) == ["0.bias", "0.weight"]


@pytest.mark.parametrize("kind", [nn.Sequential, Net], ids=["a class of torch", "a class of the user"])
def test_a_model_is_compiled_whoever_wrote_its_class(kind: Any) -> None:
    """torch passes over models of its own classes unless something stands around them."""
    model = kind(nn.Linear(4, 3)) if kind is nn.Sequential else kind()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compile_model(model)
    model(ROWS)
    compile_model(model)
    model(ROWS)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1


def test_finding_a_rate_compiles_nothing() -> None:
    """What is tried before the run is not worth it, and would use up the graphs of the run."""
    trainer, _ = make()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    lr_find(trainer, loader())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_no_compiler() -> None:
    """Seen when the trainer is made, with what is missing and what to do."""
    from torch._inductor import config, cpp_builder

    cpp_builder.cpp_compiler_search.cache_clear()
    # monkeypatch would put it back by deleting it, which hides it from torch for good
    with (
        config.patch("cpp.cxx", ("no-such-compiler",)),
        pytest.raises(ConfigError, match=r"train\.compile needs a compiler that works: .*Install one"),
    ):
        make()
    cpp_builder.cpp_compiler_search.cache_clear()


def test_dynamo_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that Dynamo does not know is named."""

    def refuse() -> None:
        raise RuntimeError("Python 4 not yet supported for torch.compile")

    monkeypatch.setattr("torch._dynamo.eval_frame.check_if_dynamo_supported", refuse)
    with pytest.raises(ConfigError, match="Python 4 not yet supported"):
        check_compiler(torch.device("cpu"))
