"""The dashboard answers only this machine, gives only what lies in the folder, and sends nothing twice."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from lucid.dashboard import create_app, serve
from lucid.dashboard.reading import Reader
from lucid.errors import ConfigError
from lucid.records import Record

MakeRun = Callable[..., Path]
Verify = Callable[[Path], str | None]


def client(tmp_path: Path, verify: Verify | None = None, hosts: tuple[str, ...] = ()) -> Any:
    """Return a client of the dashboard over the folder of runs."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    return TestClient(create_app(tmp_path / "runs", verify=verify, hosts=hosts), base_url="http://127.0.0.1:7117")


def test_list_has_one_row_per_run(tmp_path: Path, make_run: MakeRun) -> None:
    """Name, status, steps, best and loss of every run, the newest first."""
    make_run("a", title="first")
    make_run("group/b", 30, end=False)
    rows = {row["id"]: row for row in client(tmp_path).get("/api/runs").json()["runs"]}
    assert set(rows) == {"a", "group/b"}
    assert (rows["a"]["name"], rows["a"]["status"], rows["a"]["reason"]) == ("first", "finished", "finished")
    assert rows["a"]["best"] == {"name": "eval/accuracy", "step": 20, "value": 0.75, "text": "0.75"}
    assert (rows["group/b"]["step"], rows["group/b"]["total"], rows["group/b"]["status"]) == (30, 30, "died")
    assert rows["group/b"]["loss"]["value"] == 1 / 30


def test_list_is_sent_again_only_if_something_changed(tmp_path: Path, make_run: MakeRun) -> None:
    """The same version gives `same`; one more record gives the list."""
    folder = make_run("a", end=False)
    web = client(tmp_path)
    version = web.get("/api/runs").json()["version"]
    assert web.get("/api/runs", params={"have": version}).json() == {"same": True, "version": version}
    with (folder / "records.jsonl").open("a") as file:
        file.write(Record("log", 21, 1, 1.0, {"train/loss": math.nan}).to_line())
    answer = web.get("/api/runs", params={"have": version}).json()
    assert answer["runs"][0]["loss"] == {"value": None, "text": "nan"}


def test_curves_are_sent_again_only_if_something_changed(tmp_path: Path, make_run: MakeRun) -> None:
    """The browser says which version it has; another smoothing is another version."""
    folder = make_run("a")
    web = client(tmp_path)
    first = web.get("/api/curves", params={"id": "a", "window": 5}).json()["runs"][0]
    assert first["points"]["train/loss"]["step"] == list(range(1, 21))
    assert len(first["points"]["train/loss"]["smooth"]) == 20
    again = {"id": "a", "window": 5, "have": first["version"]}
    assert web.get("/api/curves", params=again).json()["runs"] == [{"id": "a", "same": True, "status": "finished"}]
    assert "points" in web.get("/api/curves", params=again | {"window": 9}).json()["runs"][0]
    with (folder / "records.jsonl").open("a") as file:
        file.write(Record("log", 21, 1, 1.0, {"train/loss": math.nan}).to_line())
    points = web.get("/api/curves", params=again).json()["runs"][0]["points"]["train/loss"]
    assert (points["y"][-1], points["marks"]) == (None, [[20, "nan"]])


def test_of_curves_only_what_is_new_is_sent(tmp_path: Path, make_run: MakeRun) -> None:
    """Points that still hold are counted, not sent; a version of another reading gets all of them."""
    folder = make_run("a", 200)
    web = client(tmp_path)
    first = web.get("/api/curves", params={"id": "a", "window": 5}).json()["runs"][0]
    assert first["since"] == ""
    with (folder / "records.jsonl").open("a") as file:
        file.write(Record("log", 201, 1, 1.0, {"train/loss": 0.5, "train/rows": 1608}).to_line())
    again = {"id": "a", "window": 5, "have": first["version"]}
    answer = web.get("/api/curves", params=again).json()["runs"][0]
    points = answer["points"]["train/loss"]
    assert (answer["since"], points["keep"], points["step"]) == (first["version"], 198, [199, 200, 201])
    assert answer["points"]["eval/accuracy"]["step"] == [200]  # how many rows that was is known only now
    for have in ("x", "1-2-3~5-1500", first["version"].replace("~5", "~7"), first["version"][1:]):
        whole = client(tmp_path).get("/api/curves", params=again | {"have": have}).json()["runs"][0]
        assert (whole["since"], len(whole["points"]["train/loss"]["step"])) == ("", 201)


def test_file_that_the_browser_has_is_not_sent_again(tmp_path: Path) -> None:
    """Plotly's script is megabytes: asked with its mark, it is confirmed without being sent."""
    web = client(tmp_path)
    first = web.get("/static/plotly.js")
    again = web.get("/static/plotly.js", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, len(first.content) > 1_000_000) == (200, True)
    assert (again.status_code, again.content) == (304, b"")


def test_runs_that_are_compared_share_the_time_for_reading(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question takes no longer for ten runs than for one."""
    budgets: list[float] = []
    update = Reader.update

    def watched(reader: Reader, budget_seconds: float) -> None:
        budgets.append(budget_seconds)
        update(reader, budget_seconds)

    monkeypatch.setattr(Reader, "update", watched)
    for number in range(10):
        make_run(str(number))
    client(tmp_path).get("/api/curves?" + "&".join(f"id={number}&have=" for number in range(10)))
    assert len(budgets) == 10
    assert sum(budgets) <= 0.8 + 1e-9


def test_curves_of_several_runs_come_together(tmp_path: Path, make_run: MakeRun) -> None:
    """One question for all runs that are compared; what is no run is left out."""
    make_run("a")
    make_run("b")
    answer = client(tmp_path).get("/api/curves?id=a&have=&id=b&have=&id=none&have=").json()
    assert [run["id"] for run in answer["runs"]] == ["a", "b"]


def test_long_curve_is_thinned_on_the_server(tmp_path: Path) -> None:
    """Five thousand records come as at most the points asked for."""
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    lines = (Record("log", step, 1, 0.0, {"train/loss": float(step % 13)}).to_line() for step in range(5000))
    (folder / "records.jsonl").write_text("".join(lines))
    answer = client(tmp_path).get("/api/curves", params={"id": "a", "points": 200}).json()
    assert 60 < len(answer["runs"][0]["points"]["train/loss"]["y"]) <= 202


def test_run_has_plan_config_environment_checkpoints_and_events(tmp_path: Path, make_run: MakeRun) -> None:
    """Everything that the tabs show."""
    make_run("a")
    run = client(tmp_path).get("/api/run", params={"id": "a"}).json()
    assert ["model", "MLP"] in run["plan"]
    assert run["notes"] == ["note of None"]
    assert ["optimizer.lr", "0.1"] in run["config"]
    assert ["device", "cpu"] in run["environment"]
    (checkpoint,) = run["checkpoints"]
    assert (checkpoint["file"], checkpoint["tags"], checkpoint["step"], checkpoint["value"]) == (
        "20.lcs",
        ["last"],
        20,
        "0.75",
    )
    assert run["evals"] == {"names": ["eval/accuracy"], "rows": [["20", "0.75", "best"]]}
    assert [event["kind"] for event in run["events"]] == ["end"]


def test_difference_lists_only_what_differs(tmp_path: Path, make_run: MakeRun) -> None:
    """Equal settings are counted, others are listed side by side."""
    make_run("a", lr=0.1)
    make_run("b", lr=0.2)
    answer = client(tmp_path).get("/api/diff?id=a&id=b").json()
    assert answer["rows"] == [["optimizer.lr", ["0.1", "0.2"]]]
    assert answer["num_same"] == 2


def test_difference_in_the_last_digit_is_a_difference(tmp_path: Path, make_run: MakeRun) -> None:
    """Settings are compared and shown with every digit."""
    make_run("a", lr=0.1)
    make_run("b", lr=0.1 + 2**-55)
    answer = client(tmp_path).get("/api/diff?id=a&id=b").json()
    assert answer["rows"] == [["optimizer.lr", ["0.1", "0.10000000000000003"]]]


def test_log_is_text_page_by_page(tmp_path: Path, make_run: MakeRun) -> None:
    """The newest page ends with the newest record."""
    make_run("a")
    page = client(tmp_path).get("/api/log", params={"id": "a"}).json()
    assert page["lines"][-1].endswith("end  step 20  finished")
    assert page["start"] == 0


def test_checkpoint_is_verified_once_and_remembered(tmp_path: Path, make_run: MakeRun) -> None:
    """The verdict holds for these bytes: a file that changed is not verified any more."""
    folder = make_run("a")
    seen: list[str] = []

    def verify(path: Path) -> str | None:
        seen.append(path.name)
        return "checksum of tensor 'w' differs"

    web, mine = client(tmp_path, verify), {"X-Lucid": "1"}
    answer = web.post("/api/verify", params={"id": "a", "file": "20.lcs"}, headers=mine)
    assert answer.json() == {"file": "20.lcs", "reason": "checksum of tensor 'w' differs"}
    (row,) = web.get("/api/run", params={"id": "a"}).json()["checkpoints"]
    assert (row["verified"], row["trouble"], seen) == (True, "checksum of tensor 'w' differs", ["20.lcs"])
    os.utime(folder / "checkpoints" / "20.lcs", (1, 1))
    (row,) = web.get("/api/run", params={"id": "a"}).json()["checkpoints"]
    assert (row["verified"], row["trouble"]) == (False, None)


def test_file_that_cannot_be_verified_is_told_as_bad(tmp_path: Path, make_run: MakeRun) -> None:
    """An error while verifying is the verdict, not an error of the server."""
    make_run("a")

    def verify(path: Path) -> str | None:
        raise PermissionError(f"may not read {path.name}")

    answer = client(tmp_path, verify).post(
        "/api/verify", params={"id": "a", "file": "20.lcs"}, headers={"X-Lucid": "1"}
    )
    assert answer.json() == {"file": "20.lcs", "reason": "may not read 20.lcs"}


@pytest.mark.parametrize(
    "file", ["../config.toml", "last", "none.lcs", "/etc/passwd", "../../b/checkpoints/20.lcs", ""]
)
def test_only_checkpoints_of_the_run_are_verified(tmp_path: Path, make_run: MakeRun, file: str) -> None:
    """No other file reaches the function that verifies."""
    make_run("a")
    make_run("b")

    def verify(path: Path) -> str | None:
        raise AssertionError(path)

    answer = client(tmp_path, verify).post("/api/verify", params={"id": "a", "file": file}, headers={"X-Lucid": "1"})
    assert answer.status_code == 404


def test_form_on_another_page_cannot_ask_for_a_verification(tmp_path: Path, make_run: MakeRun) -> None:
    """Without the page's own header, and by GET, nothing is verified."""
    make_run("a")
    web = client(tmp_path, lambda path: None)
    assert web.post("/api/verify", params={"id": "a", "file": "20.lcs"}).status_code == 403
    assert web.get("/api/verify", params={"id": "a", "file": "20.lcs"}).status_code == 405


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:7117", 200), ("localhost:7117", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::1]:7117", 200),
        ("evil.example", 421), ("evil.example:7117", 421), ("127.0.0.1.evil.example", 421), ("192.168.0.7:7117", 421),
        ("localhost.evil.example:7117", 421), ("", 421), ("127.0.0.1@evil.example", 421), ("[::2]:7117", 421),
    ],
)  # fmt: skip
def test_only_names_of_this_machine_are_answered(tmp_path: Path, host: str, code: int) -> None:
    """A page elsewhere that points its own name here gets nothing, neither runs nor page."""
    web = client(tmp_path)
    assert web.get("/api/runs", headers={"Host": host}).status_code == code
    assert web.get("/", headers={"Host": host}).status_code == code


@pytest.mark.parametrize(("host", "code"), [("10.0.0.5:7117", 200), ("evil.example:7117", 421)])
def test_open_dashboard_still_refuses_foreign_names(tmp_path: Path, host: str, code: int) -> None:
    """Listening on every address means addresses, not names."""
    assert client(tmp_path, hosts=("*",)).get("/", headers={"Host": host}).status_code == code


@pytest.mark.parametrize(
    "address",
    [
        "/static/../app.py", "/static/%2e%2e/app.py", "/../../etc/passwd", "/static//etc/passwd", "/etc/passwd",
        "/api/run?id=../secret", "/api/run?id=%2Fetc", "/api/run?id=..%2F..%2F", "/api/log?id=../secret", "/api/run",
        "/api/diff?id=a&id=../secret", "/api/unknown", "/static/", "/api/run?id=a%00",
    ],
)  # fmt: skip
def test_nothing_else_is_served(tmp_path: Path, make_run: MakeRun, address: str) -> None:
    """Whatever the address, what is no run and no file of the page does not exist."""
    make_run("a")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "records.jsonl").write_text("")
    assert client(tmp_path).get(address).status_code == 404


@pytest.mark.parametrize("query", ["before=x", "before=-5", "before=99999999999999999999", "before=3"])
def test_wild_numbers_are_no_error(tmp_path: Path, make_run: MakeRun, query: str) -> None:
    """A number out of range is brought into it."""
    make_run("a")
    web = client(tmp_path)
    assert web.get(f"/api/log?id=a&{query}").status_code == 200
    assert web.get("/api/curves?id=a&window=-1&points=999999999").status_code == 200


def test_every_answer_has_the_policy(tmp_path: Path) -> None:
    """Page, data, files and refusals: nothing from elsewhere, no script but ours, in no frame."""
    web = client(tmp_path)
    for address in ("/", "/api/runs", "/static/app.js", "/static/plotly.js", "/none"):
        headers = web.get(address).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"], address
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_run_that_vanishes_is_gone(tmp_path: Path, make_run: MakeRun) -> None:
    """A folder deleted while it is looked at is no error of the server."""
    folder = make_run("a")
    web = client(tmp_path)
    assert len(web.get("/api/runs").json()["runs"]) == 1
    (folder / "records.jsonl").unlink()
    assert web.get("/api/runs").json()["runs"] == []
    assert web.get("/api/run", params={"id": "a"}).status_code == 404


def test_serve_refuses_what_is_no_folder(tmp_path: Path) -> None:
    """The message has the path."""
    with pytest.raises(ConfigError, match=r"must be a folder, got '.*nowhere'"):
        serve(tmp_path / "nowhere")


def test_serve_names_the_port_that_is_taken(tmp_path: Path) -> None:
    """The message says what to do."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{port}: .*--port"):
            serve(tmp_path, port=port)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_server_without_a_trace(tmp_path: Path, stop: signal.Signals) -> None:
    """It says where it is, answers, and goes quietly."""
    code = "import sys; from lucid.dashboard import serve; serve(sys.argv[1], port=0)"
    server = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = server.stdout.readline().split(" at ")[1].split()[0]
    for _ in range(200):
        try:
            answer = httpx.get(f"{url}api/runs")
            break
        except httpx.TransportError:
            time.sleep(0.05)
    assert answer.json()["runs"] == []
    server.send_signal(stop)
    _, trouble = server.communicate()
    assert trouble == ""
    assert server.returncode == (0 if stop == signal.SIGINT else -stop)
