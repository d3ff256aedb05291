"""Workers outlive the signals that stop a run, and do not save in its place."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from lucid.errors import DataError
from lucid.utils.data import DataLoader, Feed

from .support import Noisy, order


class Handlers(Noisy):
    """Rows that say which handlers their process has."""

    def __getitem__(self, row: int) -> torch.Tensor:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)]
        inherited = signal.getsignal(signal.SIGTERM) is _save
        return torch.tensor([*(handler == signal.SIG_IGN for handler in handlers), not inherited])


def _save(number: int, frame: object) -> None:
    raise AssertionError("a worker saved")


def test_workers_drop_the_handlers_of_the_run() -> None:
    """A forked worker has none of the run's handlers, the run keeps them."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, _save) for number in numbers}
    try:
        feed = Feed(DataLoader(Handlers(2), 2, num_workers=1))
        assert next(feed.batches(0)).tolist() == [[1, 1, 1]] * 2
        assert [signal.getsignal(number) for number in numbers] == [_save] * 3
        feed.close()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LEAVING = """
    import sys, time
    from lucid.utils.data import DataLoader, Feed
    from utils.data.support import Noisy, StatefulStream

    class Stuck(Noisy):
        def __getitem__(self, row):
            while row == 9:
                time.sleep(1)
            return super().__getitem__(row)

    rows, stream = {"num_workers": 2, "persistent_workers": True}, {"num_workers": 2}
    kept = []
    for loader in (DataLoader(Stuck(10), 1, **rows), DataLoader(StatefulStream(), 1, **stream)):
        kept.append(Feed(loader).batches(0))
        next(kept[-1])
    print("left")
    sys.exit(3)
"""


def _run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that may import the tests' data sets."""
    path = folder / "run.py"
    path.write_text(textwrap.dedent(script))
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100, env=environment)


def test_process_leaves_although_its_workers_are_there(tmp_path: Path) -> None:
    """Without `close`, with workers idle, ahead and in a row, the process ends with its own exit code."""
    done = _run(LEAVING, tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (3, "left", "")


SCRIPT = """
    import os, signal, sys
    from lucid.utils.data import DataLoader, Feed
    from utils.data.support import Noisy

    heard = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: heard.append((os.getpid(), int(number))))
    os.setpgrp()
    feed = Feed(DataLoader(Noisy(40), 2, num_workers=2, prefetch_factor=2))
    rows = 0
    for at, batch in enumerate(feed.batches(0)):
        rows += len(batch)
        if at == 3:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                os.killpg(os.getpgrp(), number)
    assert rows == 40, rows
    assert [pid for pid, _ in heard] == [os.getpid()] * 3, heard
    print("whole epoch", sorted(number for _, number in heard))
"""


def test_signals_to_the_group_reach_the_run_alone(tmp_path: Path) -> None:
    """With two workers, SIGTERM, SIGINT and SIGUSR1 to all processes: the run hears each once and reads on."""
    done = _run(SCRIPT, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "whole epoch [2, 10, 15]"), done.stderr


class Dies(Noisy):
    """Row 5 kills its process, as the kernel does when memory runs out."""

    def __getitem__(self, row: int) -> torch.Tensor:
        if row == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(row)


def test_killed_worker_is_said_with_its_place() -> None:
    """The error says which batch was waited for."""
    batches = Feed(DataLoader(Dies(), 2, num_workers=1, prefetch_factor=1)).batches(3)
    next(batches)
    with pytest.raises(DataError, match=r"a worker was lost before batch \d of epoch 3 came: DataLoader worker"):
        list(batches)


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_no_worker_is_left_behind(options: dict[str, bool]) -> None:
    """After `close`, and after an epoch without persistent workers, there is no child."""
    others = set(multiprocessing.active_children())
    feed = Feed(DataLoader(Noisy(), 2, num_workers=2, **options))
    order(feed)
    list(feed.batches(0))
    assert len(set(multiprocessing.active_children()) - others) == (2 if options else 0)
    next(feed.batches(1))
    feed.close()
    assert set(multiprocessing.active_children()) <= others
