"""Only runs inside the folder are found, and nothing outside is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lucid.dashboard.folder import Folder


def _run(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "records.jsonl").write_text("")


def test_runs_are_found_at_any_depth_by_their_relative_name(tmp_path: Path) -> None:
    """A run is a folder with records; folders of checkpoints and hidden ones are not looked into."""
    for name in ("a", "group/b", "group/deep/er/c", "a/nested", ".hidden/d", "x/checkpoints/e", "x/wandb/f"):
        _run(tmp_path / name)
    assert sorted(Folder(tmp_path).runs()) == ["a", "group/b", "group/deep/er/c"]


def test_folder_that_is_a_run_is_found(tmp_path: Path) -> None:
    """The folder of one run works too."""
    _run(tmp_path / "a")
    assert Folder(tmp_path / "a").runs() == {".": tmp_path / "a"}


@pytest.mark.parametrize("name", ["..", "../secret", "/etc", "a/..", "a/../../secret", "a\0", "", "A", "group"])
def test_name_that_was_not_found_is_no_run(tmp_path: Path, name: str) -> None:
    """No way of writing a path leads anywhere."""
    _run(tmp_path / "runs" / "a")
    _run(tmp_path / "secret")
    assert Folder(tmp_path / "runs").run(name) is None


def test_links_that_lead_outside_are_not_followed(tmp_path: Path) -> None:
    """Neither a linked run, nor linked records, nor a linked file of a run."""
    _run(tmp_path / "secret")
    (tmp_path / "secret" / "config.toml").write_text("key = 1")
    runs = tmp_path / "runs"
    _run(runs / "a")
    (runs / "linked").symlink_to(tmp_path / "secret")
    (runs / "b").mkdir()
    (runs / "b" / "records.jsonl").symlink_to(tmp_path / "secret" / "records.jsonl")
    (runs / "a" / "config.toml").symlink_to(tmp_path / "secret" / "config.toml")
    folder = Folder(runs)
    assert list(folder.runs()) == ["a"]
    assert folder.read(runs / "a" / "config.toml") is None


def test_link_within_the_folder_is_read(tmp_path: Path) -> None:
    """A link that stays inside is a file like any other; a loop is none."""
    _run(tmp_path / "a")
    (tmp_path / "shared.toml").write_text("key = 1")
    (tmp_path / "a" / "config.toml").symlink_to(tmp_path / "shared.toml")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "again").symlink_to(tmp_path / "a")
    folder = Folder(tmp_path)
    assert list(folder.runs()) == ["a"]
    assert folder.read(tmp_path / "a" / "config.toml") == {"key": 1}
    assert folder.read(tmp_path / "loop") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.toml", "= ["), ("a.json", "{"), ("b.json", "[" * 100_000), ("last", "x.lcs")],
    ids=["toml", "json", "deep", "text"],
)
def test_broken_file_comes_as_text(tmp_path: Path, name: str, text: str) -> None:
    """What cannot be parsed is shown as it is."""
    (tmp_path / name).write_text(text)
    assert Folder(tmp_path).read(tmp_path / name) == text
