"""Data sets of the Hugging Face library in an ejected file: only the kind of columns that the run has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lucid.build import Built
from lucid.cli.ejecting.data import PARTS, SCALE, SPLIT, Loading, function
from lucid.cli.ejecting.lift import Code, code, literal


def hub(built: Built, place: str) -> Loading:
    """Return the loading of a `datasets` data set."""
    from lucid.datasets.hub import _load

    section, state = built.config.data, built.data.transform_state
    name = section.options.get("config")
    parts = _load(place, name)
    own = tuple(part for part in ("validation", "test") if part in parts)
    y, is_classes = section.options.get("y", "label"), built.data.task == "classification"
    main = 'data["train"]' if "train" in parts else f"data[{literal(next(iter(parts)))}]"
    if (Path(place) / "state.json").exists():
        main = "data"  # one data set, saved by itself
    opened = f"datasets.load_dataset({literal(place)}{f', {literal(name)}' if name else ''})"
    if any((Path(place) / mark).exists() for mark in ("dataset_dict.json", "state.json")):
        opened = f"datasets.load_from_disk({literal(place)})"
    lines = [f"data = {opened}", f"x, y = features({main}), target({main})"]
    drawn = f"split(len(y){', y' if is_classes else ''})"
    lines.append(f"rows = {drawn if len(own) < 2 else '[torch.arange(len(y)), [], []]'}")
    lines.append(f"parts = {PARTS.format(rows='rows')}")
    for at, part in enumerate(("validation", "test"), 1):
        if part in own and getattr(section, part):
            lines.append(f'parts[{at}] = features(data["{part}"]), target(data["{part}"])')
    pair = {"x": "x", "y": "y"}
    for letter, key in (("x", "scaler"), ("y", "target_scaler")):
        if key in state:
            lines.append(f"{letter}_mean, {letter}_std = mean_and_std({letter}[rows[0]])")
            pair[letter] = f"({letter} - {letter}_mean) / {letter}_std"
    is_scaled = pair["x"] != "x" or pair["y"] != "y"
    if is_scaled:
        lines += ["", "def scaled(x, y):", f"    return {pair['x']}, {pair['y']}", ""]
    lines.append("return [part and scaled(*part) for part in parts]" if is_scaled else "return parts")
    made = _features(state) + _target(y, is_classes) + (SPLIT if len(own) < 2 else Code())
    made = made + (SCALE if is_scaled else Code())
    return Loading(made + function("Rows of a `datasets` data set.", lines, "import datasets"), own=own)


def _features(state: dict[str, Any]) -> Code:
    kind, columns = state["kind"], state["x"]
    if kind == "bytes":
        length = state["length"]
        return code(
            f'''
            def features(data):
                """The first {length} bytes of each text, filled with 0."""
                rows = [list(text.encode()[:{length}]) for text in data[{literal(columns[0])}]]
                return torch.tensor([row + [0] * ({length} - len(row)) for row in rows])
            '''
        )
    if kind == "image":
        order = "pixels.unsqueeze(1)" if state["shape"][0] == 1 else "pixels.permute(0, 3, 1, 2).contiguous()"
        return code(
            f'''
            def features(data):
                """Images (channels, height, width) in [0, 1]."""
                arrays = [numpy.asarray(picture, dtype=numpy.float32) / 255 for picture in data[{literal(columns[0])}]]
                pixels = torch.from_numpy(numpy.stack(arrays))
                return {order}
            ''',
            "import numpy",
        )
    return code(
        f'''
        def features(data):
            """Columns of numbers, side by side."""
            columns = [torch.tensor(data[name][:], dtype=torch.float32) for name in {literal(columns)}]
            return torch.cat([column.reshape(len(data), -1) for column in columns], 1)
        '''
    )


def _target(column: str, is_classes: bool) -> Code:
    words, kind = ("Class numbers.", "int64)") if is_classes else (
        "Numbers to predict.", "float32).reshape(len(data), -1)"
    )  # fmt: skip
    return code(
        f'''
        def target(data):
            """{words}"""
            return torch.tensor(data[{literal(column)}][:], dtype=torch.{kind}
        '''
    )
