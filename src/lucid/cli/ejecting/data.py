"""The data part of an ejected file: a function `load_data` that gives train, validation and test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lucid.build import Built
from lucid.cli.ejecting.lift import Code, code, literal
from lucid.config import RunConfig
from lucid.config.names import bind, import_object
from lucid.datasets import DataBundle
from lucid.errors import ConfigError
from lucid.rng import fork

SPLIT = code(
    '''
    def split(count, labels=None):
        """Row numbers of train, validation and test, drawn with a seed; every class keeps its proportion."""
        generator = torch.Generator().manual_seed(SPLIT_SEED)
        groups = [torch.arange(count)]
        if labels is not None:
            groups = [(labels == value).nonzero()[:, 0] for value in sorted(set(labels.tolist()))]
        parts = ([], [], [])
        for group in groups:
            order = group[torch.randperm(len(group), generator=generator)].tolist()
            test = round(len(order) * TEST)
            validation = test + round(len(order) * VALIDATION)
            for part, rows in zip(parts, (order[validation:], order[test:validation], order[:test])):
                part.extend(rows)
        return [torch.tensor(sorted(part), dtype=torch.int64) for part in parts]
    '''
)
PARTS = "[(x[rows], y[rows]) if len(rows) else None for rows in {rows}]"
SCALE = code(
    '''
    def mean_and_std(values):
        """What brings values to mean 0 and standard deviation 1; a column that never changes keeps its unit."""
        values = values.double()
        std = values.std(0, correction=0)
        return values.mean(0).float(), torch.where(std > 0, std, torch.ones_like(std)).float()
    '''
)


@dataclass
class Loading:
    """How the data of a run are loaded."""

    code: Code
    in_memory: bool = True
    """Parts are tensors; else they are data sets, read row by row."""
    draws: Literal["", "torch", "all"] = ""
    """Random streams that a row may draw from."""
    own: tuple[str, ...] = ()
    """Parts that the data bring themselves, so that none is split off."""
    is_shuffled: bool = True
    """The split is drawn; else parts are cut in order."""

    @property
    def is_split(self) -> bool:
        """Whether anything is split off."""
        return len(self.own) < 2


def load(built: Built) -> Loading:
    """Return the code of `load_data`, and what the loop must know of its parts.

    Raises:
        ConfigError: data that have no plain form here.
    """
    from lucid.cli.ejecting import data_hub, data_images, data_table

    kind, _, place = built.config.data.name.partition(":")
    writers: dict[str, Callable[[Built, str], Loading]] = {
        "digits": _digits, "npz": _arrays, "npy": _arrays, "text": _text, "csv": data_table.table,
        "parquet": data_table.table, "idx": data_images.idx, "image-folder": data_images.folder,
        "datasets": data_hub.hub,
    }  # fmt: skip
    return writers[kind](built, place) if kind in writers else _own(built.config)


def _digits(built: Built, place: str) -> Loading:
    head = code(
        f'''
        def load_data():
            """Handwritten digits of scikit-learn: 1,797 grey images of 8x8, ten classes."""
            digits = load_digits()
            x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
            y = torch.tensor(digits.target)
            return {PARTS.format(rows="split(len(x), y)")}
        ''',
        "from sklearn.datasets import load_digits",
    )
    return Loading(SPLIT + head)


def _arrays(built: Built, place: str) -> Loading:
    options, task = built.config.data.options, built.data.task
    x, y = options.get("x", "x"), options.get("y", "y")
    scale = options.get("scale", True)
    lines = [f"file = numpy.load({literal(place)})", f"features, target = file[{literal(x)}], file[{literal(y)}]"]
    if place.endswith(".npy"):
        lines = [f"features, target = numpy.load({literal(place)}), numpy.load({literal(y)})"]
    lines.append("x = torch.from_numpy(numpy.ascontiguousarray(features)).float()")
    if task == "classification":
        lines.append("y = torch.from_numpy(numpy.unique(target, return_inverse=True)[1].reshape(-1)).long()")
    else:
        lines.append("y = torch.from_numpy(numpy.ascontiguousarray(target)).float().reshape(len(target), -1)")
    lines.append(f"parts = split(len(x){', y' if task == 'classification' else ''})")
    for name in ("x", "y") if scale and task == "regression" else ("x",) if scale else ():
        lines += [f"mean, std = mean_and_std({name}[parts[0]])", f"{name} = ({name} - mean) / std"]
    lines.append(f"return {PARTS.format(rows='parts')}")
    return Loading(SPLIT + (SCALE if scale else Code()) + function("Rows of arrays.", lines, "import numpy"))


def _text(built: Built, place: str) -> Loading:
    options = built.config.data.options
    block = options.get("block_size", 64)
    stride = options.get("stride") or block
    if options.get("tokens", "chars") == "chars":
        encode = f"""text = Path({literal(place)}).read_text("utf-8")
            number = {{character: index for index, character in enumerate(sorted(set(text)))}}
            ids = torch.tensor([number[character] for character in text])"""
    else:
        encode = f"ids = torch.tensor(list(Path({literal(place)}).read_bytes()))"
    head = code(
        f'''
        def load_data():
            """Rows of tokens of a text, with the tokens one further as target; parts in the order of the text."""
            {encode}
            test, validation = round(len(ids) * TEST), round(len(ids) * VALIDATION)
            parts = ids.split([len(ids) - test - validation, validation, test])
            return [(rows(part[:-1]), rows(part[1:])) if len(part) else None for part in parts]


        def rows(ids):
            """Every {stride}th row of {block} tokens; a view, which takes no memory."""
            return ids.unfold(0, {block}, {stride})
        ''',
        "from pathlib import Path",
    )
    return Loading(head, is_shuffled=False)


def _own(config: RunConfig) -> Loading:
    module, _, name = config.data.name.partition(":")
    given = own_arguments(config)
    with fork(seed=0):
        made = import_object(config.data.name, "data.name")(**given)  # once more: it may be what needs lucid
    if isinstance(made, DataBundle):
        raise ConfigError(
            f"lucid eject: {config.data.name} gives a lucid.datasets.DataBundle, which the file could not read without "
            "lucid. Let it return the data sets: (train, validation, test)."
        )
    arguments = ", ".join(f"{key}={literal(value)}" for key, value in given.items())
    head = code(
        f'''
        def load_data():
            """The data sets of {config.data.name}."""
            made = {module}.{name}({arguments})
            if not isinstance(made, tuple):
                parts = split(len(made))
                made = [torch.utils.data.Subset(made, rows.tolist()) if len(rows) else None for rows in parts]
            return (*made, None)[:3]
        ''',
        f"import {module}",
    )
    return Loading(SPLIT + head, in_memory=False, draws="all")


def own_arguments(config: RunConfig) -> dict[str, Any]:
    """Return what the user's own data factory is called with."""
    section = config.data
    given = {"validation": section.validation, "test": section.test, "split_seed": section.split_seed}
    return bind(import_object(section.name, "data.name"), section.options, "data.options", given)


def function(words: str, lines: list[str], *imports: str) -> Code:
    """Return `load_data` from its lines."""
    body = "\n".join(f"    {line}" if line else "" for line in lines)
    return Code(set(imports), f'def load_data():\n    """{words}"""\n{body}\n')
