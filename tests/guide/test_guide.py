"""The guide's snippets as one script: it trains, saves, loads in a new process and goes on."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import torch

import lucid

READER = textwrap.dedent("""
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    from pathlib import Path
    import sys

    class MyModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block_3 = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
            self.head = torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.block_3(x))

    rows = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randint(2, (16,)))
    epochs = 3
""")

SKELETON = textwrap.dedent("""
    import lucid
    import lucid.nn as nn
    import lucid.nn.functional as F
    from lucid.optim import AdamW
    from lucid.optim.lr_scheduler import CosineAnnealingLR
    from lucid.utils.data import DataLoader
    from lucid.amp import autocast, GradScaler
    from lucid.utils import checkpoint

    train_loader = DataLoader(rows, batch_size=4)
    device = lucid.metal_if_available()
    model = MyModel().to(device)
    opt = AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    sched = CosineAnnealingLR(opt, t_max=epochs * len(train_loader))
    scaler = GradScaler()

    def train_one_epoch(model, loader, opt, sched, device):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            model.train()
            with autocast(dtype=lucid.bfloat16):
                out = model(x)
                loss = F.cross_entropy(out, y)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            sched.step()

    start = 0
    if Path("checkpoint.lcs").exists():
        state = lucid.serialization.load("checkpoint.lcs")
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        sched.load_state_dict(state["sched"])
        scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])
        start = state["epoch"] + 1

    for epoch in range(start, int(sys.argv[1])):
        train_one_epoch(model, train_loader, opt, sched, device)
        state = {
            "model": model.state_dict(),
            "opt": opt.state_dict(),
            "sched": sched.state_dict(),
            "scaler": scaler.state_dict() if scaler else None,
            "epoch": epoch,
            "rng": torch.get_rng_state(),
        }
        lucid.serialization.save(state, "checkpoint.lcs")

    y = checkpoint(model.block_3, rows[:2][0])
    print(epoch, sched.get_last_lr()[0], [float(p.detach().double().sum()) for p in model.parameters()])
""")


def run(folder: Path, epochs: int) -> str:
    """Run the script to this many epochs in a new process and return what it printed."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(READER + SKELETON)
    done = subprocess.run(
        [sys.executable, "-W", "error", "train.py", str(epochs)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_goes_on_in_a_new_process_where_it_was(tmp_path: Path) -> None:
    """Two processes of one and two epochs print what one process of three does."""
    unbroken = run(tmp_path / "one", 3)
    run(tmp_path / "two", 1)
    assert run(tmp_path / "two", 3) == unbroken


def test_torch_names_are_torchs_own_objects() -> None:
    """`lucid.nn`, `lucid.nn.functional` and dtypes are the same objects as torch's."""
    import lucid.nn as nn
    import lucid.nn.functional as functional

    assert nn is torch.nn
    assert functional is torch.nn.functional
    assert lucid.bfloat16 is torch.bfloat16
    assert lucid.randn is torch.randn
    assert lucid.utils.data.TensorDataset is torch.utils.data.TensorDataset


def test_every_module_the_guide_imports_keeps_its_spec() -> None:
    """Mirroring a torch module leaves its own import record alone."""
    import lucid.nn.utils.rnn as rnn

    assert rnn is torch.nn.utils.rnn
    assert rnn.__spec__ is not None
    assert rnn.__spec__.name == "torch.nn.utils.rnn"


def test_an_unknown_name_suggests_the_nearest() -> None:
    """A misspelt name says what it could have been."""
    message = ""
    try:
        lucid.metal_if_availabel
    except AttributeError as error:
        message = str(error)
    assert re.search(r"neither lucid nor torch .*metal_if_availabel.* Did you mean 'metal_if_available'\?", message)


def test_loading_a_name_leaves_the_garbage_collector_as_it_was() -> None:
    """On stays on and off stays off, also when the module cannot be loaded."""
    code = (
        "import gc, lucid; lucid.Trainer; on = gc.isenabled(); gc.disable(); lucid.Run; off = gc.isenabled()\n"
        "gc.enable(); lucid._OWN['broken'] = 'lucid.nowhere'\n"
        "try: lucid.broken\n"
        "except ImportError: print(on, off, gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True"]
