"""Windows never straddle epochs, begin anywhere without a look back, and know which is the last."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lucid.errors import DataError
from lucid.utils.data import Feed
from lucid.windows import Progress, num_rows, windows


class Counted(IterableDataset[torch.Tensor]):
    """A stream without a length."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(torch.arange(self.rows).float())


def feed_of(rows: int, batch_size: int = 1) -> Feed:
    """Return rows 0 to n - 1 in order."""
    return Feed(DataLoader(TensorDataset(torch.arange(rows).float()), batch_size=batch_size))


def cut(feed: Feed, size: int, epochs: int, progress: Progress | None = None) -> list[tuple[list[Any], int, int, bool]]:
    """Return rows, epoch, start and last of all windows."""
    found = windows(feed, progress or Progress(), size, epochs)
    return [
        ([(b[0] if isinstance(b, list) else b).tolist() for b in w.batches], w.epoch, w.start, w.last) for w in found
    ]


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 12), size=st.integers(1, 15), epochs=st.integers(1, 3))
def test_windows_cover_every_epoch_once(rows: int, size: int, epochs: int) -> None:
    """All whole but the last of an epoch; each row once per epoch; none crosses the border."""
    found = cut(feed_of(rows), size, epochs)
    for epoch in range(epochs):
        own = [window for window in found if window[1] == epoch]
        assert [row for window in own for batch in window[0] for row in batch] == list(range(rows))
        assert [len(window[0]) for window in own[:-1]] == [size] * (len(own) - 1)
        assert [window[3] for window in own] == [False] * (len(own) - 1) + [True]
        assert len(own) == -(-rows // size)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 12), size=st.integers(1, 5), epoch=st.integers(0, 2), data=st.data())
def test_windows_from_any_position_are_the_rest(rows: int, size: int, epoch: int, data: st.DataObject) -> None:
    """From the end of any window the windows are those that follow it."""
    whole = cut(feed_of(rows), size, 3)
    place = data.draw(st.integers(0, len(whole)))
    progress = Progress(epoch=3) if place == len(whole) else Progress(epoch=whole[place][1], batch=whole[place][2])
    assert cut(feed_of(rows), size, 3, progress) == whole[place:]


@pytest.mark.parametrize("rows", range(1, 8))
def test_a_stream_without_a_length_knows_its_last_window(rows: int) -> None:
    """One window ahead is enough to know which is the last."""
    found = cut(Feed(DataLoader(Counted(rows), batch_size=1)), 3, 2)
    assert [window[3] for window in found] == ([False] * (-(-rows // 3) - 1) + [True]) * 2


def test_no_row_before_the_position_is_read() -> None:
    """Starting at batch 5 asks for row 5 first."""
    read: list[int] = []

    class Rows(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, row: int) -> torch.Tensor:
            read.append(row)
            return torch.zeros(1)

    next(windows(Feed(DataLoader(Rows(), batch_size=1)), Progress(batch=5), 2, 1))
    assert read == [5, 6]


def test_rows_of_any_batch_are_counted() -> None:
    """The length of the first tensor, however deep; without a tensor an error."""
    x = torch.zeros(3, 2)
    assert [num_rows(b) for b in (x, (x, 1), {"a": {"b": [x]}}, ["text", x], torch.zeros(()))] == [3, 3, 3, 3, 1]
    with pytest.raises(DataError, match="a batch must hold at least one tensor, got dict"):
        num_rows({"a": "text"})
