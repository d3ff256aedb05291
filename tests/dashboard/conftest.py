"""Runs in a folder, the application over them, and a server for the browser."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("plotly")

from browser import chromium
from lucid.records import Record
from lucid.report import JsonlReport

__all__ = ["chromium"]

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A function that writes a run of so many steps into the folder of runs."""

    def make(name: str, steps: int = 20, *, end: bool = True, lr: float = 0.1, title: str | None = None) -> Path:
        folder = tmp_path / "runs" / name
        report = JsonlReport(folder / "records.jsonl")
        info = {"model": "MLP", "total_steps": steps, "monitor": "eval/accuracy", "notes": [f"note of {title}"]}
        report.write(Record("plan", 0, 1, 1000.0, info=info | ({"name": title} if title else {})))
        for step in range(1, steps + 1):
            report.write(Record("log", step, 1, 1000.0 + step, {"train/loss": 1 / step, "train/rows": step * 8}))
        report.write(Record("eval", steps, 1, 1001.0 + steps, {"eval/accuracy": 0.75}, {"best": True}))
        report.write(Record("save", steps, 1, 1001.0 + steps, info={"path": f"checkpoints/{steps}.lcs", "value": 0.75}))
        if end:
            report.write(Record("end", steps, 1, 1002.0 + steps, info={"reason": "finished"}))
        report.close()
        (folder / "config.toml").write_text(f"[optimizer]\nlr = {lr}\nname = 'adamw'\n")
        (folder / "environment.json").write_text(json.dumps({"starts": [{"host": platform.node(), "device": "cpu"}]}))
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / f"{steps}.lcs").write_bytes(b"12345")
        (folder / "checkpoints" / "last").write_text(f"{steps}.lcs\n")
        return folder

    return make


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A function that serves the folder of runs and returns the address."""
    import uvicorn

    from lucid.dashboard import create_app

    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(verify: Callable[[Path], str | None] | None = None) -> str:
        app = create_app(tmp_path / "runs", verify=verify)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        while not server.started:
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()
