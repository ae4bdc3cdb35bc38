"""Demonstrations of Minari: in HDF5, or in Arrow, a folder for each episode.

The format is that of `minari.dataset._storages`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from torchrl_gpu.demonstrations import hdf5
from torchrl_gpu.demonstrations.recordings import BadParts
from torchrl_gpu.demonstrations.transitions import Demonstrations, from_episodes
from torchrl_gpu.demonstrations.untrusted import (
    Arrays,
    PyArrow,
    check_file,
    check_room,
    column_of,
    fail,
    is_list,
    most_bytes,
    read_json,
    reading,
    refuse,
)
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.arguments import shown

DATA_FILE = Path("data") / "main_data.hdf5"
_METADATA = Path("data") / "metadata.json"
_MAGIC = b"ARROW1\0\0"
_LEAST_FILE = 16  # bytes
_MOST_EPISODES = 10**6
# Groups in each other, and members of one.
_MOST_DEEP = 4
_MOST_FIELDS = 1000
# Bytes of a number in the file, and as it is kept.
_VALUE_BYTES = 16
# Number of that field in the message of a batch.
_COMPRESSION = 3
_HEADER = 2


class _Column(NamedTuple):
    """An array of Arrow, and its place in the file, for errors."""

    place: str
    values: PyArrow


def is_minari(folder: Path) -> bool:
    return (folder / DATA_FILE).is_file() or (folder / _METADATA).is_file()


def read_minari(folder: Path, entries: Collection[str] | None, bad: BadParts) -> Demonstrations:
    """Read a Minari dataset in HDF5 or Arrow.

    Arguments and errors as in `read_hdf5`.
    """
    path = folder / _METADATA
    metadata = read_json(path) if path.is_file() else {}
    kind = metadata.get("data_format", "hdf5") if isinstance(metadata, dict) else metadata
    if kind == "hdf5":
        return hdf5.read_hdf5(folder / DATA_FILE, entries, bad)
    if kind != "arrow":
        refuse(path, "data_format hdf5 or arrow", shown(kind))
    number = metadata.get("total_episodes")
    if type(number) is not int or not 1 <= number <= _MOST_EPISODES:
        refuse(path, f"total_episodes from 1 to {_MOST_EPISODES:,}", shown(number))
    # A byte of the file may become eight, which are held by episode and all together.
    left = most_bytes() // 16
    episodes: list[tuple[str, Arrays]] = []
    for i in range(number):
        place = folder / "data" / str(i)
        with bad.guard(str(place)):
            found = sorted(place.glob("*.arrow"))
            if len(found) != 1:
                refuse(place, "one .arrow file", f"{len(found)}")
            file = found[0]
            left -= check_file(file, file)
            if left < 0:
                fail(file, f"the episodes do not fit into memory: {-left:,} bytes too many")
            episodes.append((str(file), _read_episode(file, entries)))
    return from_episodes(episodes, bad, str(folder), {"format": "observations"})[0]


def _read_episode(path: Path, entries: Collection[str] | None) -> Arrays:
    """Return the rows of an episode, without the one that follows the last action."""
    batch = _read_batch(path)
    names = batch.schema.names
    if len(set(names)) < len(names) or not {"observations", "actions"} <= set(names):
        refuse(path, "observations and actions, once each", shown(names))
    if len(batch) < 2:
        refuse(path, "two rows or more", f"{len(batch)}")
    # The last row has what followed the last action, and no action.
    batch = batch.slice(0, len(batch) - 1)
    found: dict[str, _Column] = {}
    _collect(batch.column("actions"), f"{path}: actions", ("action",), found)
    _collect(batch.column("observations"), f"{path}: observations", ("observation",), found)
    asked = {name: column for name, column in found.items() if entries is None or name in entries}
    num_values = sum(_num_values(column.values) for column in asked.values())
    check_room(path, _VALUE_BYTES * num_values, path.stat().st_size)
    pa = load("pyarrow", "video", "demonstrations")
    return {name: column_of(pa.chunked_array([column.values]), column.place) for name, column in asked.items()}


def _num_values(array: PyArrow) -> int:
    """Return the number of values of a column with all its lists.

    Columns may share the bytes of a file, so that these do not bound it.
    """
    while is_list(array.type):
        array = array.values
    return len(array)


def _collect(values: PyArrow, place: str, key: tuple[str, ...], found: dict[str, _Column]) -> None:
    """Add the arrays of a struct by their names joined by dots."""
    pa = load("pyarrow", "video", "demonstrations")
    if not pa.types.is_struct(values.type):
        name = ".".join(key)
        if name in found:
            fail(place, f"two observations have the name {name}")
        found[name] = _Column(place, values)
        return
    fields = [values.type.field(i).name for i in range(values.type.num_fields)]
    if len(key) > _MOST_DEEP or len(fields) > _MOST_FIELDS or values.null_count:
        fail(place, f"there may be {_MOST_DEEP} groups in each other, of {_MOST_FIELDS:,} members, without nulls")
    for name, inner in zip(fields, values.flatten(), strict=True):
        _collect(inner, f"{place}/{name}", (*key, name), found)


def _read_batch(path: Path) -> PyArrow:
    """Return the one batch of an Arrow file, all of its offsets validated.

    Compressed ones, whose size nobody knows before, are refused.
    """
    pa = load("pyarrow", "video", "demonstrations")
    with reading(path, "an Arrow file of one batch"):
        content = pa.py_buffer(path.read_bytes())
        begin = content.slice(0, min(len(_MAGIC), content.size)).to_pybytes()
        if content.size < _LEAST_FILE or begin != _MAGIC:
            fail(path, "it does not begin like an Arrow file")
        stream = content.slice(len(_MAGIC))
        kinds = []
        for message in pa.ipc.MessageReader.open_stream(stream):
            kinds.append(message.type)
            if message.type == "record batch" and _is_packed(message.metadata.to_pybytes()):
                fail(path, "its values are packed; write it without compression")
        if kinds != ["schema", "record batch"]:
            refuse(path, "one batch, without dictionaries", shown(kinds[:5]))
        batch = next(iter(pa.ipc.open_stream(stream)))
        batch.validate(full=True)
        return batch


def _is_packed(message: bytes) -> bool:
    """Return whether the description of a batch has the field `compression`.

    pyarrow does not tell, and unpacks such a batch as soon as it is read. The description is a flatbuffer: a table
    begins with the distance back to a list of its fields' places, 0 for one that is not there.
    """

    def place_of(table: int, number: int) -> int:
        fields = table - struct.unpack_from("<i", message, table)[0]
        # The list begins with its own size: writers leave out fields at its end that are not there.
        if struct.unpack_from("<H", message, fields)[0] < 6 + 2 * number:
            return 0
        place = fields + 4 + 2 * number
        return int(struct.unpack_from("<H", message, place)[0])

    try:
        root = struct.unpack_from("<I", message, 0)[0]
        header = root + place_of(root, _HEADER)
        batch = header + struct.unpack_from("<I", message, header)[0]
        return place_of(batch, _COMPRESSION) != 0
    except struct.error as error:
        raise ValueError("a description that is cut off") from error
