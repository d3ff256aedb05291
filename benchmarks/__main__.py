"""`python -m benchmarks`: everything but checkpoints (see suite.py), in an environment that has the peers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = HERE.parent / ".venv-bench" / "bin" / "python"
MADE = HERE.parent / ".venv-bench" / ".ready"


def main() -> None:
    """Make the environment if it is not there, and hand over to `suite.py`."""
    if not MADE.exists():
        print("making .venv-bench with the peers; this takes some minutes, once", flush=True)
        subprocess.run(["sh", str(HERE / "setup.sh")], check=True)
    os.execv(PYTHON, [str(PYTHON), str(HERE / "suite.py"), *sys.argv[1:]])


if __name__ == "__main__":
    main()
