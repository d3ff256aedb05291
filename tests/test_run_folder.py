"""The folder of a run and the files that describe it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lucid.errors import ConfigError
from lucid.run_folder import describe_run, make_folder


def test_a_run_keeps_its_id_over_its_starts(tmp_path: Path) -> None:
    """The second start has the id of the first and stands below it."""
    first = describe_run(tmp_path, {"pid": 1}, {"train": {"epochs": 1}})
    assert describe_run(tmp_path, {"pid": 2}, {"train": {"epochs": 1}}) == first
    assert [start["pid"] for start in json.loads((tmp_path / "environment.json").read_text())["starts"]] == [1, 2]


def test_settings_stay_once_there_is_a_checkpoint(tmp_path: Path) -> None:
    """The file of settings is rewritten before the first checkpoint and never after."""
    describe_run(tmp_path, {}, {"train": {"epochs": 1}})
    describe_run(tmp_path, {}, {"train": {"epochs": 2}})
    assert "epochs = 2" in (tmp_path / "config.toml").read_text()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step-00000001.lcs").touch()
    describe_run(tmp_path, {}, {"train": {"epochs": 3}})
    assert "epochs = 2" in (tmp_path / "config.toml").read_text()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_another_kind_of_description_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    """A file that is no run's description is an error and stays as it is."""
    (tmp_path / "environment.json").write_text(text)
    with pytest.raises(ConfigError, match="not a run's description"):
        describe_run(tmp_path, {}, {})
    assert (tmp_path / "environment.json").read_text() == text


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    """The message names the folder and the system's reason."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="must be a folder that can be written"):
        make_folder(tmp_path / "file" / "run")


def test_an_address_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """s3://bucket/run does not quietly become a folder named s3: here."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="run_dir must be a folder of this machine, got 's3:/bucket/run'"):
        make_folder(Path("s3://bucket/run"))
    assert list(tmp_path.iterdir()) == []
    assert make_folder(Path("a:b/run")).is_dir()
