"""Addresses of the dashboard, and who may ask.

Only names of this machine are answered, so that a page elsewhere cannot read runs by pointing its own name here; the
page may load nothing from elsewhere and runs no script but its own files.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lucid import assets
from lucid.dashboard.answers import Answers
from lucid.dashboard.folder import Folder

_STATIC = Path(__file__).parent / "static"
_LOCAL = ("127.0.0.1", "localhost", "::1")
_MAX_RUNS = 50
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def build(folder: Path, verify: Callable[[Path], str | None] | None, hosts: tuple[str, ...]) -> Starlette:
    """Return the application; see `lucid.dashboard.create_app`."""
    answers = Answers(Folder(folder), verify)

    def runs(request: Request) -> Response:
        return _answer(answers.runs(request.query_params.get("have", "")))

    def run(request: Request) -> Response:
        return _answer(answers.run(request.query_params.get("id", "")))

    def curves(request: Request) -> Response:
        query = request.query_params
        window, points = _whole(query.get("window"), 1, 10_000, 1), _whole(query.get("points"), 100, 3000, 1500)
        wanted = list(zip(query.getlist("id"), [*query.getlist("have"), *[""] * _MAX_RUNS], strict=False))[:_MAX_RUNS]
        return _answer({"runs": answers.curves(wanted, window, points)})

    def difference(request: Request) -> Response:
        return _answer(answers.difference(request.query_params.getlist("id")[:_MAX_RUNS]))

    def log(request: Request) -> Response:
        before = request.query_params.get("before")
        return _answer(
            answers.log(request.query_params.get("id", ""), _whole(before, 0, 1 << 62, 0) if before else None)
        )

    def check(request: Request) -> Response:
        if request.headers.get("x-lucid") != "1":  # a form on another page cannot send this header
            return PlainTextResponse("only the dashboard's own page may ask for this", status_code=403)
        return _answer(answers.check(request.query_params.get("id", ""), request.query_params.get("file", "")))

    routes = [Route(address, _file(path)) for address, path in _files().items()]
    routes += [
        Route("/api/runs", runs),
        Route("/api/run", run),
        Route("/api/curves", curves),
        Route("/api/diff", difference),
        Route("/api/log", log),
        Route("/api/verify", check, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(Guard, hosts=hosts)
    return app


class Guard:
    """Answers only requests to a name of this machine, and puts the policy on every answer.

    Args:
        app: what answers.
        hosts: further names; "*" stands for any address in digits.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] = ()) -> None:
        self.app = app
        self.hosts = frozenset((*_LOCAL, *hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return
        if not self.knows(Headers(scope=scope).get("host", "")):
            refusal = PlainTextResponse("this name is not served here", status_code=421, headers=_HEADERS)
            await refusal(scope, receive, send)
            return

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_policy)

    def knows(self, host: str) -> bool:
        """Return whether a Host header names this machine."""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower()
        if name in self.hosts:
            return True
        return "*" in self.hosts and _is_address(name)


def _files() -> dict[str, Path]:
    """Return every file that is served, by its address. There are no others."""
    found = {
        "/": _STATIC / "index.html",
        "/static/app.css": _STATIC / "app.css",
        "/static/app.js": _STATIC / "app.js",
        "/static/views.js": _STATIC / "views.js",
        "/static/theme.css": assets.FOLDER / "theme.css",
        "/static/charts.js": assets.FOLDER / "charts.js",
    }
    plotly = assets.plotly_script()
    return found if plotly is None else {**found, "/static/plotly.js": plotly}


def _file(path: Path) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        facts = path.stat()
        mark = f'"{facts.st_size:x}-{facts.st_mtime_ns:x}"'
        if request.headers.get("if-none-match") == mark:  # the browser has it: plotly's script alone is megabytes
            return Response(status_code=304, headers={"ETag": mark})
        return FileResponse(path, headers={"ETag": mark})

    return answer


def _answer(value: Any) -> Response:
    if value is None:
        return PlainTextResponse("there is no such thing in this folder", status_code=404)
    return Response(json.dumps(value, allow_nan=False, separators=(",", ":")), media_type="application/json")


def _whole(text: str | None, least: int, most: int, default: int) -> int:
    try:
        return min(most, max(least, int(text or default)))
    except ValueError:
        return default


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
