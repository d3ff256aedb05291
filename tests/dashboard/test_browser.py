"""The page in a real Chromium: live, comparable, by keyboard, wide and narrow, and deaf to what runs contain."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browser import open_page, until
from lucid.records import Record
from lucid.report import JsonlReport

MakeRun = Callable[..., Path]
Serve = Callable[..., str]

HOSTILE = "</script><script>window.hit=1</script><img src=x onerror='window.hit=1'><b>bold</b>"
_LAST_STEP = "document.querySelector('.plot').data[0].x.at(-1)"


def test_curves_grow_while_a_run_writes(tmp_path: Path, serve: Serve, chromium: Any) -> None:
    """A new record is on the screen without reloading, and the end changes the status."""
    report = JsonlReport(tmp_path / "runs" / "a" / "records.jsonl")
    report.write(Record("plan", 0, 1, 0.0, info={"total_steps": 3}))
    for step in (1, 2):
        report.write(Record("log", step, 1, float(step), {"train/loss": 1 / step}))
    url = serve()
    shown = open_page(chromium, f"{url}#/run/a", url)
    page = shown.page
    page.wait_for_selector(".main-svg")
    page.wait_for_selector(".badge.running")
    assert page.evaluate(_LAST_STEP) == 2
    report.write(Record("log", 3, 1, 3.0, {"train/loss": 0.3}))
    until(page, f"{_LAST_STEP} === 3")
    report.write(Record("end", 3, 1, 4.0, info={"reason": "finished"}))
    report.close()
    page.wait_for_selector(".badge.finished")
    assert shown.trouble == []


@pytest.mark.parametrize(("steps", "lines"), [(31, 1), (32, 2)])
def test_short_curve_is_not_smoothed(serve: Serve, make_run: MakeRun, chromium: Any, steps: int, lines: int) -> None:
    """A mean of 9 records is drawn over a curve of 32 or more; below, the curve stands alone."""
    make_run("a", steps)
    url = serve()
    page = open_page(chromium, f"{url}#/run/a", url).page
    until(page, f"document.querySelector('.plot')?.data && {_LAST_STEP} === {steps}")
    assert page.evaluate("document.querySelector('.plot').data.length") == lines


def test_curves_follow_a_run_that_goes_back(tmp_path: Path, serve: Serve, chromium: Any) -> None:
    """After a rewind the points that were taken back are gone from the screen."""
    report = JsonlReport(tmp_path / "runs" / "a" / "records.jsonl")
    for step in range(1, 6):
        report.write(Record("log", step, 1, float(step), {"train/loss": 1.0}))
    url = serve()
    page = open_page(chromium, f"{url}#/run/a", url).page
    until(page, f"document.querySelector('.plot')?.data && {_LAST_STEP} === 5")
    report.rewind(2)
    until(page, f"{_LAST_STEP} === 2")
    report.close()


_VALUES = ("loss", "lr", "grad_norm", "rows_per_second", *(f"value{number}" for number in range(12)))
_PAINTED = "[...document.querySelectorAll('.plot')].filter((plot) => plot.data).length"


def _log(step: int, *names: str) -> Record:
    return Record("log", step, 1, float(step), {f"train/{name}": step % 13 + 0.5 for name in names})


def test_only_charts_in_view_are_painted_each_once(tmp_path: Path, serve: Serve, chromium: Any) -> None:
    """Of sixteen charts those in the window are painted, the others when one scrolls there; none is painted twice."""
    report = JsonlReport(tmp_path / "runs" / "a" / "records.jsonl")
    for step in range(1, 21):
        report.write(_log(step, *_VALUES))
    url = serve()
    page = open_page(chromium, f"{url}#/run/a", url, viewport={"width": 800, "height": 500}).page
    until(page, f"{_PAINTED} > 0")
    page.wait_for_timeout(300)
    assert page.locator(".plot").count() == 16
    assert 1 <= page.evaluate("lucid.numPainted") <= 4
    for at in range(16):
        page.locator(".plot").nth(at).scroll_into_view_if_needed()
        until(page, f"document.querySelectorAll('.plot')[{at}].data")
    assert page.evaluate("lucid.numPainted") == 16
    report.close()


def test_new_record_asks_twice_sends_its_points_and_repaints_its_chart(
    tmp_path: Path, serve: Serve, chromium: Any
) -> None:
    """What a refresh costs does not depend on the length of the run: two requests, few points, one chart."""
    path = tmp_path / "runs" / "a" / "records.jsonl"
    report = JsonlReport(path)
    (path.parent / "environment.json").write_text(json.dumps({"host": platform.node()}))
    with path.open("a") as file:
        file.writelines(_log(step, "loss", "grad_norm").to_line() for step in range(1, 5001))
    url = serve()
    page = open_page(chromium, f"{url}#/run/a", url, viewport={"width": 1400, "height": 1400}).page
    until(page, f"{_PAINTED} === 2")
    asked: list[Any] = []
    page.on("response", lambda answer: asked.append(answer))
    painted = page.evaluate("lucid.numPainted")
    with page.expect_response("**/api/curves*") as idle:
        pass
    assert idle.value.json()["runs"] == [{"id": "a", "same": True, "status": "running"}]
    asked.clear()
    report.write(_log(5001, "loss"))
    until(page, f"{_LAST_STEP} === 5001")
    while len(asked) < 2:
        page.wait_for_timeout(20)
    (curves,) = (answer.json()["runs"][0] for answer in asked if "/api/curves" in answer.url)
    assert [answer.url.split("?")[0].rsplit("/", 1)[1] for answer in asked] == ["curves", "run"]
    assert set(curves["points"]) == {"train/loss", "train/grad_norm"}
    assert all(len(points["y"]) <= 4 for points in curves["points"].values())
    assert page.evaluate("document.querySelector('.plot').data[0].x.length") > 500
    assert page.evaluate("lucid.numPainted") == painted + 1
    report.close()
    page.wait_for_selector(".badge.died")  # seen without a new record


def test_long_list_is_laid_out_as_one_scrolls(tmp_path: Path, serve: Serve, chromium: Any) -> None:
    """Of 250 runs a hundred have a row; search looks through all of them; the plotting script is not loaded."""
    for number in range(250):
        folder = tmp_path / "runs" / f"run-{number:03d}"
        folder.mkdir(parents=True)
        (folder / "records.jsonl").write_text(Record("plan", 0, 1, 1000.0 - number).to_line())
    url = serve()
    shown = open_page(chromium, url, url)
    page = shown.page
    until(page, "document.querySelector('.bar')?.textContent.includes('250 runs')")
    assert page.locator("tbody tr").count() == 100
    page.fill("input[type=search]", "run-24")
    assert page.locator("tbody tr").count() == 10
    page.fill("input[type=search]", "")
    assert page.locator("tbody tr").count() == 100
    page.locator("button.more").scroll_into_view_if_needed()
    until(page, "document.querySelectorAll('tbody tr').length === 200")
    page.locator("button.more").scroll_into_view_if_needed()
    until(page, "document.querySelectorAll('tbody tr').length === 250")
    assert page.locator("button.more").is_hidden()
    assert page.locator("#plotly").count() == 0
    assert shown.trouble == []


def test_new_run_appears_in_the_list_and_search_finds_it(serve: Serve, make_run: MakeRun, chromium: Any) -> None:
    """The list is live; words in any order find a run; a status narrows it."""
    make_run("alpha")
    url = serve()
    shown = open_page(chromium, url, url)
    page = shown.page
    page.wait_for_selector("tbody tr")
    make_run("beta", end=False)
    until(page, "document.querySelectorAll('tbody tr').length === 2")
    page.keyboard.press("/")
    page.keyboard.type("mlp bet")
    assert page.locator("tbody tr").count() == 1
    assert page.inner_text("tbody td.name") == "beta"
    page.fill("input[type=search]", "")
    page.select_option("select", "finished")
    assert page.inner_text("tbody td.name") == "alpha"
    assert shown.trouble == []


def test_runs_are_compared_by_keyboard_alone(serve: Serve, make_run: MakeRun, chromium: Any) -> None:
    """Tab and Space pick two runs, Enter compares them, and the difference is there."""
    make_run("a", lr=0.1)
    make_run("b", lr=0.2)
    url = serve()
    shown = open_page(chromium, url, url)
    page = shown.page
    until(page, "document.querySelectorAll('tbody tr').length === 2")
    reached: list[str] = []
    while len(reached) < 2:
        page.keyboard.press("Tab")
        label = page.evaluate("document.activeElement.ariaLabel") or ""
        if label.startswith("Compare "):
            page.keyboard.press("Space")
            reached.append(label)
    assert sorted(reached) == ["Compare a", "Compare b"]
    assert page.locator("input:checked").count() == 2
    page.locator("button.main").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".main-svg")
    page.wait_for_selector("text=optimizer.lr")
    assert page.evaluate("document.querySelector('.plot').data.length") >= 2
    assert page.locator(".picked li").count() == 2
    assert shown.trouble == []


def test_every_control_has_a_name(serve: Serve, make_run: MakeRun, chromium: Any) -> None:
    """Nothing that can be reached is nameless for a screen reader, on any view."""
    make_run("a")
    make_run("b")
    url = serve(lambda path: None)
    nameless = """[...document.querySelectorAll('a, button, input, select, [tabindex="0"]')].filter((each) =>
        !(each.ariaLabel || each.textContent.trim() || [...(each.labels || [])].some((l) => l.textContent.trim())))
        .map((each) => each.outerHTML)"""
    page = open_page(chromium, url, url).page
    for view, there in (("", "tbody tr"), ("#/run/a", ".main-svg"), ("#/compare/a/b", ".main-svg")):
        page.goto(url + view)
        page.wait_for_selector(there)
        assert page.evaluate(nameless) == []


def test_tabs_move_by_arrow_keys(serve: Serve, make_run: MakeRun, chromium: Any) -> None:
    """One tab is reached with Tab, the others with the arrows; each names its panel."""
    make_run("a")
    url = serve()
    page = open_page(chromium, f"{url}#/run/a", url).page
    page.wait_for_selector(".main-svg")
    star = "[...document.querySelectorAll('.plot')].some((p) => p.data?.some((t) => t.marker?.symbol === 'star'))"
    assert page.evaluate(star)  # on the best evaluation
    page.locator("[role=tab][aria-selected=true]").focus()
    seen = []
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        seen.append(page.evaluate("document.activeElement.textContent"))
        panel = page.evaluate("document.getElementById(document.activeElement.getAttribute('aria-controls')).hidden")
        assert panel is False
    assert seen == ["Settings", "Checkpoints", "Environment", "Log", "Curves"]


def test_checkpoint_is_verified_from_the_page(serve: Serve, make_run: MakeRun, chromium: Any) -> None:
    """A click asks, and the verdict is shown and said."""
    make_run("a")
    url = serve(lambda path: f"broken: {HOSTILE}")
    shown = open_page(chromium, f"{url}#/run/a", url)
    page = shown.page
    page.get_by_role("tab", name="Checkpoints").click()
    page.get_by_role("button", name="Verify 20.lcs").click()
    page.wait_for_selector("td .bad")
    assert page.inner_text("td .bad") == f"broken: {HOSTILE}"
    assert HOSTILE in page.text_content("#say")
    assert shown.trouble == []


@pytest.mark.parametrize("view", ["", "#/run/a", "#/compare/a/b"])
def test_hostile_content_runs_nothing(
    tmp_path: Path, serve: Serve, make_run: MakeRun, chromium: Any, view: str
) -> None:
    """Names, values, settings, reasons and file names full of markup are text on every view and tab."""
    folder = make_run("a", title=HOSTILE)
    make_run("b", title=HOSTILE, lr=0.3)
    quoted = HOSTILE.replace("'", "`")
    (folder / "config.toml").write_text(f"[optimizer]\nlr = 1\nname = '{quoted}'\n'{quoted}' = 1\n")
    (folder / "environment.json").write_text(f'{{"starts": [{{"host": "{quoted}"}}]}}')
    (folder / "checkpoints" / "<b>x<b>.lcs").write_bytes(b"")
    with (folder / "records.jsonl").open("a") as file:
        file.write(Record("log", 21, 1, 1.0, {f"train/{HOSTILE}": 1.0, "time/<b>x</b>": 1.0}).to_line())
        file.write(Record("skip", 21, 1, 1.0, info={"reason": HOSTILE, "parameter": HOSTILE}).to_line())
        file.write(Record("end", 22, 1, 1.0, info={"reason": HOSTILE}).to_line())
    url = serve()
    shown = open_page(chromium, url + view, url)
    page = shown.page
    page.wait_for_selector(".main-svg" if view else "tbody tr")
    for tab in page.locator("[role=tab]").all():
        tab.click()
        page.wait_for_timeout(100)
    assert page.evaluate("window.hit") is None
    assert page.locator("main b, main img, main script").count() == 0
    assert HOSTILE in page.text_content("main")
    assert shown.trouble == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_page_fits_and_its_text_can_be_read(
    serve: Serve, make_run: MakeRun, chromium: Any, width: int, scheme: str
) -> None:
    """No view is wider than the window, and muted text keeps a contrast of 4.5 to its ground."""
    make_run("a-run-with-a-rather-long-name-that-has-to-go-somewhere-on-a-narrow-screen")
    make_run("b")
    url = serve()
    shown = open_page(chromium, url, url, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = shown.page
    long_name = "a-run-with-a-rather-long-name-that-has-to-go-somewhere-on-a-narrow-screen"
    for view, there in (
        ("", "tbody tr"),
        (f"#/run/{long_name}", ".main-svg"),
        (f"#/compare/{long_name}/b", ".main-svg"),
    ):
        page.goto(url + view)
        page.wait_for_selector(there)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    for tone in ("ink", "muted", "accent", "good", "warn", "bad"):
        assert page.evaluate(_CONTRAST, tone) >= 4.5, tone


_CONTRAST = """(tone) => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue('--' + name).trim().slice(1);
    const [r, g, b] = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [a, b] = [light(tone), light('panel')].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""
