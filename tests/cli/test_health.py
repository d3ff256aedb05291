"""`lucid check`, `lr-find`, `replay` and `ui`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from .conftest import Lucid

RUN = Path("runs/flowers")


def test_check_of_a_configuration_finds_nothing_to_repair(lucid: Lucid, flowers: str) -> None:
    """Exit code 0; nothing is written where the run would be."""
    code, out, err = lucid("check", flowers, "--json", "true", "--steps", "4")
    assert code == 0, out + err
    assert json.loads(out)["ok"] is True
    assert not Path("runs").exists()


def test_check_of_a_factory_by_name(lucid: Lucid, tmp_path: Path) -> None:
    """A function in a file; a name that is not there is bad input."""
    (tmp_path / "mine.py").write_text(
        "import torch, lucid\n"
        "def make_trainer():\n"
        "    torch.manual_seed(0)\n"
        "    model = torch.nn.Linear(3, 2)\n"
        "    rows = torch.utils.data.TensorDataset(torch.randn(24, 3), torch.arange(24) % 2)\n"
        "    loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    loss = torch.nn.functional.cross_entropy\n"
        "    return lucid.Trainer(model, optimizer, loss=loss, reports=()), loader\n"
    )
    code, out, _ = lucid("check", "mine.py:make_trainer", "--json", "true", "--steps", "4")
    assert (code, json.loads(out)["ok"]) == (0, True)
    assert "Did you mean 'make_trainer'" in lucid("check", "mine.py:make_trainr")[2]


def test_lr_find_names_a_rate_and_leaves_no_trace(lucid: Lucid, flowers: str) -> None:
    """And says how to use it."""
    code, out, _ = lucid("lr-find", flowers, "--num_steps", "30", "--max_lr", "1")
    assert code == 0
    assert re.search(r"the loss falls most steeply at [\d.e-]+\nTry:  lucid train flowers.toml --optimizer.lr", out)
    assert not Path("runs").exists()
    assert "--num_steps must be a whole number, got 'x'" in lucid("lr-find", flowers, "--num_steps", "x")[2]


def test_lr_find_says_how_to_train_with_the_settings_it_had(lucid: Lucid, flowers: str, tmp_path: Path) -> None:
    """Options and quotes as they were given, but for its own and the rate; they can be typed as they stand."""
    (tmp_path / "flowers.csv").rename(tmp_path / "my flowers.csv")
    given = ["--data.name", "csv:my flowers.csv", "--model.options.dropout=0.1", "--train.deterministic"]
    out = lucid("lr-find", flowers, *given, "--optimizer.lr", "0.1", "--num_steps", "30", "--max_lr", "1")[1]
    (line,) = [line for line in out.splitlines() if line.startswith("Try:")]
    _, program, command, *words, option, rate = shlex.split(line)
    assert (Path(program).name, command, option, float(rate) > 0) == ("lucid", "train", "--optimizer.lr", True)
    assert words == [flowers, *given[:2], "--model.options.dropout", "0.1", "--train.deterministic"]
    assert lucid("plan", *words, option, rate)[0] == 0


def test_replay_repeats_the_step_that_gave_nan(lucid: Lucid, flowers: str, tmp_path: Path) -> None:
    """With the same bits, and the first bad module named."""
    (tmp_path / "breaking.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, num_outputs):\n"
        "        super().__init__()\n"
        "        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, num_outputs)\n"
        "    def forward(self, x):\n"
        "        return self.last(self.first(x) / (x[:, :1] < 4))\n"
    )
    with (tmp_path / "flowers.csv").open("a") as file:
        file.write("99,1,a\n")  # the row that breaks its step
    Path(flowers).write_text(Path(flowers).read_text().replace("width = 8", "").replace('"mlp"', '"breaking:Net"'))
    kept = ["--data.validation", "0", "--data.test", "0"]
    assert lucid("train", flowers, *kept, "--console", "quiet")[::2] == (0, "")
    code, out, err = lucid("replay", str(RUN))
    assert code == 0, out + err
    assert "first NaN or inf: " in out
    assert "the replayed step has the same bits as the recorded one" in out
    assert lucid("replay", "none")[0] == 2


def test_a_run_that_ends_by_nan_says_how_to_look_at_it(lucid: Lucid, flowers: str) -> None:
    """A run without such a step says that it has none."""
    bad = ["--optimizer.lr", "1e30", "--optimizer.name", "sgd", "--train.epochs", "9", "--train.max_grad_norm", "none"]
    code, out, _ = lucid("train", flowers, *bad, "--console", "plain", "--train.max_skips", "1")
    assert (code, out.splitlines()[-1]) == (1, "See what was bad in it:  lucid replay runs/flowers")
    lucid("train", flowers, "--run_dir", "good", "--console", "quiet")
    code, _, err = lucid("replay", "good")
    assert (code, "good has nothing to replay" in err) == (2, True)


def test_ui_names_a_port_that_there_cannot_be(lucid: Lucid) -> None:
    """No traceback."""
    Path("runs").mkdir()
    code, _, err = lucid("ui", "--port", "99999")
    assert (code, "cannot listen on 127.0.0.1:99999" in err) == (2, True)


def answer(url: str, process: subprocess.Popen[str]) -> int:
    """Return the status of a page of a server that is about to listen."""
    while True:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(url) as page:
                return int(page.status)
        except urllib.error.URLError:
            time.sleep(0.05)


def test_ui_serves_the_runs_of_a_folder(lucid: Lucid, flowers: str, tmp_path: Path) -> None:
    """On this machine, until it is ended; a folder that is none is bad input."""
    pytest.importorskip("uvicorn")
    lucid("train", flowers, "--console", "quiet")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "lucid.cli", "ui", "runs", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE,
        text=True, env=os.environ,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"http://127.0.0.1:\d+/", process.stdout.readline())
        assert found is not None
        assert answer(found[0], process) == 200
    finally:
        process.terminate()
        process.communicate()
    assert lucid("ui", "none")[0] == 2
