"""Images in an ejected file: IDX files, and a folder with a folder per class."""

from __future__ import annotations

from pathlib import Path

from lucid.build import Built
from lucid.cli.ejecting.data import PARTS, SPLIT, Loading, function
from lucid.cli.ejecting.lift import Code, code, lift, literal

READ_IDX = code(
    '''
    def read_idx(path):
        """The bytes of an IDX file, in the shape that its header says."""
        raw = {read}
        shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
        return torch.tensor(numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * len(shape))).reshape(shape)


    def read_pair(images, labels):
        """Images in [0, 1] and their classes."""
        return read_idx(images).unsqueeze(1).float() / 255, read_idx(labels).long()
    ''',
    "import numpy",
    "from pathlib import Path",
)


def idx(built: Built, place: str) -> Loading:
    """Return the loading of IDX files."""
    from lucid.datasets.images import _candidates

    folder, shares = Path(place), built.config.data
    own = ("test",) if _candidates(folder, "t10k-images") else ()
    pairs = [
        [str(_candidates(folder, f"{part}*-{what}")[0]) for what in ("images", "labels")]
        for part in ("train", *(["t10k"] if own else []))
    ]
    first, *second = [f"read_pair({literal(images)}, {literal(labels)})" for images, labels in pairs]
    parts = PARTS.format(rows="split(len(x), y)")
    lines = [f"x, y = {first}"]
    if second and shares.test:
        lines += [f"train, validation, _ = {parts}", f"return train, validation, {second[0]}"]
    else:
        lines.append(f"return {parts}")
    packed = [name.endswith(".gz") for pair in pairs for name in pair]
    read = "gzip.decompress(Path(path).read_bytes())" if all(packed) else "Path(path).read_bytes()"
    if any(packed) and not all(packed):
        read = 'gzip.decompress(Path(path).read_bytes()) if path.endswith(".gz") else Path(path).read_bytes()'
    reader = Code(READ_IDX.imports | ({"import gzip"} if any(packed) else set()), READ_IDX.text.replace("{read}", read))
    return Loading(reader + SPLIT + function("Images from IDX files.", lines), own=own)


def folder(built: Built, place: str) -> Loading:
    """Return the loading of a folder with a folder per class."""
    from lucid.datasets.images import SUFFIXES

    options, root = built.config.data.options, Path(place)
    there = [name for name in ("train", "validation", "val", "test") if (root / name).is_dir()]
    own = tuple(
        name for name, places in (("validation", {"validation", "val"}), ("test", {"test"})) if places & set(there)
    )
    lines = [f"folder = Path({literal(place)})"]
    if "train" in there:
        lines.append('training = folder / "train"')
    main = "training" if "train" in there else "folder"
    lines.append(f"names = sorted(path.name for path in {main}.iterdir() if path.is_dir())")
    lines.append(f"images = list_images({main}, names)")
    if len(own) < 2:
        lines.append("parts = split(len(images), torch.tensor([label for _, label in images]))")
        lines.append("train, validation, test = [[images[row] for row in rows.tolist()] for rows in parts]")
    for name in own:
        is_used = getattr(built.config.data, name) > 0
        at = "val" if name == "validation" and "validation" not in there else name
        lines.append(f"{name} = list_images(folder / {literal(at)}, names)" if is_used else f"{name} = []")
    train = "images" if len(own) == 2 else "train"
    augment = bool(options.get("augment", False))
    lines.append(f"return Images({train}{', augmented=True' if augment else ''}), Images(validation), Images(test)")
    suffixes = ", ".join(map(literal, SUFFIXES))
    listing = code(
        f'''
        def list_images(folder, names):
            """Paths and class numbers of the images in a folder per class."""
            return [
                (path, label)
                for label, name in enumerate(names)
                for path in sorted((folder / name).rglob("*"))
                if path.suffix.lower() in ({suffixes})
            ]
        ''',
        "from pathlib import Path",
    )
    made = listing + _images(built, augment) + (SPLIT if len(own) < 2 else Code())
    made = made + function("Images in a folder per class.", lines)
    return Loading(made, in_memory=False, draws="torch" if augment else "", own=own)


def _images(built: Built, augment: bool) -> Code:
    channels, height, width = built.data.input_shape
    mode, image = ("RGB", "pixels.permute(2, 0, 1).contiguous()") if channels == 3 else ("L", "pixels.unsqueeze(0)")
    given, kept, words = "rows", "self.rows = rows", "Images (channels, height, width) in [0, 1], read row by row."
    if augment:
        given, kept = "rows, augmented=False", "self.rows, self.augmented = rows, augmented"
        words = words.removesuffix(".") + ", flipped and shifted at random if `augmented`."
        image = f"image = {image}\n                return (augment(image) if self.augmented else image), label"
    else:
        image = f"return {image}, label"
    made = code(
        f'''
        class Images(torch.utils.data.Dataset):
            """{words}"""

            def __init__(self, {given}):
                {kept}

            def __len__(self):
                return len(self.rows)

            def __getitem__(self, index):
                path, label = self.rows[index]
                with Image.open(path) as file:
                    picture = file.convert("{mode}").resize(({width}, {height}), Image.Resampling.BILINEAR)
                pixels = torch.from_numpy(numpy.array(picture, dtype=numpy.float32)) / 255
                {image}
        ''',
        "import numpy",
        "from PIL import Image",
    )
    if not augment:
        return made
    lifted = lift("lucid.datasets.images", "_augment")
    return Code(lifted.imports, lifted.text.replace("_augment(", "augment(")) + made
