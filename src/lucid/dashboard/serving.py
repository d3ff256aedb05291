"""Starting the dashboard's server."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

from lucid import assets
from lucid.errors import ConfigError

DEFAULT_PORT = 7117
"""Not a port that another well-known tool takes."""

_LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    folder: str | Path,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    open_browser: bool = False,
    *,
    verify: Callable[[Path], str | None] | None = None,
) -> None:
    """Serve the dashboard until Ctrl-C.

    Args:
        folder: with runs in it, or a run itself.
        host: address to listen on. There is no password: anything but this machine lets others read the runs.
        port: to listen on; 0 takes a free one.
        open_browser: open the page when it is ready.
        verify: checks a checkpoint: None if it is whole, else the reason.

    Raises:
        ConfigError: if the folder is none, the port is taken, or a library is missing.
    """
    place = Path(folder)
    if not place.is_dir():
        raise ConfigError(f"the folder of runs must be a folder, got {str(folder)!r}: there is none there.")
    _need_libraries()
    listener = _listen(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
    print(f"lucid: runs in {place} at {url}  (Ctrl-C ends)", flush=True)
    if host not in _LOCAL:
        print(f"lucid: {host} is open to other machines: who reaches it can read these runs.", file=sys.stderr)
    if open_browser:
        threading.Timer(0.5, webbrowser.open, (url,)).start()
    _run(place, host, listener, verify)


def _run(place: Path, host: str, listener: socket.socket, verify: Callable[[Path], str | None] | None) -> None:
    import uvicorn

    from lucid.dashboard.app import build

    hosts = () if host in _LOCAL else ("*",) if host in ("0.0.0.0", "::") else (host,)
    config = uvicorn.Config(
        build(place, verify, hosts),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    with listener, contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        uvicorn.Server(config).run(sockets=[listener])


def _need_libraries() -> None:
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if assets.plotly_script() is None:
        missing.append("plotly")
    if missing:
        raise ConfigError(f"the dashboard needs {', '.join(missing)}. Install it: pip install 'lucid-loop[ui]'")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)  # before the address is printed: whoever comes at once waits and is not refused
    except (OSError, OverflowError) as error:  # the second for a port that there cannot be
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error}. Choose another with --port, 0 takes a free one."
        ) from error
    return listener
