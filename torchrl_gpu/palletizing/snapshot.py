"""The state of a session's pallet as plain data.

It stands for the events that led to it.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.palletizing.events import Plain
from torchrl_gpu.palletizing.packer import Packer, Pallets
from torchrl_gpu.system import arguments

_WHERE = "session: state"
_KEYS = {"heightmap", "bears", "weight", "volume", "top", "below", "left", "boxes"}
# Far beyond any pallet. What is larger would only make numbers that overflow.
_HIGHEST_M = 100.0
_MOST_KG = 1e9
_MOST_M3 = 1e9


def snapshot_of(pallets: Pallets) -> Plain:
    """Return plain data of one row with one pallet, exact to the bit."""
    snapshot: Plain = {}
    snapshot["heightmap"] = _text(pallets.heightmap, "<f4")
    snapshot["bears"] = _text(pallets.bears, "u1")
    snapshot["weight"] = float(pallets.weight[0, 0])
    snapshot["volume"] = float(pallets.volume[0, 0])
    snapshot["top"] = _text(pallets.top, "<i2")
    snapshot["below"] = _text(pallets.below, "u1")
    snapshot["left"] = _text(pallets.left, "<f4")
    snapshot["boxes"] = int(pallets.boxes[0, 0])
    return snapshot


def pallets_of(snapshot: object, packer: Packer, empty: Pallets, most_boxes: int) -> tuple[Plain, Pallets]:
    """Read the state that a snapshot holds, and check it.

    Args:
        snapshot: Plain data, out of a file.
        packer: Of the pallet.
        empty: State of an empty pallet, for the entries that a snapshot does not have.
        most_boxes: That a pallet may hold.

    Returns:
        The snapshot, checked, and the state.

    Raises:
        ValueError: It is not that of such a pallet, or has a value that no pallet has.
    """
    if not isinstance(snapshot, dict) or set(snapshot) != _KEYS:
        arguments.refuse(_WHERE, "state", f"an object of {', '.join(sorted(_KEYS))}", snapshot)
    number = arguments.whole(_WHERE, "boxes", snapshot["boxes"], 0, most_boxes)
    # Loads are kept only once a box limits them.
    most = most_boxes if snapshot["left"] else 0
    cells = packer.bin.cells if most else (0, 0)
    heightmap = _array("heightmap", snapshot, "<f4", packer.bin.cells, low=0, high=_HIGHEST_M)
    bears = _array("bears", snapshot, "u1", packer.bin.bearing_cells, low=0, high=1)
    top = _array("top", snapshot, "<i2", cells, low=-1, high=number - 1)
    below = _array("below", snapshot, "u1", (most, most), low=0, high=1)
    left = _array("left", snapshot, "<f4", (most,), low=-_MOST_KG, high=math.inf)
    weight = arguments.number(_WHERE, "weight", snapshot["weight"], 0, _MOST_KG)
    volume = arguments.number(_WHERE, "volume", snapshot["volume"], 0, _MOST_M3)
    maps = {"heightmap": heightmap, "bears": bears.bool(), "top": top.long(), "below": below.bool(), "left": left}
    of_pallet = {}
    for name, values in maps.items():
        # The only pallet of the only row.
        of_pallet[name] = values.to(packer.device)[None, None]
    state = empty._replace(**of_pallet)
    weights = torch.full_like(empty.weight, weight)
    volumes = torch.full_like(empty.volume, volume)
    boxes = torch.full_like(empty.boxes, number)
    return snapshot, state._replace(weight=weights, volume=volumes, boxes=boxes)


def _text(values: Tensor, dtype: str) -> str:
    """Return the text of an array, "" for one without elements."""
    if not values.numel():
        return ""
    plain = values.cpu().numpy().astype(dtype)
    return base64.b64encode(zlib.compress(plain.tobytes())).decode()


def _array(
    name: str, snapshot: Mapping[str, object], dtype: str, shape: tuple[int, ...], *, low: float, high: float
) -> Tensor:
    """Read the array of an entry whose elements are from `low` to `high`."""
    text = snapshot[name]
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not isinstance(text, str):
        arguments.refuse(_WHERE, name, "a text", text)
    # A short text can unpack to gigabytes, so that no more is unpacked than the array needs, and a byte.
    raw = b""
    if text:
        raw = zlib.decompressobj().decompress(base64.b64decode(text), size + 1)
    if len(raw) != size:
        raise ValueError(f"{_WHERE}: {name} must have {size:,} bytes; got {len(raw):,}")
    found = np.frombuffer(raw, dtype).reshape(shape)
    if not ((found >= low) & (found <= high)).all():
        raise ValueError(f"{_WHERE}: {name} must be from {low:g} to {high:g} everywhere; got others")
    # torch takes the byte order of the machine alone.
    return torch.from_numpy(found.astype(found.dtype.newbyteorder("=")))
