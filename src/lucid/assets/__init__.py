"""Files that the report page and the dashboard are made of: `theme.css`, `charts.js`, and plotly.js as shipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parent


def plotly_script() -> Path | None:
    """Return plotly.js as the plotly package ships it, found without importing the package; None if absent."""
    spec = importlib.util.find_spec("plotly")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    return None
