"""`python -m lucid.check train.py:make_trainer`."""

from __future__ import annotations

import argparse
import json
import sys

from lucid.check import run
from lucid.errors import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Check what a factory makes; return 0 if there is nothing to repair, 1 if there is, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m lucid.check",
        description="Prove on your own model and data that a run can be broken anywhere, and look for loop faults.",
    )
    parser.add_argument("factory", help='"train.py:make_trainer" or "package.module:make_trainer"')
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--steps", type=int, default=6, help="steps of the short runs (default 6)")
    options = parser.parse_args(arguments)
    from lucid.check.target import Named

    try:
        factory = Named(options.factory)
        factory.find()
        report = run(factory, steps=options.steps, start="spawn")
    except ConfigError as error:
        print(f"lucid check: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.to_dict(), indent=1) if options.json else report.text())
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
