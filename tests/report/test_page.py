"""The report is one file that opens anywhere, shows what happened, and runs nothing that stands in the files."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import lucid.report.page as page_module
from browser import open_page, until
from lucid import assets
from lucid.errors import RecordError
from lucid.records import Record
from lucid.report import JsonlReport
from lucid.report.page import script_data, write_page

pytestmark = pytest.mark.skipif(assets.plotly_script() is None, reason="needs plotly")

HOSTILE = "</script><script>window.hit=1</script><img src=x onerror='window.hit=1'><b>bold</b>"


def make_run(folder: Path, steps: int = 100, name: str = "digits", extra: str = "eval/accuracy") -> Path:
    """Write a run of `steps` steps with a skip, a resume and an end."""
    report = JsonlReport(folder / "records.jsonl")
    plan = {"name": name, "model": "MLP", "total_steps": steps, "monitor": extra, "notes": [name]}
    report.write(Record("plan", 0, 1, 1000.0, info=plan))
    for step in range(1, steps + 1):
        values = {"train/loss": 1 / step, "train/lr": 1e-3, "train/grad_norm": 1.0, "train/rows": step * 32}
        report.write(Record("log", step, 1, 1000.0 + step, values))
        if step == steps // 2:
            bad = {"train/loss": math.nan, "train/grad_norm": math.inf}
            report.write(Record("skip", step, 1, 1000.5 + step, bad, {"reason": name, "parameter": name}))
            changes = [{"setting": name, "was": 1, "now": 2, "rule": name}]
            report.write(Record("resume", step, 1, 1000.6 + step, info={"from": step, "changes": changes}))
    report.write(Record("eval", steps, 1, 1001.0 + steps, {"eval/loss": 0.5, extra: 0.75}, {"best": True}))
    report.write(Record("save", steps, 1, 1001.0 + steps, {"bytes": 10.0}, {"path": f"checkpoints/{name}"}))
    report.write(Record("end", steps, 1, 1002.0 + steps, info={"reason": "all epochs done", "next": name}))
    report.close()
    return folder


def data_of(page: Path) -> Any:
    """Return what the page draws."""
    found = re.search(r'id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_page_has_every_part(tmp_path: Path) -> None:
    """Curves, figures, tables and files of the run are all on the page."""
    make_run(tmp_path)
    (tmp_path / "config.toml").write_text("[optimizer]\nlr = 0.00123\n")
    (tmp_path / "environment.json").write_text('{"versions": {"torch": "2.13.0+cpu"}}')
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000100.lcs").write_bytes(b"12345")
    path = write_page(tmp_path)
    assert path == tmp_path / "report.html"
    text = path.read_text("utf-8")
    for part in ("optimizer.lr", "0.00123", "versions.torch", "2.13.0+cpu", "step-00000100.lcs", "5 B",
                 "finished: all epochs done", "left-out steps", "best eval/accuracy", "MLP"):  # fmt: skip
        assert part in text, part
    titles = [chart["title"] for chart in data_of(path)]
    assert titles == ["Loss", "accuracy", "Learning rate", "Gradient norm before clipping"]


def test_non_finite_values_are_gaps_with_a_mark(tmp_path: Path) -> None:
    """A NaN is no number in the curve, and its step and word are kept."""
    make_run(tmp_path)
    path = write_page(tmp_path)
    assert path is not None
    points = data_of(path)[0]["lines"][0]["points"]
    assert [(points["step"][at], word) for at, word in points["marks"]] == [(50, "nan")]
    at = points["marks"][0][0]
    assert points["y"][at] is None
    assert points["smooth"][at] is None


def test_best_evaluation_has_the_star(tmp_path: Path) -> None:
    """The star stands on the step that was best by the monitor."""
    make_run(tmp_path)
    path = write_page(tmp_path)
    assert path is not None
    line = data_of(path)[1]["lines"][0]
    assert line["points"]["step"][line["best"]] == 100


def test_page_of_a_long_run_stays_small_and_keeps_the_spike(tmp_path: Path) -> None:
    """20,000 records make at most 2,000 points per curve; the one spike is among them."""
    lines = [
        Record("log", step, 1, float(step), {"train/loss": 99.0 if step == 12_345 else 1.0}).to_line()
        for step in range(20_000)
    ]
    (tmp_path / "records.jsonl").write_text("".join(lines))
    path = write_page(tmp_path)
    assert path is not None
    points = data_of(path)[0]["lines"][0]["points"]
    assert len(points["y"]) <= 2000
    assert points["step"][points["y"].index(99.0)] == 12_345


def test_records_are_read_piece_by_piece_and_log_records_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with the length of a run: of 10,000 records 2 are kept, and every point is in its curve."""
    lines = [Record("log", step, 1, 0.0, {"train/loss": 1.0}).to_line() for step in range(1, 10_000)]
    (tmp_path / "records.jsonl").write_text(Record("plan", 0).to_line() + "".join(lines))
    monkeypatch.setattr(page_module, "_PIECE_BYTES", 10_000)
    run = page_module.read_run(tmp_path)
    assert [(record.kind, record.step) for record in run.records] == [("plan", 0), ("log", 9_999)]
    assert len(run.curves.numbers("train/loss")) == 9_999


def test_page_without_plotly_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No plotly, no page, and the command that helps."""
    make_run(tmp_path)
    monkeypatch.setattr(assets, "plotly_script", lambda: None)
    assert write_page(tmp_path) is None
    assert "pip install 'lucid-loop[demo]'" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_page_of_a_folder_without_records_is_an_error(tmp_path: Path) -> None:
    """The message says what is missing."""
    with pytest.raises(RecordError, match=r"must hold records\.jsonl"):
        write_page(tmp_path)


def test_page_of_an_empty_or_broken_file_is_written(tmp_path: Path) -> None:
    """Nothing recorded yet, and lines that are no records, are said on the page."""
    (tmp_path / "records.jsonl").write_bytes(b"garbage\n\xff\xfe\n")
    (tmp_path / "config.toml").write_bytes(b"= \xff [broken")
    (tmp_path / "environment.json").write_text("[" * 100_000)
    path = write_page(tmp_path)
    assert path is not None
    assert "2 lines of records.jsonl are broken" in path.read_text("utf-8")


def test_script_data_cannot_leave_its_element() -> None:
    """No character that could end a script element is in it."""
    text = script_data({"a": HOSTILE, "b": "<!--", "c": "&"})
    assert not set("<>&") & set(text)
    assert json.loads(text)["a"] == HOSTILE


def test_hostile_names_run_nothing_in_a_browser(tmp_path: Path, chromium: Any) -> None:
    """Markup in every text of a run shows as text: no script, no element, no request, no error."""
    make_run(tmp_path, name=HOSTILE, extra=f"eval/{HOSTILE}")
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write(Record("log", 101, 1, 2000.0, {"time/<b>x</b>": 1.0, "time/data": 1.0}).to_line())
    (tmp_path / "config.toml").write_text(f'[train]\nname = """{HOSTILE}"""\n')
    (tmp_path / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE, "diff": f"a\n{HOSTILE}"}))
    path = write_page(tmp_path)
    assert path is not None
    shown = open_page(chromium, path.as_uri(), path.as_uri())
    shown.page.wait_for_selector(".main-svg")
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")  # paints the charts below the window too
    shown.page.click("summary")
    assert shown.page.evaluate("window.hit") is None
    assert shown.page.locator("b, img").count() == 0
    assert shown.page.inner_text("h1") == HOSTILE
    assert shown.page.inner_text("p.warn") == HOSTILE
    assert shown.page.text_content(".legendtext:has-text('x')").replace("\u200b", "") == "<b>x</b>"
    assert shown.trouble == []


def test_page_works_by_keyboard_and_says_its_curves_in_words(tmp_path: Path, chromium: Any) -> None:
    """Every control is reached with Tab and has a name; each chart has a sentence for who does not see it."""
    make_run(tmp_path)
    path = write_page(tmp_path)
    assert path is not None
    shown = open_page(chromium, path.as_uri(), path.as_uri(), viewport={"width": 420, "height": 900})
    page = shown.page
    page.wait_for_selector(".main-svg")
    reached = []
    for _ in range(4):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    assert reached == ["theme", "x", "log", "smooth"]
    assert "train/loss: last 0.01 at step 100, lowest 0.01 at step 100, highest 1 at step 1, 1 not finite" in (
        page.inner_text("figure .hidden >> nth=0")
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.select_option("#x", "seconds")
    page.check("#log")
    until(page, "document.querySelector('.plot').layout.yaxis.type === 'log'")
    assert "running time" in page.evaluate("document.querySelector('.plot').layout.xaxis.title.text")
    assert shown.trouble == []
