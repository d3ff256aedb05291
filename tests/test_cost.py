"""What the loop costs, counted: host reads, calls, tensors that stay, lines, modules. No seconds."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.optim.schedules import build
from lucid.report import ConsoleReport

READS = ("item", "__float__", "__int__", "tolist", "cpu", "numpy")
SRC = str(Path(lucid.__file__).parent)


def rows(count: int = 64) -> TensorDataset:
    """Return rows of a small classification."""
    return TensorDataset(torch.randn(count, 6), torch.randint(3, (count,)))


def trainer(**options: Any) -> lucid.Trainer:
    """Return a silent trainer of a three-layer MLP as users set one up: AdamW, schedule, clipping."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    settings = {"epochs": 10_000, "log_every": 50, "save_every": 0, "eval_every": 0, "device": "cpu"}
    settings |= options.pop("settings", {})
    options.setdefault("reports", ())
    options.setdefault("optimizer", lucid.optim.AdamW(model.parameters(), lr=1e-3))
    options.setdefault("scheduler", lambda optimizer, total: build("warmup_cosine", optimizer, total, warmup_steps=1))
    return lucid.Trainer(model, loss=F.cross_entropy, config=lucid.TrainConfig(**settings), **options)


def loader(dataset: Any = None) -> DataLoader[Any]:
    """Return a shuffled loader of 16 batches."""
    return DataLoader(rows() if dataset is None else dataset, batch_size=4, shuffle=True)


class At(lucid.Callback):
    """Calls a function after some steps and keeps what it returned."""

    def __init__(self, steps: set[int], function: Any) -> None:
        self.steps, self.function, self.values = steps, function, {}

    def on_step_end(self, state: Any) -> None:
        """Call it where it is due."""
        if state.step in self.steps:
            self.values[state.step] = self.function()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each way of reading a tensor on the host was used."""
    counts: Counter[str] = Counter()
    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, _counting(name, getattr(torch.Tensor, name), counts))
    return counts


def _counting(name: str, function: Any, counts: Counter[str]) -> Any:
    def read(*arguments: Any, **options: Any) -> Any:
        counts[name] += 1
        return function(*arguments, **options)

    return read


def test_tensors_are_read_at_log_points_only(reads: Counter[str]) -> None:
    """2000 updates with a record every 50 read tensors 40 times at most."""
    trainer(settings={"max_steps": 2000}).fit(loader())
    assert 1 <= reads.total() <= 40


def test_run_loop_reads_tensors_at_log_points_only(reads: Counter[str]) -> None:
    """The hand-written loop over a run reads no more than the trainer."""
    model = nn.Linear(6, 3)
    config = lucid.TrainConfig(max_steps=500, epochs=100, log_every=50, device="cpu")
    run = lucid.Run(model, lucid.optim.AdamW(model.parameters()), loader(), config=config, reports=())
    for x, y in run:
        with run.autocast():
            loss = F.cross_entropy(model(x), y)
        run.step(loss)
    assert 1 <= reads.total() <= 10


def live_tensors() -> tuple[int, int]:
    """Return how many tensors live, and how many of them have a graph."""
    gc.collect()
    found = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter)]
    return len(found), sum(tensor.grad_fn is not None for tensor in found)


@pytest.mark.parametrize("log_every", [50, 0])
def test_tensors_do_not_pile_up(log_every: int) -> None:
    """As many tensors live after 2000 updates as after 100, none with a graph; also where nothing is ever logged."""
    first = 100 if log_every else 1024  # without records, results are folded every 1023 steps
    last = 2000 if log_every else 2047
    watch = At({first, last}, live_tensors)
    trainer(settings={"max_steps": 2100, "log_every": log_every}, callbacks=[watch]).fit(loader())
    assert watch.values[first] == watch.values[last]
    assert watch.values[last][1] <= 1  # the loss of the step just done


def test_optimizer_and_schedule_step_once_per_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 windows of 2 micro-batches: 300 calls of each step, 600 of backward."""
    counts: Counter[str] = Counter()
    backward = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", _counting("backward", backward, counts))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    monkeypatch.setattr(optimizer, "step", _counting("optimizer", optimizer.step, counts))
    monkeypatch.setattr(scheduler, "step", _counting("scheduler", scheduler.step, counts))
    optimizer.step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    config = lucid.TrainConfig(max_steps=300, epochs=100, gradient_accumulation_steps=2, device="cpu")
    lucid.Trainer(model, optimizer, loss=F.cross_entropy, scheduler=scheduler, config=config, reports=()).fit(loader())
    assert counts == {"backward": 600, "optimizer": 300, "scheduler": 300}


def library_calls(steps: int) -> int:
    """Return how many functions of the library a fit of so many steps calls."""
    calls = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(SRC)

    ready = trainer(settings={"max_steps": steps, "log_every": 0, "max_grad_norm": 1e9})
    data = DataLoader(rows(4 * 200), batch_size=4, shuffle=True)  # no end of an epoch in between
    sys.setprofile(profile)
    try:
        ready.fit(data)
    finally:
        sys.setprofile(None)
    return calls


def test_a_step_makes_few_library_calls() -> None:
    """With our optimizer, a schedule and clipping a step makes at most 55 calls of library functions."""
    library_calls(1)  # whatever happens once
    few, many = library_calls(20), library_calls(120)
    assert (many - few) / 100 <= 55


def test_calls_per_step_do_not_grow() -> None:
    """Steps 100 to 190 cost as many calls as steps 10 to 100."""
    library_calls(1)
    ten, hundred, more = library_calls(10), library_calls(100), library_calls(190)
    assert abs((more - hundred) - (hundred - ten)) < 45  # half a call per step: set-up varies by some calls in all


@pytest.mark.parametrize("num_rows", [160, 1600])
def test_each_row_is_copied_once(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over an epoch of data in memory each row of each tensor is gathered once, in one call per batch."""
    calls: list[int] = []
    select = torch.Tensor.index_select

    def counting(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        calls.append(len(index))
        return select(self, dim, index)

    monkeypatch.setattr(torch.Tensor, "index_select", counting)
    monkeypatch.setattr(TensorDataset, "__getitem__", None)  # not row by row
    trainer(settings={"epochs": 1}).fit(loader(rows(num_rows)))
    assert calls == [4] * (2 * num_rows // 4)


def test_evaluation_keeps_nothing() -> None:
    """As many tensors and objects live in batch 500 of an evaluation as in batch 20."""
    seen: dict[int, tuple[int, int]] = {}
    calls = 0

    def metric(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls in (20, 500):
            seen[calls] = (live_tensors()[0], len(gc.get_objects()))
        return (output.argmax(1) == target).float().mean()

    lucid.evaluate(nn.Linear(6, 3), DataLoader(rows(2000), batch_size=4), {"accuracy": metric}, loss=F.cross_entropy)
    assert seen[500][0] == seen[20][0]
    assert abs(seen[500][1] - seen[20][1]) <= 50  # against 480 batches in between


def test_a_log_file_gets_one_line_per_record(tmp_path: Path) -> None:
    """Not on a terminal, the console writes at most one line per record, without control characters."""
    stream = io.StringIO()
    settings = {"epochs": 3, "log_every": 5, "eval_every": "epoch", "save_every": "epoch"}
    trainer(settings=settings, run_dir=tmp_path, reports=[ConsoleReport(stream=stream)]).fit(loader(), loader())
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    lines = stream.getvalue().splitlines()
    assert {"plan", "log", "eval", "save", "end"} <= {record["kind"] for record in records}
    assert 1 <= len(lines) <= len(records)
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def modules_after(code: str) -> set[str]:
    """Return the modules that a fresh process has loaded after some code."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_no_torch() -> None:
    """`import lucid` loads neither torch nor numpy."""
    assert {"torch", "numpy"} & modules_after("import lucid") == set()


def test_trainer_loads_no_optional_package() -> None:
    """The trainer adds nothing to torch's own modules but Lucid, the standard library and what Lucid requires."""
    code = "import torch; import {}; before = set(sys.modules); import lucid; lucid.Trainer, lucid.Run, lucid.evaluate"
    code = code.format("numpy") + "\nfor name in before: del sys.modules[name]"
    found = {name.split(".")[0] for name in modules_after(code)} - set(sys.stdlib_module_names)
    allowed = {
        "lucid",
        "xxhash",
        "tomli_w",
        "rich",
        "pygments",
        "markdown_it",
        "mdurl",
        "torch",
        "numpy",
        "cython_runtime",
    }
    assert {name for name in found if not name.startswith("_")} <= allowed


FIT = """
import tempfile, torch, lucid
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(6, 3)
optimizer = lucid.optim.AdamW([{"params": model.parameters()}])
loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(3, (64,))), batch_size=8, shuffle=True)
with tempfile.TemporaryDirectory() as folder:
    for epochs in (1, 2):
        trainer = lucid.Trainer(model, optimizer, loss=torch.nn.functional.cross_entropy, run_dir=folder, reports=(),
                                config=lucid.TrainConfig(epochs=epochs, device="cpu"))
        assert trainer.fit(loader, loader).step == 8 * epochs
optimizer.zero_grad()
"""


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_training_loads_no_compiler(optimizer: str) -> None:
    """Training, saving and resuming with our optimizers never load torch's compiler, which takes as long as torch."""
    assert {"torch._dynamo", "torch._inductor"} & modules_after(FIT.replace("AdamW", optimizer)) == set()


def test_torchs_own_optimizer_loads_the_compiler() -> None:
    """The test above would notice: torch's class does load it."""
    assert "torch._dynamo" in modules_after(FIT.replace("lucid.optim", "torch.optim"))
