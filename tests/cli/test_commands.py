"""The other commands: each does its work, has a help with an example, and names bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from lucid.cli import COMMANDS

from .conftest import Lucid

RUN = "runs/flowers"


@pytest.fixture
def run(lucid: Lucid, flowers: str) -> str:
    """A finished run."""
    assert lucid("train", flowers, "--console", "quiet")[0] == 0
    return RUN


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_a_help_with_an_example(lucid: Lucid, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0; nothing but a line of usage is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = lucid(command, "--help")
    assert code == 0
    assert f"Example: lucid {command}" in " ".join(out.split())
    assert max(len(line) for line in out.splitlines() if not line.startswith("usage: ")) <= 80


_NOT_RUN = ("ui", "check", "replay")
"""Examples that serve, take long, or need a step that gave NaN; other tests run these commands."""


def test_example_of_every_help_runs(lucid: Lucid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed as it stands, beside the files that it names."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "run.toml").write_text(
        'name = "digits"\n[model]\nname = "mlp"\n[data]\nbatch_size = 256\n[train]\nmax_steps = 2\n'
    )
    (tmp_path / "houses.csv").write_text("rooms,price\n" + "".join(f"{n % 5},{n}.5\n" for n in range(40)))
    Image.fromarray(numpy.eye(8, dtype=numpy.uint8) * 255).save(tmp_path / "seven.png")
    for folder in ("runs/digits", "runs/digits-2"):
        assert lucid("train", "run.toml", "--console", "quiet", "--run_dir", folder)[0] == 0
    run: list[str] = []
    for command in (name for name in COMMANDS if name not in _NOT_RUN):
        for line in lucid(command, "--help")[1].splitlines():
            if line.startswith("Example: lucid "):
                words = re.split(r" (?:>|&&) ", line.removeprefix("Example: lucid "))[0].split()
                words += ["--run_dir", "runs/other", "--console", "quiet"] * (command == "train")
                code, _, err = lucid(*words)
                assert code == 0, (line, err)
                run.append(command)
    assert run == [name for name in COMMANDS if name not in _NOT_RUN]


def test_evaluate_gives_the_values_of_the_run(lucid: Lucid, run: str) -> None:
    """The test rows as at its end; the validation rows as in its records."""
    tested = json.loads(lucid("evaluate", run, "--json")[1])
    assert tested["test/loss"] == json.loads(Path(run, "test.json").read_text())["test/loss"]
    kept = json.loads(lucid("evaluate", run, "--on", "validation", "--json")[1])
    starts = {line.index(line.split()[1]) for line in lucid("evaluate", run)[1].splitlines()}
    assert len(starts) == 1  # the values stand in one column
    records = [json.loads(line) for line in Path(run, "records.jsonl").read_text().splitlines()]
    best = min(record["values"]["eval/loss"] for record in records if record["kind"] == "eval")
    assert kept["validation/loss"] == best


def test_evaluate_refuses_changed_rows(lucid: Lucid, run: str) -> None:
    """They are no longer those of the split."""
    Path("flowers.csv").write_text(Path("flowers.csv").read_text() + "1,2,a\n" * 3)
    code, _, err = lucid("evaluate", run)
    assert (code, "the data changed since the training" in err) == (2, True)


def test_predict_answers_new_rows_from_the_checkpoint_alone(lucid: Lucid, run: str) -> None:
    """Class by name with its probability, as CSV, JSON, or into a file."""
    Path("new.csv").write_text("wide,long\n1,0.1\n2,2.1\n")
    Path("flowers.csv").unlink()
    lines = lucid("predict", run, "new.csv")[1].splitlines()
    assert lines[0] == "row,answer,probability"
    assert [line.split(",")[1] in "abc" for line in lines[1:]] == [True, True]
    first = json.loads(lucid("predict", run, "new.csv", "--json")[1].splitlines()[0])
    assert first["row"] == "row 1"
    assert lucid("predict", run, "new.csv", "--out", "out.csv")[1] == "2 answers in out.csv\n"
    assert Path("out.csv").read_text().splitlines() == lines


def test_predict_undoes_the_scaling_of_a_regression(lucid: Lucid, tmp_path: Path) -> None:
    """Answers are in the target's own unit."""
    x = numpy.linspace(0, 1, 60, dtype=numpy.float32)[:, None]
    numpy.savez(tmp_path / "a.npz", x=x, y=1000 + 50 * x[:, 0])
    words = ["--data.name", "npz:a.npz", "--model.name", "mlp", "--train.epochs", "30", "--optimizer.lr", "0.01"]
    assert lucid("train", *words, "--data.batch_size", "8", "--console", "quiet")[0] == 0
    numpy.save(tmp_path / "new.npy", x[::20])
    answers = [json.loads(line)["answer"] for line in lucid("predict", "runs/a", "new.npy", "--json")[1].splitlines()]
    assert max(abs(a - b) for a, b in zip(answers, (1000 + 50 * x[::20, 0]).tolist(), strict=True)) < 10


def test_language_model_goes_on_writing(lucid: Lucid, tmp_path: Path) -> None:
    """The same seed writes the same text; temperature 0 repeats what it learnt."""
    (tmp_path / "abc.txt").write_text("abcd" * 300)
    words = ["--data.name", "text:abc.txt", "--data.options.block_size", "8", "--model.name", "gpt"]
    words += ["--model.options.layers", "1", "--model.options.heads", "2", "--model.options.width", "16"]
    words += ["--data.options.stride", "1", "--train.epochs", "4"]
    assert lucid("train", *words, "--optimizer.lr", "0.02", "--console", "quiet")[0] == 0
    (tmp_path / "start.txt").write_text("bcda")
    written = lucid("predict", "runs/abc", "start.txt", "--length", "8", "--temperature", "0")[1]
    assert written == "bcdabcdabcda\n"
    one, other = (lucid("predict", "runs/abc", "start.txt", "--length", "30")[1] for _ in range(2))
    assert one == other


def test_predict_says_what_is_odd_beside_its_answers(lucid: Lucid, run: str) -> None:
    """On the error stream; the answers are as they were."""
    Path("new.csv").write_text("wide,long\n1,0.1\n")
    Path("odd.csv").write_text("wide,long\n1,1000\n")
    assert lucid("predict", run, "new.csv")[2] == ""
    code, out, err = lucid("predict", run, "odd.csv")
    assert (code, len(out.splitlines())) == (0, 2)
    assert err.startswith("lucid: note: column 'long': half of the rows lie ")


def test_predict_and_evaluate_take_the_device_that_they_are_told(lucid: Lucid, run: str) -> None:
    """By name; one that is not here is said before anything is read."""
    Path("new.csv").write_text("wide,long\n1,0.1\n2,2.1\n")
    assert lucid("predict", run, "new.csv", "--device", "cpu") == lucid("predict", run, "new.csv")
    for words in (("predict", run, "none.csv"), ("evaluate", run)):
        code, _, err = lucid(*words, "--device", "xpu:9")
        assert (code, "xpu" in err) == (2, True), err


@pytest.mark.parametrize("name", ["none.csv", "flowers.toml"])
def test_predict_names_rows_that_do_not_fit(lucid: Lucid, run: str, name: str) -> None:
    """Missing, or another kind of file."""
    code, _, err = lucid("predict", run, name)
    assert (code, name in err) == (2, True)


def test_predict_numbers_labels_without_names(lucid: Lucid, tmp_path: Path) -> None:
    """Several labels a row from arrays, which have none: their columns stand for them."""
    x = numpy.random.default_rng(0).normal(size=(40, 2)).astype("float32")
    numpy.savez("rows.npz", x=x, y=(x > 0).astype("int64"))
    words = ("--model.name", "mlp", "--train.epochs", "30", "--console", "quiet", "--run_dir", "run")
    assert lucid("train", "--data.name", "npz:rows.npz", *words)[0] == 0
    answers = [json.loads(line)["answer"] for line in lucid("predict", "run", "rows.npz", "--json")[1].splitlines()]
    assert {"", "0", "1", "0 1"} == set(answers)


def test_inspect_shows_a_run_and_a_file(lucid: Lucid, run: str) -> None:
    """One line per checkpoint; every tensor of one."""
    out = lucid("inspect", run)[1]
    assert f"{run}/checkpoints/step-00000018.lcs  18" in out
    assert "model/layers.1.weight" in lucid("inspect", f"{run}/checkpoints/step-00000018.lcs")[1]
    assert json.loads(lucid("inspect", run, "--json")[1])[0]["meta"]["step"] in (6, 12, 18)
    newest = lucid("inspect", f"{run}/checkpoints/step-00000018.lcs")[1]
    assert lucid("inspect", f"{run}/checkpoints/last")[:2] == (0, newest)
    assert lucid("verify", f"{run}/checkpoints/last")[0] == 0
    broken = Path(run, "checkpoints", "step-00000018.lcs")
    broken.write_bytes(broken.read_bytes()[:-1])
    code, out, _ = lucid("inspect", run)
    assert (code, out.count("BAD  "), "step-00000012.lcs  12" in out) == (1, 1, True)
    assert [sorted(one)[0] for one in json.loads(lucid("inspect", run, "--json")[1])][-1] == "error"
    assert lucid("inspect", "none")[::2] == (2, "lucid: ConfigError: no such file or folder: none.\n")


def test_verify_finds_a_flipped_bit(lucid: Lucid, run: str) -> None:
    """Exit code 1, the file named."""
    assert lucid("verify", run)[0] == 0
    path = Path(run, "checkpoints/step-00000018.lcs")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    code, out, _ = lucid("verify", run)
    assert (code, f"BAD  {path}" in out) == (1, True)


def test_export_gives_the_best_weights_and_overwrites_nothing(lucid: Lucid, run: str) -> None:
    """As any safetensors reader reads them."""
    from safetensors.torch import load_file

    import lucid as library

    assert lucid("export", run, "w.safetensors")[0] == 0
    wanted = library.load_model(run).state_dict()
    found = load_file("w.safetensors")
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    code, _, err = lucid("export", run, "w.safetensors")
    assert (code, "w.safetensors exists. Nothing was changed" in err) == (2, True)
    code, _, err = lucid("export", "none", "other.safetensors")
    assert (code, err) == (2, "lucid: ConfigError: no such file or folder: none.\n")


def test_diff_names_what_differs_and_the_first_step(lucid: Lucid, run: str, flowers: str) -> None:
    """Settings, environment, last values, records."""
    lucid("train", flowers, "--run_dir", "same", "--console", "quiet")
    lucid("train", flowers, "--run_dir", "other", "--train.seed", "1", "--console", "quiet")
    same = lucid("diff", run, "same")[1]
    assert "first difference in the records: none" in same
    other = lucid("diff", run, "other")[1]
    assert "train.seed: 0 -> 1" in other
    assert "step 6 (eval)  eval/loss" in other
    assert "not the folder of a run" in lucid("diff", run, "none")[2]


def test_completion_scripts_know_commands_and_settings(lucid: Lucid) -> None:
    """For bash and zsh."""
    for shell in ("bash", "zsh"):
        code, out, _ = lucid("completion", shell)
        assert code == 0
        assert "train.gradient_accumulation_steps" in out
    assert lucid("completion", "dos")[0] == 2
    code, _, err = lucid("completion", "fish")
    assert (code, err) == (
        2,
        "lucid: ConfigError: lucid completion needs one of bash, zsh, tcsh, got fish. There is no script for fish.\n",
    )


def test_new_project_trains_by_itself_and_by_the_command(lucid: Lucid, tmp_path: Path) -> None:
    """Same bits; its own tests pass; an existing folder is left alone."""
    pytest.importorskip("sklearn")
    assert lucid("new", "mine")[0] == 0
    assert lucid("new", "mine")[0] == 2
    folder = tmp_path / "mine"
    short = ["--train.epochs", "1", "--run_dir"]

    def python(*words: str) -> str:
        threads = {**os.environ, "OMP_NUM_THREADS": "2"}  # as on a machine where nobody set it
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False, env=threads
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python("train.py", *short, "a")
    python("-m", "lucid.cli", "train", "config.toml", *short, "b")
    assert "first difference in the records: none" in python("-m", "lucid.cli", "diff", "a", "b")
    assert "2 passed" in python("-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_name_of_a_project_is_a_word(lucid: Lucid) -> None:
    """Not a path out of here."""
    code, _, err = lucid("new", "..")
    assert (code, "must be a word" in err) == (2, True)
