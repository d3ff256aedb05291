"""Before the first byte: which slot lies where, the finished header and the finished manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lucid.errors import UnsupportedTypeError
from lucid.serialization import dtypes, layout, memory, system
from lucid.serialization.encode import Encoder
from lucid.serialization.slots import Slot, extent


@dataclass(slots=True)
class Plan:
    """A state ready to be written. `slots` are in the order of their bytes, `starts` are their offsets in the data."""

    header: bytes
    manifest: bytes
    slots: list[Slot]
    starts: list[int]
    data_size: int

    @property
    def chunks(self) -> int:
        """Number of checksums in the table."""
        return -(-self.data_size // layout.CHUNK)

    @property
    def file_size(self) -> int:
        """Size of the finished file in bytes."""
        return len(self.header) + self.data_size + len(self.manifest) + 8 * self.chunks + layout.FOOTER_SIZE


@memory.no_collection()
def make_plan(state: Any, *, types: Sequence[type] = (), meta: dict[str, Any] | None = None) -> Plan:
    """Encode a state and lay out its bytes. Nothing is copied, the slots point into the state's memory.

    Raises:
        UnsupportedTypeError: something in the state cannot be stored.
        LimitError: more tensors than one file can name.
    """
    system.check_byte_order()
    encoder = Encoder(types)
    tree = encoder.encode(state)
    aliases = find_aliases(encoder.slots)
    note = Encoder()
    user = note.encode(meta or {}, ("meta",))
    if note.slots:
        raise UnsupportedTypeError(
            "meta must hold small plain values, got tensors, arrays or long bytes: store them in the state."
        )
    stored = [index for index in range(len(encoder.slots)) if index not in aliases]
    order = [stored[at] for at in layout.placement([encoder.slots[index].size for index in stored])]
    taken: set[str] = set()
    names = {index: layout.header_name(encoder.slots[index].path, taken) for index in stored}
    slots = [encoder.slots[index] for index in order]
    starts, end = [], 0
    for slot in slots:
        starts.append(end)
        end += slot.size
    manifest = _manifest(tree, user, encoder.slots, names, aliases)
    tail_size = len(manifest) + 8 * -(-end // layout.CHUNK) + layout.FOOTER_SIZE
    blocks = (
        layout.Block(names[index], slot.code, slot.shape, start, start + slot.size)
        for index, slot, start in zip(order, slots, starts, strict=True)
    )
    version = ".".join(map(str, layout.VERSION))
    header = layout.pack_header(blocks, (end, end + tail_size), {"format": "pt", "lcs": version})
    return Plan(header, manifest, slots, starts, end)


def _manifest(
    tree: Any, user: Any, slots: list[Slot], names: dict[int, str], aliases: dict[int, dict[str, Any]]
) -> bytes:
    devices: dict[str, int] = {}
    records: list[list[Any]] = []
    for index, slot in enumerate(slots):
        device = devices.setdefault(slot.device, len(devices))
        extras = {"alias": aliases[index]} if index in aliases else slot.extras
        record: list[Any] = [names.get(index), device]
        records.append([*record, extras] if extras else record)
    manifest = {
        "lcs": layout.VERSION,
        "requires": [],
        "devices": list(devices),
        "tensors": records,
        "tree": tree,
        "user": user,
    }
    text = json.dumps(manifest, separators=(",", ":"), allow_nan=False).encode("ascii")
    return text.ljust(-(-len(text) // 8) * 8)


def find_aliases(slots: list[Slot]) -> dict[int, dict[str, Any]]:
    """Find tensors that overlap in memory and say of each which part of which stored slot it is.

    The first contiguous tensor that covers the others is stored, the others are views of it. If none does, their
    union is stored as bytes: a slot is appended for it. Tensors of one storage that do not overlap stay apart.
    """
    spans: list[tuple[str, int, int, int]] = []
    for index, slot in enumerate(slots):
        tensor = slot.owner
        if not isinstance(tensor, torch.Tensor):
            continue
        if slot.address:  # dense, and its bytes are what it spans
            spans.append((slot.device, slot.address, slot.address + slot.size, index))
        elif slot.size and not (tensor.is_conj() or tensor.is_neg()):
            start = tensor.data_ptr()
            spans.append((slot.device, start, start + extent(tensor), index))
    spans.sort()
    aliases: dict[int, dict[str, Any]] = {}
    cluster = spans[:1]
    end = spans[0][2] if spans else 0
    for span in spans[1:]:
        if span[1] < end and span[0] == cluster[0][0]:
            cluster.append(span)
            end = max(end, span[2])
            continue
        _resolve(cluster, slots, aliases)
        cluster, end = [span], span[2]
    _resolve(cluster, slots, aliases)
    return aliases


def _resolve(cluster: list[tuple[str, int, int, int]], slots: list[Slot], aliases: dict[int, dict[str, Any]]) -> None:
    if len(cluster) < 2:
        return
    low = cluster[0][1]
    high = max(span[2] for span in cluster)
    members = sorted(span[3] for span in cluster)
    owners = [slots[index].owner for index in members]
    if len({owner.untyped_storage().data_ptr() for owner in owners}) > 1:
        return  # memory shared behind torch's back: stored apart
    if any((owner.data_ptr() - low) % owner.element_size() for owner in owners):
        return  # a view that torch cannot make again
    base = next((i for i, t in zip(members, owners, strict=True)
                 if t.data_ptr() == low and t.is_contiguous() and t.numel() * t.element_size() == high - low
                 and "expand" not in (slots[i].extras or {})), None)  # fmt: skip
    if base is None:
        base = len(slots)
        slots.append(_union(owners[0], low, high - low, slots[members[0]]))
    for index, owner in zip(members, owners, strict=True):
        if index == base:
            continue
        shape = list(owner.shape)
        stride = list(owner.stride())
        expanded = (slots[index].extras or {}).get("expand")
        if expanded is not None:
            stride = [0 if n != m else s for n, m, s in zip(shape, expanded, stride, strict=True)]
            shape = expanded
        aliases[index] = {
            "i": base,
            "off": owner.data_ptr() - low,
            "shape": shape,
            "stride": stride,
            "dt": dtypes.name_of(owner.dtype),
        }


def _union(tensor: torch.Tensor, low: int, size: int, first: Slot) -> Slot:
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    whole = whole.set_(storage, low - storage.data_ptr(), (size,), (1,))
    address = low if tensor.device.type == "cpu" else 0
    return Slot((*first.path, "memory"), "U8", (size,), size, address, whole, first.device)
