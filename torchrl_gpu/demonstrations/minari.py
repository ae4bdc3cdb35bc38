"""Demonstrations of Minari: in HDF5, or in Arrow, a folder for each episode (`minari.dataset._storages`)."""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torchrl_gpu.demonstrations import hdf5
from torchrl_gpu.demonstrations.recordings import BadParts
from torchrl_gpu.demonstrations.transitions import Demonstrations, from_episodes
from torchrl_gpu.demonstrations.untrusted import (
    Arrays,
    check_file,
    check_room,
    column_of,
    is_list,
    most_bytes,
    read_json,
    reading,
    refuse,
)
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.arguments import shown

DATA_FILE = Path("data") / "main_data.hdf5"
_ABOUT = Path("data") / "metadata.json"
_MAGIC = b"ARROW1\0\0"
_MOST_EPISODES, _MOST_DEEP, _MOST_FIELDS = 10**6, 4, 1000
_VALUE_BYTES = 16  # of a number in the file, and as it is kept
_COMPRESSION = 3  # number of that field in the message of a batch


def is_minari(folder: Path) -> bool:
    return (folder / DATA_FILE).is_file() or (folder / _ABOUT).is_file()


def read_minari(folder: Path, entries: Collection[str] | None, bad: BadParts) -> Demonstrations:
    """Demonstrations of a Minari dataset in HDF5 or Arrow; arguments and errors as in `read_hdf5`."""
    about = folder / _ABOUT
    metadata = read_json(about) if about.is_file() else {}
    kind = metadata.get("data_format", "hdf5") if isinstance(metadata, dict) else metadata
    if kind == "hdf5":
        return hdf5.read_hdf5(folder / DATA_FILE, entries, bad)
    if kind != "arrow":
        refuse(about, "data_format hdf5 or arrow", shown(kind))
    number = metadata.get("total_episodes")
    if type(number) is not int or not 1 <= number <= _MOST_EPISODES:
        refuse(about, f"total_episodes from 1 to {_MOST_EPISODES:,}", shown(number))
    left = most_bytes() // 16  # all together and by episode; a byte becomes eight
    episodes: list[tuple[str, Arrays]] = []
    for i in range(number):
        place = folder / "data" / str(i)
        with bad.guard(str(place)):
            found = sorted(place.glob("*.arrow"))
            if len(found) != 1:
                refuse(place, "one .arrow file", f"{len(found)}")
            left -= check_file(found[0], found[0])
            if left < 0:
                refuse(found[0], "episodes that fit into memory", f"{-left:,} bytes too many")
            episodes.append((str(found[0]), _episode(found[0], entries)))
    return from_episodes(episodes, bad, str(folder), {"format": "observations"})[0]


def _episode(path: Path, entries: Collection[str] | None) -> Arrays:
    """The rows of an episode, without the one that follows the last action."""
    batch = _batch(path)
    names = batch.schema.names
    if len(set(names)) < len(names) or not {"observations", "actions"} <= set(names):
        refuse(path, "observations and actions, once each", shown(names))
    if len(batch) < 2:
        refuse(path, "two rows or more", f"{len(batch)}")
    batch = batch.slice(0, len(batch) - 1)
    found: dict[str, tuple[str, Any]] = {}
    _collect(batch.column("actions"), f"{path}: actions", ("action",), found)
    _collect(batch.column("observations"), f"{path}: observations", ("observation",), found)
    asked = {name: each for name, each in found.items() if entries is None or name in entries}
    check_room(path, _VALUE_BYTES * sum(map(_num_values, (each for _, each in asked.values()))), path.stat().st_size)
    pa = load("pyarrow", "video", "demonstrations")
    return {name: column_of(pa.chunked_array([values]), place) for name, (place, values) in asked.items()}


def _num_values(array: Any) -> int:
    """Values of a column with all its lists: columns may share the bytes of a file, so that these do not bound it."""
    while is_list(array.type):
        array = array.values
    return len(array)


def _collect(values: Any, place: str, key: tuple[str, ...], found: dict[str, tuple[str, Any]]) -> None:
    """Adds the arrays of a struct, with their places, by their names joined by dots."""
    pa = load("pyarrow", "video", "demonstrations")
    if not pa.types.is_struct(values.type):
        name = ".".join(key)
        if name in found:
            refuse(place, "observations of different names", name)
        found[name] = place, values
        return
    fields = [values.type.field(i).name for i in range(values.type.num_fields)]
    if len(key) > _MOST_DEEP or len(fields) > _MOST_FIELDS or values.null_count:
        refuse(place, f"at most {_MOST_DEEP} groups in each other, of {_MOST_FIELDS:,}, no nulls", "others")
    for name, inner in zip(fields, values.flatten(), strict=True):
        _collect(inner, f"{place}/{name}", (*key, name), found)


def _batch(path: Path) -> Any:
    """The one batch of an Arrow file, all of its offsets validated; compressed ones, of unknown size, are refused."""
    pa = load("pyarrow", "video", "demonstrations")
    wanted = "an Arrow file of one batch that can be read to its end"
    with reading(path, wanted):
        content = pa.py_buffer(path.read_bytes())
        if content.size < 16 or content.slice(0, 8).to_pybytes() != _MAGIC:
            refuse(path, "an Arrow file", "one that begins otherwise")
        stream = content.slice(8)
        kinds = []
        for message in pa.ipc.MessageReader.open_stream(stream):
            kinds.append(message.type)
            if message.type == "record batch" and _is_packed(message.metadata.to_pybytes()):
                refuse(path, "values that are not packed", "packed ones")
        if kinds != ["schema", "record batch"]:
            refuse(path, "one batch, without dictionaries", shown(kinds[:5]))
        batch = next(iter(pa.ipc.open_stream(stream)))
        batch.validate(full=True)
        return batch


def _is_packed(message: bytes) -> bool:
    """True if the description of a batch, a flatbuffer, has the field `compression`."""

    def field(table: int, number: int) -> int:
        fields = table - struct.unpack_from("<i", message, table)[0]
        if struct.unpack_from("<H", message, fields)[0] < 6 + 2 * number:
            return 0
        return int(struct.unpack_from("<H", message, fields + 4 + 2 * number)[0])

    try:
        root = struct.unpack_from("<I", message, 0)[0]
        header = root + field(root, 2)
        return field(header + struct.unpack_from("<I", message, header)[0], _COMPRESSION) != 0
    except struct.error as error:
        raise ValueError("a description that is cut off") from error
