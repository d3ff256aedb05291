"""The command `lucid`.

`main` finds the command and turns what it raises into a line and an exit code; each command is a function in a file of
its own, loaded when it is asked for. `settings` reads a configuration from the command line.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from lucid.errors import (
    ConfigError,
    DataError,
    LossError,
    LucidError,
    ResumeError,
    StoreBusyError,
    nearest,
)

EXIT_DONE, EXIT_ERROR, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
BAD_INPUT = (ConfigError, DataError, LossError, ResumeError, StoreBusyError)

COMMANDS = {
    "train": ("lucid.cli.train:train", "train what a configuration says; without one, handwritten digits"),
    "plan": ("lucid.cli.train:plan", "say what a run would do, step by step, without training"),
    "check": ("lucid.cli.health:check", "prove that a run can be broken anywhere; look for faults of the loop"),
    "resume": ("lucid.cli.train:resume", "go on with a run that was interrupted or made longer"),
    "evaluate": ("lucid.cli.use:evaluate", "judge a checkpoint on the rows kept for the test"),
    "predict": ("lucid.cli.use:predict", "answers of a trained model for new rows"),
    "inspect": ("lucid.cli.files:inspect", "what a checkpoint or a run holds"),
    "verify": ("lucid.cli.files:verify", "whether every byte of a checkpoint or a run is right"),
    "export": ("lucid.cli.files:export", "write the weights of a checkpoint as safetensors"),
    "diff": ("lucid.cli.compare:diff", "how two runs differ: settings, environment, curves"),
    "lr-find": ("lucid.cli.health:lr_find", "try growing learning rates for a few steps"),
    "replay": ("lucid.cli.health:replay", "run a step that gave NaN again and name what is bad in it"),
    "ui": ("lucid.cli.health:ui", "see runs in a browser while they train"),
    "config": ("lucid.cli.train:config", "print every setting in effect, as a file to start from"),
    "new": ("lucid.cli.new:new", "make a small project of your own"),
    "eject": ("lucid.cli.eject:eject", "write a run as one plain PyTorch file"),
    "completion": ("lucid.cli.completion:completion", "print a completion script for bash, zsh or tcsh"),
}

USAGE = """usage: lucid COMMAND ...

The complete supervised training loop on PyTorch.

commands:
{commands}

options:
  --version     print the version
  --help        print this; after a command, what it takes
  --traceback   after a command: show where in the code an error came from

example:
  lucid train                           train a small network on handwritten digits
  lucid train run.toml --optimizer.lr 1e-3
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Codes: 0 finished, 1 failed, 2 bad input, 75 interrupted with a checkpoint (start again), 130 interrupted by Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("--help", "-h", "help"):
        print(usage(), end="")
        return EXIT_DONE
    if words[0] == "--version":
        from lucid import __version__

        print(f"lucid {__version__}")
        return EXIT_DONE
    name = words.pop(0)
    if name not in COMMANDS:
        _complain(f"there is no command {name!r}.{nearest(name, COMMANDS)} `lucid --help` lists them.")
        return EXIT_BAD_INPUT
    show_traceback = "--traceback" in words
    words = [word for word in words if word != "--traceback"]
    return _run(name, words, show_traceback)


def usage() -> str:
    """Return the help of the whole command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return USAGE.format(commands="\n".join(lines))


def _run(name: str, words: list[str], show_traceback: bool) -> int:
    module, _, function = COMMANDS[name][0].partition(":")
    try:
        code: int = getattr(importlib.import_module(module), function)(words)
        sys.stdout.flush()
        return code
    except LucidError as error:
        if show_traceback:
            raise
        _complain(f"{type(error).__name__}: {error}")
        return EXIT_BAD_INPUT if isinstance(error, BAD_INPUT) else EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except SystemExit as leaving:
        return _code(leaving)


def _code(leaving: SystemExit) -> int:
    """Return the code of a SystemExit: help, wrong arguments, or a run that was interrupted with a checkpoint."""
    if leaving.code is None:
        return EXIT_DONE
    return leaving.code if isinstance(leaving.code, int) else EXIT_ERROR


def _complain(message: str) -> None:
    print(f"lucid: {message}", file=sys.stderr)
