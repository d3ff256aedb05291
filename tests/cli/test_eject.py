"""An ejected file is plain PyTorch and gives the weights of the run that it came from, bit for bit."""

from __future__ import annotations

import gzip
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

import lucid as library

from .conftest import Lucid

DIGITS = ["--model.name", "mlp", "--model.options.width", "16", "--model.options.dropout", "0.2", "--train.epochs", "2"]
OWN_ROWS = ["--data.name", "own:rows", "--data.options.count", "50", "--model.name", "own:Net", "--train.epochs", "3",
            "--data.batch_size", "8"]
MAE = ["--train.monitor", "eval/mae", "--train.mode", "min"]
MATRIX = {
    "accumulation": [*DIGITS, "--train.gradient_accumulation_steps", "4"],
    "convolutions": ["--model.options.width", "4", "--train.epochs", "1", "--train.clip", "value"],
    "residual": ["--model.name", "resnet", "--model.options.width", "4", "--train.max_steps", "20"],
    "adaptive clip, no schedule": [*DIGITS, "--train.clip", "adaptive", "--train.max_grad_norm", "0.01"],
    "no schedule, no clip": [*DIGITS, "--scheduler.name", "none", "--train.max_grad_norm", "none"],
    "bf16": [*DIGITS, "--train.precision", "bf16", "--scheduler.name", "one_cycle"],
    "fp16": [*DIGITS, "--train.precision", "fp16", "--train.gradient_accumulation_steps", "2"],
    "sgd, step decay": [*DIGITS, "--optimizer.name", "sgd", "--optimizer.options.momentum", "0.9",
                        "--scheduler.name", "step_decay"],
    "plateau, patience": [*DIGITS, "--scheduler.name", "plateau", "--scheduler.options.patience", "0",
                          "--train.patience", "2", "--optimizer.lr", "0.3", "--train.eval_every", "7",
                          "--train.save_every", "7"],
    "average, short epochs": [*DIGITS, "--train.ema_decay", "0.9", "--data.drop_last", "true",
                              "--train.max_steps", "60"],
    "best by accuracy, no test": [*DIGITS, "--train.monitor", "eval/accuracy", "--train.mode", "max",
                                  "--data.test", "0"],
    "no validation, stable then down": [*DIGITS, "--data.validation", "0", "--scheduler.name", "warmup_stable_decay"],
    "rates by layer": ["--data.name", "text:text.txt", "--data.options.block_size", "8", "--data.options.stride", "3",
                       "--model.name", "gpt", "--model.options.width", "8", "--model.options.layers", "2",
                       "--model.options.heads", "2", "--model.options.dropout", "0.1", "--train.epochs", "2",
                       "--optimizer.options.layer_decay", "0.5"],
    "average of tied weights": ["--data.name", "text:text.txt", "--data.options.block_size", "8", "--model.name", "gpt",
                                "--model.options.width", "8", "--model.options.heads", "1", "--model.options.layers",
                                "1", "--train.epochs", "2", "--train.ema_decay", "0.8"],
    "bytes": ["--data.name", "text:text.txt", "--data.options.tokens", "bytes", "--data.options.block_size", "8",
              "--model.name", "gpt", "--model.options.width", "8", "--model.options.heads", "1",
              "--model.options.layers", "1", "--train.epochs", "1"],
    "table of classes": ["--data.name", "csv:flowers.csv", "--model.name", "mlp", "--train.epochs", "3"],
    "table, regression": ["--data.name", "csv:flowers.csv", "--data.options.target", "long", "--model.name", "mlp",
                          "--train.epochs", "3", "--train.gradient_accumulation_steps", "2", "--loss", "huber"],
    "arrays, labels": ["--data.name", "npz:labels.npz", "--model.name", "mlp", "--train.epochs", "2",
                       "--optimizer.name", "rmsprop", "--train.gradient_accumulation_steps", "2"],
    "own model, data, step": ["--data.name", "own:rows", "--data.options.count", "50", "--model.name", "own:Net",
                              "--task", "own:train_step", "--data.validation", "0", "--train.epochs", "2"],
    "table, own unit": ["--data.name", "csv:houses.csv", "--data.options.target", "price", "--model.name", "mlp",
                        "--train.epochs", "3", *MAE, "--train.eval_every", "2", "--train.save_every", "2",
                        "--data.batch_size", "8"],
    "table packed, best by r2": ["--data.name", "csv:houses.tsv.gz", "--data.options.target", '["price", "size"]',
                                 "--data.options.drop", '["town"]', "--model.name", "mlp", "--train.epochs", "3",
                                 "--train.monitor", "eval/r2", "--train.mode", "max", "--data.batch_size", "8",
                                 "--train.gradient_accumulation_steps", "2", "--train.precision", "bf16"],
    "parquet, labels": ["--data.name", "parquet:houses.parquet", "--data.options.target", '["old", "big"]',
                        "--model.name", "mlp", "--train.epochs", "2", "--train.monitor", "eval/accuracy",
                        "--train.mode", "max"],
    "image folder": ["--data.name", "image-folder:images", "--data.options.size", "8", "--data.options.augment", "true",
                     "--data.batch_size", "8", "--model.options.width", "4", "--train.epochs", "2"],
    "image folder in parts": ["--data.name", "image-folder:parts", "--data.options.size", "8", "--data.options.grey",
                              "true", "--model.name", "mlp", "--train.epochs", "2", "--train.monitor",
                              "eval/accuracy", "--train.mode", "max", "--data.batch_size", "8"],
    "image folder with a test": ["--data.name", "image-folder:tested", "--data.options.size", "8", "--model.name",
                                 "mlp", "--train.epochs", "2", "--data.batch_size", "8"],
    "idx": ["--data.name", "idx:idx", "--model.name", "mlp", "--train.epochs", "2", "--data.batch_size", "8"],
    "datasets: numbers": ["--data.name", "datasets:hub/numbers", "--data.options.y", "y", "--model.name", "mlp",
                          "--train.epochs", "2", "--data.batch_size", "8", *MAE],
    "datasets: text, own validation": ["--data.name", "datasets:hub/text", "--data.options.length", "6", "--model.name",
                                       "own:Bag", "--train.epochs", "2", "--data.batch_size", "8"],
    "datasets: images, own parts": ["--data.name", "datasets:hub/images", "--model.name", "mlp", "--train.epochs", "2",
                                    "--data.batch_size", "8"],
    "datasets: one, own target": ["--data.name", "datasets:hub/one", "--data.options.y", "y", "--data.options.x", "a",
                                  "--model.name", "mlp", "--train.epochs", "2", "--data.batch_size", "8"],
    "own step, judged": [*OWN_ROWS, "--task", "own:train_step"],
    "own step, sum and count": [*OWN_ROWS, "--task", "sums:train_step", "--train.gradient_accumulation_steps", "2"],
    "own step, dictionary": [*OWN_ROWS, "--task", "parts:train_step", "--train.precision", "bf16"],
    "own step that draws when judged": [*OWN_ROWS, "--task", "drawing:train_step"],
    "own step that gives answers": [*OWN_ROWS, "--task", "answers:train_step"],
    "own loss, frozen norm": ["--data.name", "own:rows", "--data.options.count", "50", "--model.name", "own:Frozen",
                              "--loss", "own:loss", "--train.epochs", "3", "--data.batch_size", "8"],
    "own data that draws": ["--data.name", "own:Drawing", "--model.name", "own:Net", "--train.epochs", "2",
                            "--train.gradient_accumulation_steps", "2"],
}  # fmt: skip
OWN = '''
import random
import numpy
import torch
from torch import nn


def rows(count):
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(x, x.argmax(1))


class Drawing(torch.utils.data.Dataset):
    """Every row is another one each time."""

    def __len__(self):
        return 40

    def __getitem__(self, row):
        return torch.randn(3) + random.random() + float(numpy.random.rand()), row % 3


class Net(nn.Module):
    def __init__(self, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, num_outputs))

    def forward(self, x):
        return self.layers(x)


class Bag(nn.Module):
    """The mean of what each byte says."""

    def __init__(self, num_outputs):
        super().__init__()
        self.bytes = nn.Embedding(256, num_outputs)

    def forward(self, x):
        return self.bytes(x).mean(1)


class Frozen(nn.Module):
    """A norm that stays as it is, in eval mode while the rest trains."""

    def __init__(self, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.3), nn.Linear(3, num_outputs))
        self.layers[0].eval()

    def forward(self, x):
        return self.layers(x)


def loss(output, y):
    return nn.functional.cross_entropy(output, y, label_smoothing=0.1)


def train_step(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
'''
STEPS = {
    "sums": """
def train_step(model, batch):
    x, y = batch
    kept = y != 0
    return (F.cross_entropy(model(x), y, reduction="none") * kept).sum(), kept.sum()
""",
    "parts": """
def train_step(model, batch):
    x, y = batch
    output = model(x)
    return {"class": F.cross_entropy(output, y), "small": output.square().mean()}


def eval_step(model, batch):
    return {"loss": F.cross_entropy(model(batch[0]), batch[1]), "other": batch[0].mean()}
""",
    "drawing": """
def train_step(model, batch):
    x, y = batch
    return F.cross_entropy(model(x + torch.randn_like(x)), y)
""",
    "answers": """
def train_step(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def eval_step(model, batch):
    return model(batch[0]), batch[1]
""",
}


@pytest.fixture
def place(tmp_path: Path, flowers: str, images: Path) -> Path:
    """A folder with data of each kind."""
    (tmp_path / "text.txt").write_text("".join(chr(97 + (number * number) % 11) for number in range(900)))
    x = numpy.random.default_rng(0).normal(size=(40, 4))
    numpy.savez(tmp_path / "labels.npz", x=x, y=(x > 0).astype(int))
    (tmp_path / "own.py").write_text(OWN)
    for name, text in STEPS.items():
        (tmp_path / f"{name}.py").write_text(f"import torch\nfrom torch.nn import functional as F\n{text}")
    houses(tmp_path)
    for folder, parts in (("parts", ("train", "val", "test")), ("tested", ("train", "test"))):
        for part in parts:
            shutil.copytree(images, tmp_path / folder / part)
    idx(tmp_path / "idx")
    return tmp_path


def houses(folder: Path) -> None:
    """Tables with holes, words, a column that never changes, and two columns of labels."""
    header = ["price", "size", "rooms", "town", "same", "old", "big"]
    rows: list[list[object]] = [
        [1e5 + 3 * n * n, 50 + n % 37, "" if n % 9 == 2 else n % 5, ["Ulm", "Bonn", "?"][n % 3], 7, n % 2, int(n > 20)]
        for n in range(60)
    ]
    rows[5][0] = "n/a"
    for name, opener, tab in (("houses.csv", open, ","), ("houses.tsv.gz", gzip.open, "\t")):
        with opener(folder / name, "wt") as file:  # type: ignore[operator]
            file.writelines(tab.join(map(str, row)) + "\n" for row in [header, *rows])
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    del rows[5]
    columns = {name: [None if row[at] == "" else row[at] for row in rows] for at, name in enumerate(header)}
    parquet.write_table(arrow.table(columns), folder / "houses.parquet")


def idx(folder: Path) -> None:
    """Images and labels to train on, packed, and for the test, plain."""
    folder.mkdir()
    generator = numpy.random.default_rng(0)
    for part, count, opener in (("train", 40, gzip.open), ("t10k", 10, open)):
        pixels, labels = generator.integers(0, 255, (count, 4, 4)), numpy.arange(count) % 3
        for what, array in (("images", pixels.astype(numpy.uint8)), ("labels", labels.astype(numpy.uint8))):
            name = f"{part}-{what}-idx{array.ndim}-ubyte{'.gz' if opener is gzip.open else ''}"
            head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            with opener(folder / name, "wb") as file:  # type: ignore[operator]
                file.write(head + array.tobytes())


def hub(folder: Path, name: str) -> None:
    """A data set as `save_to_disk` writes it."""
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    rows = range(40)
    if name in ("numbers", "one"):
        made = library.Dataset.from_dict({"a": [float(n % 7) for n in rows], "b": [[n, n * n] for n in rows],
                                          "y": [n / 3 if name == "numbers" else n % 3 for n in rows]})  # fmt: skip
        made = library.DatasetDict(train=made) if name == "numbers" else made
    elif name == "text":
        kinds = library.ClassLabel(names=["even", "odd"])
        made = library.Dataset.from_dict({"x": [f"row {n}" for n in rows], "label": [n % 2 for n in rows]})
        made = made.cast_column("label", kinds)
        made = library.DatasetDict(train=made, validation=made.select(range(9)))
    else:
        pil = pytest.importorskip("PIL.Image")
        pixels = numpy.random.default_rng(0).integers(0, 255, (40, 4, 4, 3), numpy.uint8)
        columns = {"picture": [pil.fromarray(one) for one in pixels], "label": [n % 2 for n in rows]}
        made = library.Dataset.from_dict(columns).cast_column("picture", library.Image())
        made = library.DatasetDict(train=made, validation=made.select(range(9)), test=made.select(range(5, 15)))
    made.save_to_disk(folder / "hub" / name)


@pytest.mark.parametrize("name", list(MATRIX))
def test_ejected_file_gives_the_same_bits(
    lucid: Lucid, place: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Last weights, and the best where the run has any; each evaluation says the same; nothing in it is unused."""
    if "digits" in str(MATRIX[name]) or "--data.name" not in MATRIX[name]:
        pytest.importorskip("sklearn")
    if "datasets:hub" in str(MATRIX[name]):
        hub(place, MATRIX[name][1].rpartition("/")[2])
    monkeypatch.syspath_prepend(str(place))
    words = [*MATRIX[name], "--run_dir", "run"]
    assert lucid("train", *words, "--console", "quiet")[::2] == (0, "")
    assert lucid("eject", *words, "--out", "plain.py")[::2] == (0, "")
    assert lint("plain.py") == "All checks passed!\n"
    runpy.run_path("plain.py", run_name="__main__")
    same("last.pt", max(Path("run/checkpoints").glob("*.lcs")))
    records = [json.loads(line) for line in Path("run/records.jsonl").read_text().splitlines()]
    wanted = [record["values"] for record in records if record["kind"] == "eval" and record["values"]]
    found = [dict(re.findall(r"(eval/?\w+) (\S+)", line.replace("eval ", "eval/"))) for line in
             capsys.readouterr().out.splitlines() if "eval " in line]  # fmt: skip
    assert [{key: f"{values[key]:.4f}" for key in one} for values, one in zip(wanted, found, strict=True)] == found
    assert Path("best.pt").exists() == bool(wanted)
    if wanted:
        same("best.pt", library.trained.find_checkpoint("run"))


def test_ejected_file_needs_no_lucid(lucid: Lucid, place: Path) -> None:
    """It runs where importing lucid is an error."""
    assert lucid("eject", *MATRIX["table of classes"], "--out", "plain.py")[0] == 0
    source = "import sys, runpy; sys.modules['lucid'] = None; runpy.run_path('plain.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path("last.pt").is_file()


def lint(path: str) -> str:
    """What ruff has to say: lines, names and imports; bugs that it knows."""
    words = ["check", "--isolated", "--no-cache", "--line-length", "120", "--select", "E,F,I,B", "--ignore", "B905"]
    done = subprocess.run([sys.executable, "-m", "ruff", *words, path], capture_output=True, text=True, check=False)
    return done.stdout


def same(weights: str, checkpoint: Path) -> None:
    """Compare bit for bit; the best of a run with an average holds the average."""
    found = torch.load(weights, weights_only=True)
    wanted = library.load(checkpoint)["model"]
    if weights == "best.pt":
        wanted = library.load_model(checkpoint).state_dict()
    assert set(found) == set(wanted)
    assert [key for key in wanted if not torch.equal(found[key], wanted[key])] == []


def test_file_has_only_the_branches_in_use(lucid: Lucid, place: Path) -> None:
    """No accumulation, average, scaler or patience where none was asked for."""
    text = lucid("eject", *DIGITS)[1]
    for word in ("ACCUMULATION", "average", "scaler", "autocast", "PATIENCE", "plateau", "conv"):
        assert word.lower() not in text.lower()
    assert "lucid" not in text.replace("`lucid eject`", "").replace("not lucid", "")


def test_file_promises_bits_only_where_it_gives_them(lucid: Lucid, place: Path) -> None:
    """Not for a compiled run, whose loss and backward are compiled with the model."""
    exact, compiled = (lucid("eject", *DIGITS, "--train.compile", word)[1] for word in ("false", "true"))
    assert "the same weights, bit for bit: last.pt, best.pt." in exact
    assert "the same weights up to last digits, as it compiles the model alone: last.pt, best.pt." in compiled


def test_file_keeps_to_the_line_length_and_is_not_overwritten(lucid: Lucid, place: Path) -> None:
    """Readable; and nothing of a person's is lost."""
    assert lucid("eject", *MATRIX["accumulation"], "--out", "plain.py")[0] == 0
    assert max(map(len, Path("plain.py").read_text().splitlines())) <= 120
    code, _, err = lucid("eject", "--out", "plain.py")
    assert (code, "plain.py exists" in err) == (2, True)


def test_place_that_cannot_be_written_is_said(lucid: Lucid, place: Path) -> None:
    """Here a folder that is none."""
    code, _, err = lucid("eject", "--out", "none/plain.py")
    assert (code, "cannot write none/plain.py: No such file" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.max_time", "60"], "train.max_time ends a run by the clock, so that no two runs need to end at one"),
        (["--train.spike_factor", "3"], "no plain form of train.spike_factor"),
        (["--train.monitor", "eval/acuracy", "--train.mode", "max"], "must be one of eval/loss, eval/accuracy, got"),
        ([*OWN_ROWS, "--task", "answers:train_step", "--train.patience", "2"], "train.patience needs rows for validat"),
        (["--data.name", "odd:bundle", "--model.name", "mlp"], "odd:bundle gives a lucid.datasets.DataBundle, which"),
        ([*OWN_ROWS, "--task", "odd:train_step"], "train_step that returns a mean loss, (sum, count), or a dictionary"),
    ],
)
def test_what_has_no_plain_form_is_said(
    lucid: Lucid, place: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to change."""
    (place / "odd.py").write_text(
        "from lucid.datasets import build\n"
        "def bundle():\n    return build('csv:flowers.csv', {})\n"
        "def train_step(model, batch):\n    return [model(batch[0]).mean()]\n"
    )
    monkeypatch.syspath_prepend(str(place))
    code, _, err = lucid("eject", *words)
    assert (code, message in err) == (2, True), err
