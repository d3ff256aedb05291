"""The dashboard: runs in a folder, seen in a browser. It only reads files and can never slow or break a run.

`app`: addresses and who may ask. `folder`: which runs there are. `reading`: one run, read as it grows. `status`: does
it still live. `answers`: what the browser gets. `static/`: the page itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lucid.dashboard.serving import DEFAULT_PORT, serve

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["DEFAULT_PORT", "create_app", "serve"]


def create_app(
    folder: str | Path,
    *,
    verify: Callable[[Path], str | None] | None = None,
    hosts: tuple[str, ...] = (),
) -> Starlette:
    """Return the dashboard as an ASGI application.

    Args:
        folder: with runs in it, or a run itself. Nothing outside is read.
        verify: checks a checkpoint: None if it is whole, else the reason. None: the page cannot verify.
        hosts: names under which it may be asked besides this machine's own.
    """
    from lucid.dashboard.app import build

    return build(Path(folder), verify, hosts)
