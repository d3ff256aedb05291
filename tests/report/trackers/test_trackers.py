"""Each tracker gets the same names on one step axis, and a resumed run stays one run."""

from __future__ import annotations

import csv
import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lucid.errors import ConfigError
from lucid.records import Record
from lucid.report import Reports
from lucid.report.trackers import TRACKERS, make
from lucid.report.trackers.base import recall, remember, settings
from report.trackers.runs import LOSS, broken_run, log, plan

_STEPS = list(range(1, 9))


def test_no_tracker_library_is_loaded_before_it_is_used() -> None:
    """The trackers' own module loads none of the libraries."""
    code = (
        "import lucid.report.trackers, sys\n"
        "print([n for n in ('wandb', 'mlflow', 'trackio', 'tensorboard', 'torch') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_unknown_tracker_names_the_nearest(tmp_path: Path) -> None:
    """A misspelt name is an error with a proposal."""
    with pytest.raises(ConfigError, match=r"a tracker must be one of 'csv', .* got 'tensorbord'\. Did you mean"):
        make("tensorbord", tmp_path)


def test_unknown_option_is_an_error(tmp_path: Path) -> None:
    """The message has the tracker and the option."""
    with pytest.raises(ConfigError, match=r"options of tracker 'csv': .*unexpected keyword argument 'projekt'"):
        make("csv", tmp_path, projekt="x")


def test_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is the command that helps."""
    monkeypatch.setitem(TRACKERS, "wandb", ("wandb", "WandbTracker", "no_such_library"))
    with pytest.raises(ConfigError, match=r"no_such_library\. Install it: pip install 'lucid-loop\[wandb\]'"):
        make("wandb", tmp_path)


def test_settings_are_config_and_plan_in_dotted_names(tmp_path: Path) -> None:
    """A tracker shows what the run was set to and what came of it."""
    (tmp_path / "config.toml").write_text("[train]\nseed = 7\nx = [1, 2]\n")
    assert settings(tmp_path, plan()) == {
        "train.seed": 7,
        "train.x": "[1, 2]",
        "plan.model": "MLP",
        "plan.total_steps": 8,
    }


def test_memory_of_one_tracker_does_not_touch_another(tmp_path: Path) -> None:
    """Ids of several trackers stand in one file."""
    assert recall(tmp_path, "wandb") is None
    remember(tmp_path, "wandb", "a")
    remember(tmp_path, "mlflow", "b")
    assert (recall(tmp_path, "wandb"), recall(tmp_path, "mlflow")) == ("a", "b")


def test_csv_has_one_row_per_record_after_a_resume(tmp_path: Path) -> None:
    """Rows after the checkpoint are gone, new columns are filled in, NaN stays NaN."""
    broken_run("csv", tmp_path)
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [*_STEPS, 8]
    assert [row[LOSS] for row in rows[:4]] == ["1.0", "0.5", "nan", "0.25"]
    assert rows[-1]["eval/loss"] == "0.25"
    assert rows[-1][LOSS] == rows[0]["eval/loss"] == ""


def test_csv_survives_a_torn_last_line(tmp_path: Path) -> None:
    """A half row is dropped before the next one is added."""
    tracker = make("csv", tmp_path)
    tracker.write(log(1))
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("log,2,1,102.0,0.")
    tracker = make("csv", tmp_path)
    tracker.write(log(2))
    assert (tmp_path / "metrics.csv").read_text().splitlines()[1:] == ["log,1,1,101.0,1.0,0.5", "log,2,1,102.0,0.5,0.5"]


def test_csv_quotes_names_that_hold_commas(tmp_path: Path) -> None:
    """A name of any kind comes back the same."""
    tracker = make("csv", tmp_path)
    tracker.write(Record("log", 1, 1, 0.0, {'a,"b"\nc': 1.0}))
    tracker.write(log(2))
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]['a,"b"\nc'] == "1.0"
    assert len(rows) == 2


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    """TensorBoard's own reader gives every step once, with the record's time and NaN kept."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    broken_run("tensorboard", tmp_path)
    found = events.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    scalars = found.Scalars(LOSS)
    assert [event.step for event in scalars] == _STEPS
    assert math.isnan(scalars[2].value)
    assert [event.wall_time for event in scalars] == [100.0 + step for step in _STEPS]
    assert [event.step for event in found.Scalars("eval/loss")] == [8]
    assert "train.seed" in str(found.Tensors("settings/text_summary")[0].tensor_proto)


def _wandb_records(path: Path) -> list[Any]:
    """Return the messages in a W&B transaction log: blocks of 32 KiB, each piece with checksum, length and type."""
    message = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record
    data, at, parts, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = message()
            record.ParseFromString(parts)
            found.append(record)
            parts = b""
    return found


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_run_keeps_its_id_and_step_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes write to one run id, values are under the records' names with their own step."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")
    broken_run("wandb", tmp_path, pause=1.1)  # W&B names a folder by the second
    logs = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert {path.name for path in logs} == {f"run-{recall(tmp_path, 'wandb')}.wandb"}
    history = [record.history for path in logs for record in _wandb_records(path) if record.HasField("history")]
    points = [{"/".join(item.nested_key) or item.key: item.value_json for item in row.item} for row in history]
    steps = [int(point["step"]) for point in points if LOSS in point]
    assert steps == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8]
    assert [point[LOSS] for point in points if point["step"] == "3"] == ["NaN"]
    assert [point["step"] for point in points if "eval/loss" in point] == ["8"]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_local_store_keeps_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is one, finished, with settings as parameters, changes as tags and every step of every value."""
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    broken_run("mlflow", tmp_path / "runs" / "one")
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("lucid")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "one")
    assert run.data.params["train.seed"] == "7"
    assert run.data.tags["changed.train.epochs"] == "1 -> 2"
    history = client.get_metric_history(run.info.run_id, LOSS)
    assert sorted({point.step for point in history}) == _STEPS
    assert [math.isnan(point.value) for point in history if point.step == 3] == [True]


@pytest.mark.filterwarnings("ignore")
def test_trackio_keeps_one_run(tmp_path: Path) -> None:
    """A process of its own, because Trackio reads its folder when it is loaded."""
    pytest.importorskip("trackio")
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from report.trackers.runs import LOSS, broken_run\n"
        "broken_run('trackio', Path(sys.argv[1]))\n"
        "from trackio.sqlite_storage import SQLiteStorage as store\n"
        "steps = {row['step'] for row in store.get_logs('lucid', 'one') if LOSS in row}\n"
        "names = [each['name'] for each in store.get_run_records('lucid')]\n"
        "print('RESULT', names, sorted(steps))\n"
    )
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "one"), str(Path(__file__).parents[2])],
        capture_output=True, text=True, env=environment, timeout=100,
    )  # fmt: skip
    assert f"RESULT ['one'] {_STEPS}" in done.stdout, done.stdout + done.stderr


def test_tracker_that_breaks_does_not_stop_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that cannot be written costs the table, not the training."""
    (tmp_path / "file").write_text("")
    reports = Reports([make("csv", tmp_path / "file" / "run")])
    reports.write(log(1))
    reports.write(log(2))
    reports.close()
    assert capsys.readouterr().err.count("CsvTracker failed") == 1
