"""Put the parts of an ejected file together."""

from __future__ import annotations

import sys

from lucid.build import Built
from lucid.cli.ejecting import choices, data, loop, model, pieces
from lucid.cli.ejecting.lift import Code
from lucid.errors import ConfigError

TITLE = '''"""{name}: data {data}, model {model}, as plain PyTorch.

Written by `lucid eject`; needs torch and what is imported below, not lucid. On the machine and with the versions of the
run that it came from it gives the same weights, bit for bit: last.pt{best}.
"""
'''


def eject_text(built: Built) -> str:
    """Return the file for a run.

    Raises:
        ConfigError: something in the configuration has no plain form.
    """
    config = built.config
    chosen = choices.Choices(built, in_memory=True)
    if not hasattr(built.data.train, "__len__"):
        raise ConfigError("lucid eject needs data with a length.")
    data_code, chosen.in_memory = data.load(config, built.data.task)
    loop.check(chosen)
    parts = [
        loop.constants(chosen),
        data_code,
        model.model_code(built),
        model.optimizer_code(built),
        pieces.tools(chosen),
        pieces.seeds_and_averages(chosen),
        loop.main(chosen),
    ]
    whole = sum(parts[1:], parts[0])
    title = TITLE.format(
        name=config.name,
        data=config.data.name,
        model=config.model.name,
        best=", best.pt" if chosen.has_eval else "",
    )
    return f"{title}\n{_imports(whole)}\n\n{whole.text}"


def _imports(whole: Code) -> str:
    """Return the import lines: the standard library first, then the rest."""
    inside = {line for line in whole.imports if line.split()[1].partition(".")[0] in sys.stdlib_module_names}
    blocks = [sorted(lines, key=_order) for lines in (inside, whole.imports - inside)]
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _order(line: str) -> tuple[bool, str]:
    return (line.startswith("from"), line)
