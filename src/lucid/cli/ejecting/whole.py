"""Put the parts of an ejected file together."""

from __future__ import annotations

import sys

from lucid.build import Built
from lucid.cli.ejecting import data, loop, model, pieces
from lucid.cli.ejecting.choices import Choices
from lucid.cli.ejecting.lift import Code
from lucid.datasets import SOURCES
from lucid.errors import ConfigError
from lucid.models import LIBRARIES

TITLE = '''"""{name}: data {data}, model {model}, as plain PyTorch.

Written by `lucid eject`; needs torch and what is imported below, not lucid. On the machine and with the versions of the
run that it came from it gives the same weights{exact}: last.pt{best}.
"""
'''


def eject_text(built: Built) -> str:
    """Return the file for a run.

    Raises:
        ConfigError: something in the configuration has no plain form.
    """
    config = built.config
    if not hasattr(built.data.train, "__len__"):
        raise ConfigError("lucid eject needs data with a length.")
    chosen = Choices(built, data.load(built))
    loop.check(chosen)
    parts = [
        loop.constants(chosen),
        chosen.loading.code,
        model.model_code(built),
        model.optimizer_code(built),
        pieces.tools(chosen),
        loop.main(chosen),
    ]
    whole = sum(parts[1:], parts[0])
    title = TITLE.format(
        name=config.name,
        data=config.data.name,
        model=config.model.name,
        exact=" up to last digits, as it compiles the model alone" if config.train.compile else ", bit for bit",
        best=", best.pt" if chosen.has_eval else "",
    )
    return f"{title}\n{_imports(whole, built)}\n{whole.text}"


def _imports(whole: Code, built: Built) -> str:
    """Return the import lines: the standard library first, the user's own modules last."""
    config = built.config
    sections = (config.data, config.model, config.optimizer, config.scheduler)
    named = [config.task, config.loss, *(section.name for section in sections)]
    own_modules = {name.partition(":")[0] for name in named if ":" in name} - {*SOURCES, *LIBRARIES}
    lines = _merged(whole.imports)
    inside = {line for line in lines if line.split()[1].partition(".")[0] in sys.stdlib_module_names}
    own = {line for line in lines if line.split()[1] in own_modules}
    blocks = [sorted(part, key=_order) for part in (inside, lines - inside - own, own) if part]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _merged(lines: set[str]) -> set[str]:
    """Return the lines with all names from one module in one line."""
    names: dict[str, set[str]] = {}
    for line in lines:
        if line.startswith("from"):
            module, _, name = line.partition(" import ")
            names.setdefault(module, set()).add(name)
    merged = {f"{module} import {', '.join(sorted(found))}" for module, found in names.items()}
    return merged | {line for line in lines if line.startswith("import")}


def _order(line: str) -> tuple[bool, str]:
    return (line.startswith("from"), line)
