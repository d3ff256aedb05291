"""What `lucid check` finds and names, and where it keeps still."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lucid
import lucid.check
from lucid.check import __main__ as command
from lucid.check.report import Report, Section
from lucid.errors import ConfigError

from . import examples


def check(factory: Any, start: str = "fork") -> Report:
    return lucid.check.run(factory, start=start)


@pytest.mark.parametrize("factory", examples.HEALTHY.values(), ids=examples.HEALTHY)
def test_a_healthy_example_raises_no_alarm(factory: Any) -> None:
    """Every section is answered with yes."""
    report = check(factory)
    assert report.ok, report.text()
    assert report.exit_code == 0
    assert {s.name: s.status for s in report.sections if s.status != "ok"} == {}


SPAWNED = ("set_order",)
"""Faults that only processes which begin from nothing can show."""


@pytest.mark.parametrize("factory", examples.BROKEN, ids=lambda f: f.__name__)
def test_a_broken_example_is_found_and_named(factory: Any) -> None:
    """The section fails, and its findings name what is wrong and say what to do."""
    section, name = examples.BROKEN[factory]
    report = check(factory, "spawn" if factory.__name__ in SPAWNED else "fork")
    assert report.exit_code == 1
    found = " ".join(f"{f.name}: {f.text}" for f in report[section].findings if f.is_fault)
    assert name in found, report.text()
    assert all(finding.advice for finding in report[section].findings if finding.is_fault)


def test_there_are_more_than_twenty_broken_examples() -> None:
    """Each is a fault that people make."""
    assert len(examples.BROKEN) >= 25


def test_the_plan_says_what_the_run_does(tmp_path: Path) -> None:
    """Steps, windows, dropped rows, cadences, parameters, learning rates: all by arithmetic."""
    facts = check(examples.planned)["plan"].facts
    assert (facts["total_steps"], facts["steps_per_epoch"], facts["short_window"], facts["dropped_rows"]) == (
        9,
        3,
        1,
        3,
    )
    assert facts["log_steps"] == [2, 4, 6, 8, 9]
    assert facts["eval_steps"] == [4, 8, 9]
    assert facts["save_steps"] == [3, 6, 9]
    assert (facts["parameters"], facts["trained"], facts["frozen"]) == (67, 27, 40)
    assert [step for step, _ in facts["lr"]] == list(range(1, 10))
    assert facts["lr"][0][1] == 0.1
    assert facts["checkpoint_bytes"] > 1000
    assert facts["free_disk_bytes"] > 0
    assert facts["estimated_seconds"] > 0
    assert facts["memory_bytes"] > 1_000_000


def test_the_users_folder_is_not_touched(tmp_path: Path) -> None:
    """The run directory that the trainer has is not even made."""
    examples.RUN_DIR[:] = [str(tmp_path / "mine")]
    assert check(examples.with_run_dir).ok
    assert list(tmp_path.iterdir()) == []


def test_a_factory_that_raises_is_a_finding() -> None:
    """The error and its message stand in the report."""
    report = check(examples.raises)
    assert report.exit_code == 1
    assert report.faults[0].name == "ConfigError"
    assert "in no optimizer" in report.faults[0].text


def test_what_a_factory_must_return() -> None:
    """Anything else is said to be wrong, with what came."""
    report = check(examples.returns_nothing)
    assert "must return (trainer, train_loader)" in report.faults[0].text
    assert "NoneType" in report.faults[0].text


def test_the_report_as_json() -> None:
    """Everything is plain values, the findings with name, text and advice."""
    report = check(examples.softmax_twice)
    tree = json.loads(json.dumps(report.to_dict()))
    assert tree["ok"] is False
    assert tree["sections"]["faults"]["status"] == "fail"
    finding = tree["sections"]["faults"]["findings"][0]
    assert finding["name"] == "output"
    assert "logits" in finding["advice"]


@pytest.mark.timeout(600)
def test_the_command(tmp_path: Path) -> None:
    """`python -m lucid.check file.py:function` spawns its processes and never runs the script as a program."""
    script = tmp_path / "train.py"
    script.write_text(
        "from check import examples\n\n\ndef good():\n    return examples.plain()\n\n\n"
        "if __name__ == '__main__':\n    raise SystemExit('run as a program')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "lucid.check", f"{script}:good", "--json", "--steps", "2"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert tree["ok"] is True
    assert list(tree["sections"]) == ["plan", "resume", "repeatable", "neutral", "rows", "accumulation", "faults"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["train.py"]


def test_exit_codes_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """1 if something is to be repaired, 2 if the factory is not there, with what was looked for."""
    report = Report([Section("resume", "same bits?")])
    report["resume"].fault("rng.numpy", "differs after step 4.", "draw elsewhere")
    monkeypatch.setattr(command, "run", lambda factory, **options: report)
    script = tmp_path / "train.py"
    script.write_text("def make_trainer():\n    pass\n")
    assert command.main([f"{script}:make_trainer"]) == 1
    assert "* rng.numpy: differs after step 4." in capsys.readouterr().out
    assert command.main([f"{script}:make_trainr"]) == 2
    assert "Did you mean 'make_trainer'?" in capsys.readouterr().err
    assert command.main([f"{tmp_path}/absent.py:make_trainer"]) == 2
    assert command.main(["make_trainer"]) == 2


def test_the_module_can_be_called() -> None:
    """`lucid.check(factory)` is `lucid.check.run(factory)`."""
    assert lucid.check(examples.plain, start="fork", steps=2).ok  # type: ignore[operator]


@pytest.mark.parametrize(("options", "message"), [({"steps": 1}, "at least 2"), ({"start": "threads"}, '"spawn"')])
def test_wrong_options(options: Any, message: str) -> None:
    """Said before any work."""
    with pytest.raises(ConfigError, match=message):
        lucid.check.run(examples.plain, **options)
