"""The data part of an ejected file: a function `load_data` that gives train, validation and test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lucid.cli.ejecting.lift import Code, code, lift
from lucid.config import RunConfig
from lucid.errors import ConfigError

SPLIT = '''
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
PARTS = "return [(x[rows], y[rows]) if len(rows) else None for rows in {split}]"
SCALE = '''
def scaled(values, rows):
    """Mean 0 and standard deviation 1, learnt on the training rows."""
    wide = values[rows].double()
    std = wide.std(0, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std)).float()
    return (values - wide.mean(0).float()) / std
'''


def load(config: RunConfig, task: str) -> tuple[Code, bool]:
    """Return the code of `load_data`, and whether its parts are tensors in memory.

    Raises:
        ConfigError: a kind of data that has no plain form here.
    """
    kind, _, place = config.data.name.partition(":")
    writers: dict[str, Callable[[RunConfig, str, str], Code]] = {
        "digits": _digits, "csv": _table, "npz": _arrays, "npy": _arrays, "text": _text, "idx": _idx,
    }  # fmt: skip
    if kind in writers:
        return writers[kind](config, place, task), True
    if kind in ("parquet", "image-folder", "datasets"):
        raise ConfigError(
            f"lucid eject cannot write data.name = {config.data.name!r} as plain PyTorch. It can: "
            f"{', '.join(writers)}, my_module:factory. Put the loading into a function of your own."
        )
    return _own(config), False


def _digits(config: RunConfig, place: str, task: str) -> Code:
    head = code(
        f'''
        def load_data():
            """Handwritten digits of scikit-learn: 1,797 grey images of 8x8, ten classes."""
            from sklearn.datasets import load_digits

            digits = load_digits()
            x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
            y = torch.tensor(digits.target)
            {PARTS.format(split="split(len(x), y)")}
        '''
    )
    return code(SPLIT) + head


def _idx(config: RunConfig, place: str, task: str) -> Code:
    from lucid.datasets.images import _candidates

    folder = Path(place)
    files = [str(_candidates(folder, f"{part}*-{what}")[0]) for part in _idx_parts(folder) for what in _WHAT]
    own_test = len(files) == 4 and config.data.test > 0
    lines = [f"x, y = read_pair({files[0]!r}, {files[1]!r})"]
    if own_test:
        lines += [
            "train, validation, _ = [(x[rows], y[rows]) if len(rows) else None for rows in split(len(x), y)]",
            f"return train, validation, read_pair({files[2]!r}, {files[3]!r})",
        ]
    else:
        lines.append(PARTS.format(split="split(len(x), y)"))
    body = "\n".join(f"    {line}" for line in lines)
    pair = code(
        '''
        def read_pair(images, labels):
            """Images in [0, 1] and their classes."""
            x = torch.from_numpy(read_idx(Path(images))).unsqueeze(1).float() / 255
            return x, torch.from_numpy(read_idx(Path(labels))).long()
        ''',
        "from pathlib import Path",
    )
    head = Code(set(), f'def load_data():\n    """Images from IDX files."""\n{body}\n')
    return lift("lucid.datasets.images", "read_idx") + code(SPLIT) + pair + head


_WHAT = ("images", "labels")


def split_test(config: RunConfig) -> float:
    """Return the share that is split off for the test: none where the data brings its own."""
    kind, _, place = config.data.name.partition(":")
    return 0.0 if kind == "idx" and len(_idx_parts(Path(place))) > 1 else config.data.test


def _idx_parts(folder: Path) -> list[str]:
    from lucid.datasets.images import _candidates

    return ["train", "t10k"] if _candidates(folder, "t10k-images") else ["train"]


def _table(config: RunConfig, place: str, task: str) -> Code:
    options = config.data.options
    columns = lift("lucid.datasets.columns", "fit_column", "apply_column", "is_missing", "as_number")
    reader = lift("lucid.datasets.table", "_read_csv", "Columns")
    target, features = options.get("target"), options.get("features")
    targets = [target] if isinstance(target, str) else target
    dropped = list(options.get("drop") or [])
    labels = (
        """
            words = [str(cell).strip() for cell in goals[0]]
            names = sorted(set(words), key=lambda word: (as_number(word) is None, as_number(word) or 0.0, word))
            y = torch.tensor([names.index(word) for word in words])
            parts = split(len(y), y)"""
        if task == "classification"
        else """
            y = torch.stack([torch.tensor([as_number(cell) for cell in cells]) for cells in goals], 1)
            parts = split(len(y))"""
    )
    scaling = "\n            y = scaled(y, parts[0])" if task == "regression" else ""
    head = code(
        f'''
        def load_data():
            """Rows of a table; what is learnt about its columns is learnt on the training rows."""
            table = _read_csv(Path({place!r}))
            targets = {targets!r} or [list(table)[-1]]
            features = [name for name in {features!r} or table if name not in targets + {dropped!r}]
            kept = [row for row in range(len(table[targets[0]])) if not any(is_missing(table[t][row]) for t in targets)]
            goals = [[table[name][row] for row in kept] for name in targets]
            cells = [[table[name][row] for row in kept] for name in features]{labels}{scaling}
            learnt = [fit_column(name, [column[row] for row in parts[0]]) for name, column in zip(features, cells)]
            x = torch.cat([apply_column(one, column) for one, column in zip(learnt, cells)], 1)
            {PARTS.format(split="parts")}
        ''',
        "from pathlib import Path",
    )
    scale = code(SCALE) if task == "regression" else Code()
    return columns + reader + code(SPLIT) + scale + head


def _arrays(config: RunConfig, place: str, task: str) -> Code:
    options = config.data.options
    x, y, scale = options.get("x", "x"), options.get("y", "y"), options.get("scale", True)
    if place.endswith(".npy"):
        load = f"features, target = numpy.load({place!r}), numpy.load({y!r})"
    else:
        load = f"file = numpy.load({place!r})\n            features, target = file[{x!r}], file[{y!r}]"
    if task == "classification":
        labels = "y = torch.from_numpy(numpy.unique(target, return_inverse=True)[1].reshape(-1)).long()"
        parts = "parts = split(len(x), y)"
    else:
        labels = "y = torch.from_numpy(numpy.ascontiguousarray(target)).float().reshape(len(target), -1)"
        parts = "parts = split(len(x))"
    scaling = "\n            x = scaled(x, parts[0])" if scale else ""
    scaling += "\n            y = scaled(y, parts[0])" if scale and task == "regression" else ""
    head = code(
        f'''
        def load_data():
            """Rows of arrays."""
            {load}
            x = torch.from_numpy(numpy.ascontiguousarray(features)).float()
            {labels}
            {parts}{scaling}
            {PARTS.format(split="parts")}
        ''',
        "import numpy",
    )
    return code(SPLIT) + (code(SCALE) if scale else Code()) + head


def _text(config: RunConfig, place: str, task: str) -> Code:
    options = config.data.options
    block = options.get("block_size", 64)
    stride = options.get("stride") or block
    if options.get("tokens", "chars") == "chars":
        encode = f"""text = Path({place!r}).read_text("utf-8")
            number = {{character: index for index, character in enumerate(sorted(set(text)))}}
            ids = torch.tensor([number[character] for character in text])"""
    else:
        encode = f"ids = torch.tensor(list(Path({place!r}).read_bytes()))"
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
    return head


def _own(config: RunConfig) -> Code:
    module, _, name = config.data.name.partition(":")
    arguments = own_arguments(config)
    return code(
        f'''
        def load_data():
            """The data sets of {config.data.name}."""
            made = {module}.{name}({", ".join(f"{key}={value!r}" for key, value in arguments.items())})
            if not isinstance(made, tuple):
                parts = split(len(made))
                made = [torch.utils.data.Subset(made, rows.tolist()) if len(rows) else None for rows in parts]
            return (*made, None)[:3]
        ''',
        f"import {module}",
    ) + code(SPLIT)


def own_arguments(config: RunConfig) -> dict[str, Any]:
    """Return what the user's own data factory is called with."""
    from lucid.config.names import bind, import_object

    section = config.data
    given = {"validation": section.validation, "test": section.test, "split_seed": section.split_seed}
    return bind(import_object(section.name, "data.name"), section.options, "data.options", given)
