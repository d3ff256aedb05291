"""Checkpoints: `.lcs` files and the folder of a run's checkpoints.

| question | file |
|---|---|
| where do the bytes lie? | `layout.py` (`docs/format.md` is the specification) |
| how is a state turned into nodes and bytes? | `encode.py`, `slots.py`, `dtypes.py`, `values.py`, `plan.py` |
| how is it read back? | `handle.py`, `reader.py`, `records.py`, `chunks.py`, `nodes.py`, `decode.py` |
| how do bytes reach the disk, whole or not at all? | `writer.py`, `sources.py`, `storage.py` |
| which verbs are there? | `files.py`, `restore.py`, `examine.py`, `interchange.py` |
| which checkpoint is the newest, the best, kept? | `store.py`, `catalog.py`, `retention.py`, `upkeep.py` |
| where do they lie? | `folder.py`, `lock.py` |
| what are the tensors of a wrapped model called? | `modules.py` |
"""

from lucid.serialization.examine import Info, Report, inspect, verify
from lucid.serialization.files import load, save
from lucid.serialization.interchange import convert, export_safetensors
from lucid.serialization.modules import load_model_state, model_state, unwrap
from lucid.serialization.restore import load_into
from lucid.serialization.store import Entry, Store

__all__ = [
    "Entry",
    "Info",
    "Report",
    "Store",
    "convert",
    "export_safetensors",
    "inspect",
    "load",
    "load_into",
    "load_model_state",
    "model_state",
    "save",
    "unwrap",
    "verify",
]
