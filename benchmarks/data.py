"""How fast batches come: plain gathering by index, `Feed`, and torch's DataLoader, interleaved, one thread.

    python benchmarks/data.py [--rounds 9] [--json out.json]

CPU time of one pass over the rows; ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from stats import ratio, shown, spread
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lucid.utils.data import Feed

ROWS, FEATURES, BATCH = 50_000, 64, 64


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same rows, one by one: what a data set of somebody's own costs."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, rows: int) -> None:
        self.x, self.y, self.rows = x, y, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[row], self.y[row]


def plain(x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The fastest there is without copying less: one permutation, two `index_select` per batch."""
    order = torch.randperm(len(x))
    for index in order.split(BATCH):
        yield x.index_select(0, index), y.index_select(0, index)


def seconds(batches: Callable[[], Iterable[object]]) -> float:
    """Return the processor time of one pass."""
    begin = time.process_time()
    for _ in batches():
        pass
    return time.process_time() - begin


def measure(rounds: int) -> dict[str, list[float]]:
    """Return microseconds per row of each way, one value for each round."""
    x, y = torch.randn(ROWS, FEATURES), torch.randint(10, (ROWS,))
    arrays, few = TensorDataset(x, y), Rows(x, y, ROWS // 10)
    feed, feed_rows = Feed(DataLoader(arrays, BATCH, shuffle=True)), Feed(DataLoader(few, BATCH, shuffle=True))
    epochs = iter(range(10**9))
    passes: dict[str, tuple[Callable[[], Iterable[object]], int]] = {
        "plain": (lambda: plain(x, y), ROWS),
        "feed": (lambda: feed.batches(next(epochs)), ROWS),
        "loader": (lambda: DataLoader(arrays, BATCH, shuffle=True), ROWS),
        "feed by row": (lambda: feed_rows.batches(next(epochs)), ROWS // 10),
        "loader by row": (lambda: DataLoader(few, BATCH, shuffle=True), ROWS // 10),
    }
    times: dict[str, list[float]] = {name: [] for name in passes}
    for turn in range(rounds + 1):
        for name, (batches, rows) in passes.items():
            value = seconds(batches) / rows * 1e6
            if turn:  # the first pass warms up
                times[name].append(round(value, 4))
    return times


def main() -> None:
    """Print microseconds per row and the ratios that matter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    times = measure(options.rounds)
    for name, values in times.items():
        print(f"{name:16}{spread(values)[0]:8.3f} us/row{1e6 / spread(values)[0]:14,.0f} rows/s")
    print("rows/s, feed over plain:", shown(ratio(times["plain"], times["feed"])))
    print("rows/s, feed over loader:", shown(ratio(times["loader"], times["feed"]), 1))
    if options.json:
        options.json.write_text(json.dumps({"us_per_row": times}))


if __name__ == "__main__":
    main()
