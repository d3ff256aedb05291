"""Checkpoints: `.lcs` files and the folder of a run's checkpoints.

| question | file |
|---|---|
| where do the bytes lie? | `layout.py` (`docs/format.md` is the specification) |
| how is a state turned into nodes and bytes? | `encode.py`, `slots.py`, `dtypes.py`, `values.py`, `plan.py` |
| how is it read back? | `reader.py`, `decode.py` |
| how do bytes reach the disk? | `writer.py` |
| which verbs are there? | `files.py` |
| which checkpoint is the newest, the best, kept? | `store.py` |
"""

from lucid.serialization.files import load, save
from lucid.serialization.restore import load_into
from lucid.serialization.store import Entry, Store

__all__ = ["Entry", "Store", "load", "load_into", "save"]
