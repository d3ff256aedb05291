"""`lucid train`, `resume`, `plan` and `config`: what they do, print, keep and refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lucid import TrainConfig, Trainer
from lucid.config import load, read

from .conftest import Lucid

RUN = Path("runs/flowers")


def steps(folder: Path = RUN) -> list[str]:
    """Names of the checkpoints."""
    return sorted(path.stem for path in folder.glob("checkpoints/*.lcs"))


def test_train_leaves_a_run_and_says_where(lucid: Lucid, flowers: str) -> None:
    """Checkpoint, config, records, report; test accuracy; what to type next."""
    code, out, _ = lucid("train", flowers, "--console", "plain")
    assert code == 0
    for name in ("config.toml", "environment.json", "records.jsonl", "report.html", "test.json", "checkpoints/last"):
        assert (RUN / name).is_file()
    for line in ("Run flowers finished: 18 steps, 3 epochs.", "Test on 9 rows", "lucid predict runs/flowers ROWS.csv"):
        assert line in out
    assert json.loads((RUN / "test.json").read_text())["rows"] == 9


def test_train_again_says_once_that_the_run_is_finished(lucid: Lucid, flowers: str) -> None:
    """With what was reached and how to go on; it trains nothing."""
    lucid("train", flowers, "--console", "quiet")
    before = (RUN / "records.jsonl").read_bytes(), steps()
    code, out, err = lucid("train", flowers, "--console", "plain")
    assert (code, err, before) == (0, "", ((RUN / "records.jsonl").read_bytes(), steps()))
    (said,) = [line for line in out.splitlines() if "finished" in line]
    start = r"run runs/flowers is finished at step 18 \(best eval/loss \S+, last eval/accuracy \S+\), nothing "
    assert re.match(start, said)
    assert said.endswith("nothing was trained. To go on, raise epochs (3); for a new run, choose another run_dir.")
    assert out.count("eval/loss") == 1
    out = lucid("train", flowers, "--run_dir", "runs/other", "--train.max_steps", "1")[1]
    assert "\nRun other finished: 1 step" in out


def test_config_toml_starts_the_same_run(lucid: Lucid, flowers: str) -> None:
    """The file in the folder has everything in effect."""
    lucid("train", flowers, "--console", "quiet", "--train.max_grad_norm", "none")
    assert load(RUN / "config.toml", environ={}).train.max_grad_norm is None
    code, out, _ = lucid("train", str(RUN / "config.toml"), "--console", "plain")
    assert code == 0
    assert "is finished at step 18" in out


def test_a_table_trains_without_a_word_about_the_model(lucid: Lucid, flowers: str) -> None:
    """The folder and its checkpoints name the one that was taken; train again, resume and predict take the same."""
    words = ("--data.name", "csv:flowers.csv", "--train.epochs", "1", "--console", "quiet")
    assert lucid("train", *words)[0] == 0
    assert load(RUN / "config.toml", environ={}).model.name == "mlp"
    code, _, err = lucid("train", *words)
    assert (code, err) == (0, "")
    assert lucid("resume", str(RUN), "--train.epochs", "2", "--console", "quiet")[0] == 0
    assert lucid("predict", str(RUN), "flowers.csv")[0] == 0
    assert "model mlp: MLP" in " ".join(lucid("plan", *words[:2])[1].split())


def test_auto_goes_on_only_with_the_model_that_it_means(lucid: Lucid, flowers: str) -> None:
    """A folder with another model is refused, as with any other change."""
    lucid("train", "--train.max_steps", "1", "--model.name", "mlp", "--console", "quiet")
    code, _, err = lucid("train", "--train.max_steps", "1", "--console", "quiet")
    assert code == 2
    assert " ".join(err.split()).count("model.name 'mlp' 'cnn' refused") == 1


def test_quiet_and_json_print_what_they_say(lucid: Lucid, flowers: str) -> None:
    """Nothing; and only records."""
    assert lucid("train", flowers, "--console", "quiet")[1] == ""
    out = lucid("train", flowers, "--console", "json", "--run_dir", "b")[1]
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert (kinds[0], kinds[-1]) == ("plan", "end")


def test_changed_setting_is_shown_and_refused_before_the_data(lucid: Lucid, flowers: str) -> None:
    """With the diff, and nothing overwritten."""
    lucid("train", flowers, "--console", "quiet")
    Path("flowers.csv").unlink()
    before = (RUN / "config.toml").read_bytes()
    code, _, err = lucid("train", flowers, "--optimizer.lr", "0.5")
    assert code == 2
    assert "optimizer.lr: 0.02 -> 0.5  (refused)" in err
    assert "--run_dir runs/NAME" in err
    assert (RUN / "config.toml").read_bytes() == before


def test_more_epochs_take_effect_and_are_said(lucid: Lucid, flowers: str) -> None:
    """The run goes on to the new end, and its file says so."""
    lucid("train", flowers, "--console", "quiet")
    code, _, err = lucid("resume", str(RUN), "--train.epochs", "4", "--console", "quiet")
    assert code == 0
    assert "train.epochs: 3 -> 4  (takes effect)" in err
    assert steps()[-1] == "step-00000024"
    assert read(RUN / "config.toml").values["train"]["epochs"] == 4
    code, out, err = lucid("resume", str(RUN), "--train.epochs", "5", "--console", "plain")
    assert (code, err, out.count("train.epochs: 4 -> 5 (takes effect)")) == (0, "", 1)  # said once


def test_resume_needs_a_run(lucid: Lucid) -> None:
    """A folder that is one."""
    assert lucid("resume")[::2] == (
        2,
        "lucid: ConfigError: lucid resume needs the folder of a run: lucid resume runs/digits.\n",
    )
    assert "no such folder: none" in lucid("resume", "none")[2]
    Path("empty").mkdir()
    assert "empty holds no run" in lucid("resume", "empty")[2]


@pytest.mark.parametrize("words", [("resume", "mine"), ("train", "--run_dir", "mine")])
def test_run_of_a_script_is_not_taken_for_one_of_the_command(lucid: Lucid, words: tuple[str, ...]) -> None:
    """Only the script can go on with it."""
    model = torch.nn.Linear(2, 1)
    rows = DataLoader(TensorDataset(torch.ones(4, 2), torch.ones(4, 1)))
    Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.functional.mse_loss,
            config=TrainConfig(epochs=1), run_dir="mine", reports=[]).fit(rows)  # fmt: skip
    code, out, err = lucid(*words)
    assert (code, out) == (2, "")
    assert err.startswith("lucid: ConfigError: mine has the run of a script, ")
    assert "start the script again" in err


def test_moved_run_is_resumed_where_it_is(lucid: Lucid, flowers: str) -> None:
    """The folder's name is no setting of the run."""
    lucid("train", flowers, "--console", "quiet", "--train.max_steps", "6")
    RUN.rename("elsewhere")
    assert lucid("resume", "elsewhere", "--train.max_steps", "9", "--console", "quiet")[0] == 0
    assert steps(Path("elsewhere"))[-1] == "step-00000009"
    assert not RUN.exists()


def test_resume_trains_in_no_other_folder(lucid: Lucid, flowers: str) -> None:
    """It would begin there anew."""
    lucid("train", flowers, "--console", "quiet")
    code, _, err = lucid("resume", str(RUN), "--run_dir", "b")
    assert (code, "goes on in its folder runs/flowers, got run_dir 'b'" in err) == (2, True)
    assert not Path("b").exists()
    assert lucid("resume", str(RUN) + "/", "--console", "quiet")[0] == 0


def test_ending_counts_and_names_what_lengthens_the_run(lucid: Lucid, flowers: str) -> None:
    """One step is no plural, and epochs do nothing where max_steps ends the run."""
    out = lucid("train", flowers, "--train.max_steps", "1", "--console", "plain")[1]
    assert "Run flowers finished: 1 step, 0 epochs." in out
    assert "Predicts kind." in out
    assert "lucid resume runs/flowers --train.max_steps 2 " in out


def test_next_commands_can_be_typed_where_lucid_is_not_on_the_path(
    lucid: Lucid, flowers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the path that this command was called by."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "lucid").touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", ["bin/lucid", "train"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert "  bin/lucid ui runs " in lucid("train", flowers, "--console", "plain")[1]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "  lucid ui runs " in lucid("train", flowers, "--console", "plain")[1]


def test_train_from_a_checkpoint_takes_the_settings_inside(lucid: Lucid, flowers: str) -> None:
    """File and options cover them."""
    lucid("train", flowers, "--console", "quiet")
    checkpoint = str(RUN / "checkpoints" / "step-00000018.lcs")
    assert lucid("train", "--from", checkpoint, "--name", "again", "--console", "quiet", "--train.seed", "1")[0] == 0
    config = load("runs/again/config.toml", environ={})
    assert (config.model.options, config.train.seed, config.data.name) == ({"width": 8}, 1, "csv:flowers.csv")


def test_environment_reaches_the_command(lucid: Lucid, flowers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the command line."""
    monkeypatch.setenv("LUCID_TRAIN__EPOCHS", "7")
    assert "epochs = 7" in lucid("config", flowers)[1]
    assert "epochs = 8" in lucid("config", flowers, "--train.epochs", "8")[1]


def test_config_prints_a_file_that_reads_back(lucid: Lucid, flowers: str) -> None:
    """Every setting, defaults included."""
    Path("full.toml").write_text(lucid("config", flowers)[1])
    assert load("full.toml", environ={}) == load(flowers, environ={}).resolved(Path(flowers))


def test_plan_says_what_a_run_would_do_and_writes_nothing(lucid: Lucid, flowers: str) -> None:
    """Steps, cadences, rows."""
    code, out, _ = lucid("plan", flowers)
    assert code == 0
    for line in ("steps          18; per epoch 6", "evaluate at    6, 12, 18", "train 42, validation 9, test 9"):
        assert " ".join(line.split()) in " ".join(out.split())
    assert "lr 0.02 at 1, " not in out
    assert "lr 0.02 at 1, " in lucid("plan", flowers, "--plot")[1]
    assert not Path("runs").exists()


def test_plan_lists_loss_and_parameter_groups(lucid: Lucid, flowers: str) -> None:
    """What the loss is a mean over; each group with its rate, its decay and what it holds."""
    out = lucid("plan", flowers, "--optimizer.options.lr_by_pattern", '{"layers.1.*" = 0.1}')[1]
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "loss cross_entropy, the mean over targets (those equal to -100 are left out)" in lines
    assert "parameters group lr weight_decay tensors parameters" in lines
    assert "lr x 0.1, no decay 0.002 0 1 8" in lines
    assert "lr x 1 0.02 0.05 2 88" in lines


def test_plan_refuses_what_the_run_would_refuse(lucid: Lucid, flowers: str) -> None:
    """A schedule longer than the run, an unknown tracker, an option that is neither true nor false."""
    for words, message in (
        (("--scheduler.options.warmup_steps", "19"), "at most total_steps (18), got 19"),
        (("--trackers", "csw"), "got 'csw'. Did you mean 'csv'?"),
        (("--plot", "a.html"), "--plot must be true or false, or stand alone for true, got 'a.html'"),
    ):
        code, _, err = lucid("plan", flowers, *words)
        assert (code, message in err) == (2, True), err
    assert lucid("train", flowers, "--profile", "yes")[0] == 2


def test_foreign_folder_is_left_alone(lucid: Lucid, flowers: str) -> None:
    """A file, a folder with other things: nothing is overwritten."""
    RUN.mkdir(parents=True)
    (RUN / "thesis.txt").write_text("mine")
    code, _, err = lucid("train", flowers)
    assert code == 2
    assert "holds other things (thesis.txt) and no run" in err
    assert [path.name for path in RUN.iterdir()] == ["thesis.txt"]
    assert "is a file" in lucid("train", flowers, "--run_dir", "flowers.csv")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "there is no command 'trian'. Did you mean 'train'?"),
        (["train", "none.toml"], "cannot read the configuration file none.toml"),
        (["train", "digits"], "'digits' is not a configuration file"),
        (["train", "rows.csv"], "(.toml, .yaml, .yml). For a table: --data.name csv:rows.csv."),
        (["train", "--data.name", "rows.csv"], "'rows.csv' is not known. Did you mean 'csv:rows.csv'?"),
        (["predict", "none", "rows.csv"], "no such file or folder: none."),
        (["evaluate", "none"], "no such file or folder: none."),
        (["train", "--data.name", "csv:none.csv"], "cannot read the table none.csv: No such file or directory.\n"),
        (["train", "--compile", "true"], "unknown key 'compile' (option --compile). Did you mean 'train.compile'?"),
        (
            ["train", "--train.epoch", "3"],
            "unknown key 'train.epoch' (option --train.epoch). Did you mean 'train.epochs'?",
        ),
        (["train", "--epochs", "3"], "Did you mean 'train.epochs'?"),
        (["train", "--consle", "plain"], "unknown option --consle. Did you mean '--console'?"),
        (["train", "--console", "loud"], "--console must be one of auto, rich, plain, json, quiet, got 'loud'"),
        (["train", "flowers.toml", "more"], "'more' belongs to no option"),
        (["train", "flowers.toml", "--data.options.target", "knid"], "has no column 'knid'. Did you mean 'kind'?"),
        (["train", "flowers.toml", "--model.name", "cnn"], "'cnn' takes images (channels, height, width)"),
        (
            ["train", "flowers.toml", "--model.options.wdith", "3"],
            "unknown key 'model.options.wdith'. Did you mean 'width'?",
        ),
        (["train", "flowers.toml", "--data.validation", "0.6", "--data.test", "0.5"], "must leave rows to train on"),
        (["train", "flowers.toml", "--train.device", "cuda:7"], "cuda:7"),
    ],
)
def test_bad_input_is_one_line_and_code_2(lucid: Lucid, flowers: str, words: list[str], message: str) -> None:
    """No traceback, nothing written."""
    code, out, err = lucid(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert not Path("runs").exists()


def test_traceback_is_there_when_asked_for(lucid: Lucid) -> None:
    """For whoever looks for the place in the code."""
    from lucid.errors import ConfigError

    with pytest.raises(ConfigError):
        lucid("train", "none.toml", "--traceback")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_stopped_run_has_a_checkpoint_and_its_exit_code(tmp_path: Path, flowers: str, number: int, code: int) -> None:
    """And says how to go on."""
    words = ["train", flowers, "--train.epochs", "100000", "--console", "plain"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lucid.cli", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while not list(tmp_path.glob("runs/flowers/checkpoints/*.lcs")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "lucid resume runs/flowers" in out
    assert err == ""  # said once
    newest = max(tmp_path.glob("runs/flowers/checkpoints/*.lcs")).name
    assert number != signal.SIGINT or f"Newest checkpoint: runs/flowers/checkpoints/{newest}." in out


def test_help_imports_no_torch() -> None:
    """So that it answers at once."""
    source = (
        "import sys; from lucid.cli import main; main(['--help']); main(['--version']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("False")
    assert "lucid train run.toml --optimizer.lr 1e-3" in done.stdout


def test_profile_says_where_the_time_went(lucid: Lucid, flowers: str) -> None:
    """Each stage has its seconds in the records; a trace is there only where it was asked for."""
    assert lucid("train", flowers, "--console", "quiet", "--profile")[0] == 0
    records = [json.loads(line) for line in (RUN / "records.jsonl").read_text().splitlines()]
    stages = {"time/data", "time/forward", "time/backward", "time/optimizer", "time/other"}
    assert all(stages <= set(record["values"]) for record in records if record["kind"] == "log")
    assert not (RUN / "trace.json").exists()
    traced = ("--console", "quiet", "--run_dir", "traced", "--trace", "--train.epochs", "6")
    assert lucid("train", flowers, *traced)[0] == 0
    assert json.loads(Path("traced/trace.json").read_text())["traceEvents"]


def test_trackers_get_the_records_too(lucid: Lucid, flowers: str) -> None:
    """A tracker named in the settings has the values of the run; an unknown one is refused before any work."""
    assert lucid("train", flowers, "--console", "quiet", "--trackers", "csv")[0] == 0
    table = next(RUN.rglob("*.csv")).read_text().splitlines()
    assert "train/loss" in table[0]
    assert len(table) > 3
    code, _, err = lucid("train", flowers, "--run_dir", "other", "--trackers", "csv,tensorbord")
    assert code == 2
    assert "Did you mean 'tensorboard'?" in err
    assert not Path("other").exists()


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        (2, (), "2 rows are too few to keep any for validation (data.validation 0.15) and test (data.test 0.15): "
                "nothing is evaluated. Add rows or raise the share."),
        (5, ("--data.validation", "0"), "5 rows are too few to keep any for test (data.test 0.15): "
                                        "the model is not tested at the end. Add rows or raise the share."),
        (5, ("--data.validation", "0", "--data.test", "0"), None),
    ],
)  # fmt: skip
def test_rows_too_few_for_all_parts_are_told(
    lucid: Lucid, tmp_path: Path, rows: int, settings: tuple[str, ...], said: str | None
) -> None:
    """In one line, by the plan and at the start; not if nobody asked for that part."""
    (tmp_path / "few.csv").write_text("a,y\n" + "".join(f"{number},{'xz'[number % 2]}\n" for number in range(rows)))
    words = ("--data.name", "csv:few.csv", "--model.name", "mlp", "--train.epochs", "1", *settings)
    plan, err = lucid("plan", *words)[1], lucid("train", *words, "--console", "plain")[2]
    notes = [line.split(None, 1)[1] for line in plan.splitlines() if line.startswith("  note ")]
    assert (notes, err) == (([said], f"lucid: {said}\n") if said else ([], ""))
    assert lucid("train", *words, "--console", "quiet", "--run_dir", "runs/b")[2] == ""


def test_parts_that_the_data_made_itself_are_not_too_few(lucid: Lucid, tmp_path: Path) -> None:
    """A factory of (train, validation) has no rows for a test because it gave none."""
    (tmp_path / "own_parts.py").write_text(
        "import torch\nrows = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.arange(4) % 2)\n"
        "def parts():\n    return rows, rows\n"
    )
    out, err = lucid("plan", "--data.name", "own_parts:parts")[1:]
    assert ("  note " in out, err) == (False, "")
    train = ("train", "--data.name", "own_parts:parts", "--train.epochs", "1")
    assert ["\n\n\n" in lucid(*train)[1] for _ in range(2)] == [False, False]


def test_picture_of_the_rate_fits_the_terminal(lucid: Lucid, monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow one thins it."""
    widths = []
    for columns in ("100", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        picture = [line for line in lucid("plan", "--plot")[1].splitlines() if line.startswith("lr  ")]
        widths.append(max(map(len, picture)))
    assert widths == [74, 44]


def test_what_to_type_next_is_never_cut(lucid: Lucid, flowers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command is for stands beside it, or below it in a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "100")
    wide = lucid("train", flowers, "--console", "plain")[1].partition("Next:\n")[2].splitlines()
    monkeypatch.setenv("COLUMNS", "60")
    narrow = lucid("train", flowers, "--console", "plain")[1].partition("Next:\n")[2].splitlines()
    assert wide[0].split("   ")[0] == narrow[0] == "  lucid ui runs"
    assert (len(wide), len(narrow), narrow[1]) == (4, 8, "      see its curves in a browser")
    assert max(map(len, narrow)) <= 60
