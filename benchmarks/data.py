"""How fast batches come: plain gathering by index, `Feed`, and torch's DataLoader, interleaved, one thread.

python benchmarks/data.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lucid.utils.data import Feed

ROWS, FEATURES, BATCH, ROUNDS = 50_000, 64, 64, 9


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


def main() -> None:
    """Print microseconds per row, medians of interleaved passes, and the ratios that matter."""
    torch.set_num_threads(1)
    x, y = torch.randn(ROWS, FEATURES), torch.randint(10, (ROWS,))
    arrays, few = TensorDataset(x, y), Rows(x, y, ROWS // 10)
    feed, feed_rows = Feed(DataLoader(arrays, BATCH, shuffle=True)), Feed(DataLoader(few, BATCH, shuffle=True))
    passes: dict[str, tuple[Callable[[], Iterable[object]], int]] = {
        "plain index_select": (lambda: plain(x, y), ROWS),
        "Feed, tensors": (lambda: feed.batches(next(epochs)), ROWS),
        "DataLoader, tensors": (lambda: DataLoader(arrays, BATCH, shuffle=True), ROWS),
        "Feed, row by row": (lambda: feed_rows.batches(next(epochs)), ROWS // 10),
        "DataLoader, row by row": (lambda: DataLoader(few, BATCH, shuffle=True), ROWS // 10),
    }
    epochs = iter(range(10**9))
    times: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(ROUNDS):
        for name, (batches, rows) in passes.items():
            times[name].append(seconds(batches) / rows * 1e6)
    median = {name: statistics.median(values) for name, values in times.items()}
    for name, value in median.items():
        print(f"{name:24} {value:8.3f} us/row  {1e6 / value:12,.0f} rows/s")
    print(f"Feed against plain       {median['plain index_select'] / median['Feed, tensors']:8.2f} x (wanted: 0.8)")
    print(f"Feed against DataLoader  {median['DataLoader, tensors'] / median['Feed, tensors']:8.2f} x (wanted: 8)")
    seeding = median["Feed, row by row"] - median["DataLoader, row by row"]
    print(f"seeding by the row       {seeding:8.3f} us/row")


if __name__ == "__main__":
    main()
