"""The newest good checkpoint found and read in one go, and what happens to the live state when files are broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lucid.errors import CheckpointError, ConfigError, MismatchError
from lucid.serialization import Store

SIZE = 3 << 20  # bytes of the one tensor: three chunks


def live() -> dict[str, Any]:
    """Return a fresh state."""
    return {"w": torch.zeros(SIZE // 4), "rest": None}


def fill(folder: Path, *steps: int) -> None:
    """Make checkpoints whose tensor holds their step."""
    with Store(folder, run_id="a", keep_last=9) as kept:
        for step in steps:
            kept.save({"w": torch.full((SIZE // 4,), float(step)), "rest": {"m": torch.ones(3)}}, step=step)


def damage(folder: Path, *steps: int) -> None:
    """Change a bit in the last chunk of each file, so that the chunks before it are read first."""
    for step in steps:
        path = folder / f"step-{step:08d}.lcs"
        raw = bytearray(path.read_bytes())
        raw[4096 + SIZE - 1] ^= 4
        path.write_bytes(raw)


@pytest.mark.parametrize("tree", [live(), None], ids=["live", "fresh"])
def test_data_is_read_once(tmp_path: Path, read: list[int], tree: Any) -> None:
    """Of two good checkpoints the newest is read once and the other's data not at all."""
    fill(tmp_path, 1, 2)
    with Store(tmp_path, run_id="a") as kept:
        kept.entries()
        read.clear()
        found = kept.restore(tree)
    assert found is not None
    assert (found[0].step, float(found[1]["w"][-1]), float(found[1]["rest"]["m"][0])) == (2, 2.0, 1.0)
    assert sum(read) // SIZE == 1
    assert tree is None or found[1]["w"] is tree["w"]


def test_next_older_one_fills_the_same_tensors(tmp_path: Path) -> None:
    """The newest shows while it is read that it is broken: the live state is that of the older one, wholly."""
    fill(tmp_path, 1, 2, 3)
    damage(tmp_path, 2, 3)
    tree = live()
    with Store(tmp_path, run_id="a") as kept:
        found = kept.restore(tree)
        assert found is not None
        assert found[0].step == 1
        assert [path.name for path, _ in kept.refused] == ["step-00000002.lcs", "step-00000003.lcs"]
    assert torch.equal(tree["w"], torch.ones(SIZE // 4))


def test_only_one_is_verified_before_the_live_state_is_touched(tmp_path: Path, read: list[int]) -> None:
    """With nothing to fall back on, a broken file leaves the live state as it was, and a good one is read twice."""
    fill(tmp_path, 1)
    with Store(tmp_path, run_id="a") as kept:
        kept.entries()
        read.clear()
        assert kept.restore(live()) is not None
        assert sum(read) // SIZE == 2
    damage(tmp_path, 1)
    tree = live()
    with Store(tmp_path, run_id="a") as kept:
        assert kept.restore(tree) is None
        assert kept.restore() is None
    assert torch.equal(tree["w"], torch.zeros(SIZE // 4))


def test_no_good_one_left_after_overwriting_is_an_error(tmp_path: Path) -> None:
    """A live state that a broken file got into is never taken for a fresh one."""
    fill(tmp_path, 1, 2)
    damage(tmp_path, 1, 2)
    told = pytest.raises(CheckpointError, match=r"got 2 broken ones, of which step-00000002\.lcs has overwritten")
    with Store(tmp_path, run_id="a") as kept, told:
        kept.restore(live())
    with Store(tmp_path, run_id="a") as kept:
        assert kept.restore() is None  # loaded fresh: nothing was touched


def test_what_does_not_fit_is_no_reason_to_go_back(tmp_path: Path) -> None:
    """Other shapes, and what `before` raises, reach the caller with the live state untouched."""
    fill(tmp_path, 1, 2)
    tree = {**live(), "new": torch.zeros(1)}
    with Store(tmp_path, run_id="a") as kept:
        with pytest.raises(MismatchError, match="'new' of the live state is not in the file"):
            kept.restore(tree)
        with pytest.raises(ConfigError, match="no"):
            kept.restore(live(), before=lambda entry: _refuse())
        assert kept.refused == []
    assert torch.equal(tree["w"], torch.zeros(SIZE // 4))


def _refuse() -> None:
    raise ConfigError("no")


def test_before_sees_each_checkpoint_that_is_tried(tmp_path: Path) -> None:
    """Newest first, until one is good."""
    fill(tmp_path, 1, 2, 3)
    damage(tmp_path, 3)
    seen: list[int] = []
    with Store(tmp_path, run_id="a") as kept:
        kept.restore(live(), before=lambda entry: seen.append(entry.step))
    assert seen == [3, 2]


def test_save_says_where(tmp_path: Path) -> None:
    """A save returns the path of its file, also where the usual name is taken by a file that is not written over."""
    (tmp_path / "step-00000002.lcs").write_text("no checkpoint")
    with Store(tmp_path, run_id="a") as kept:
        paths = [kept.save({}, step=step) for step in (1, 2, 2, 3)]
    names = ["step-00000001.lcs", "step-00000002-2.lcs", "step-00000002-2.lcs", "step-00000003.lcs"]
    assert paths == [tmp_path / name for name in names]
    assert all(path.exists() for path in paths[1:])


def test_name_taken_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    """Another run's file that appears between two saves stays; the save takes the next name."""
    with Store(tmp_path, run_id="a") as kept:
        kept.save({}, step=1)
        kept.wait()
        theirs = tmp_path / "step-00000002.lcs"
        theirs.write_text("theirs")
        kept.save({}, step=2)
        assert [entry.path.name for entry in kept.entries()] == ["step-00000001.lcs", "step-00000002-2.lcs"]
    assert theirs.read_text() == "theirs"
