"""Untrusted JSON, parquet and NumPy files as plain arrays and values; every error is a ValueError of one line."""

from __future__ import annotations

import json
import math
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch

from torchrl_gpu.demonstrations import parquet_pages
from torchrl_gpu.envs import memory
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.arguments import shown
from torchrl_gpu.system.parts import Part

MOST_FRAMES = 10**8
"""Rows of all files together, and frames of a video."""
_SMALL_JSON_BYTES, _MOST_JSON_BYTES = 2**20, 2**26
_JSON_TIMES = 48  # bytes that one of JSON can take: of empty lists
_MOST_BYTES = 2**33  # of a file's content, where the free memory is unknown
_SMALL_BYTES, _MOST_TIMES = 2**27, 1000  # that what is read may take, and how many times the file's bytes besides
_VALUE_BYTES = 16  # of a number as a library reads it, and as it is kept
_MOST_VALUES = 2**20  # of a row
_MOST_AXES = 4  # of a value in a row
_UNREADABLE = (
    *(ValueError, TypeError, OSError, EOFError, RuntimeError, OverflowError, RecursionError, MemoryError),
    *(KeyError, IndexError, AttributeError, NotImplementedError, zipfile.BadZipFile, zlib.error),
)
_FIELD = re.compile(r"\{(\w{1,32})(?::0?(\d)d)?\}")

Arrays = dict[str, np.ndarray]
"""Columns by name, (L, …) each: bool, int64 or finite float32; `timestamp` and the like float64."""


def refuse(name: object, wanted: str, came: object) -> NoReturn:
    """Raises the error: `demonstrations: NAME: want …; got …`."""
    raise ValueError(f"demonstrations: {name}: want {wanted}; got {came}")


@contextmanager
def reading(name: object, wanted: str) -> Iterator[None]:
    """Turns the errors that libraries raise for broken files into that error."""
    try:
        yield
    except _UNREADABLE as error:
        if isinstance(error, ModuleNotFoundError) or str(error).startswith("demonstrations: "):
            raise
        reason = re.split(r"\n|\.\s", str(error).strip())[0][:160] or type(error).__name__
        raise ValueError(f"demonstrations: {name}: want {wanted}; got what fails with: {reason}") from error


def check_file(path: Path, name: object) -> int:
    """Bytes of a regular file; ValueError where there is none."""
    try:
        if path.is_file():  # neither a folder nor a pipe, on which reading would wait
            return path.stat().st_size
    except (OSError, ValueError) as error:
        raise ValueError(f"demonstrations: {name}: want a file; got {shown(str(error))}") from error
    refuse(name, "a file", "none there")


def most_bytes() -> int:
    """Bytes of host memory that the content of a file may take: most of what is free."""
    free = memory.free_bytes(torch.device("cpu"))
    return _MOST_BYTES if free is None else int(memory.SHARE * free)


def check_room(name: object, needed: int, stored: int | None = None) -> None:
    """ValueError unless `needed` bytes fit into memory and, unpacked from `stored` bytes, into `room_of(stored)`."""
    free = most_bytes()
    if needed > free:
        refuse(name, f"values that fit into the {free:,} bytes of memory that are to be had", f"{needed:,} bytes")
    if stored is not None and needed > (most := room_of(stored)):
        refuse(name, f"at most {most:,} bytes of values in a file of {stored:,}", f"{needed:,}")


def room_of(stored: int) -> int:
    """Bytes that a file of `stored` bytes may unpack to: many more than measurements do."""
    return min(most_bytes(), _SMALL_BYTES + _MOST_TIMES * stored)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which has its name only once all of it is written; nothing is left of an error.

    Raises:
        FileExistsError: There is one of that name, or another program is writing it.
    """
    if folder.exists():
        raise FileExistsError(f"demonstrations: {folder}: want a folder that is not there yet; got one that is")
    part = Part(folder, "demonstrations", is_folder=True)
    try:
        yield part.part
    except BaseException:
        part.discard()
        raise
    part.publish()


def read_json(path: Path, most: int | None = None) -> Any:
    """The content of a JSON file of at most `most` bytes; numbers are finite."""
    size, most = check_file(path, path), _MOST_JSON_BYTES if most is None else most
    if size > most:
        refuse(path, f"JSON of at most {most:,} bytes", f"{size:,}")
    if size > _SMALL_JSON_BYTES:
        check_room(path, _JSON_TIMES * size)
    with reading(path, "JSON of finite numbers"):
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_finite)


def _not_finite(word: str) -> NoReturn:
    raise ValueError(f"the number {word}")


def fill_pattern(pattern: Any, name: object, **values: int | str) -> PurePosixPath:
    """Fills in a pattern such as `data/chunk-{chunk_index:03d}.parquet`: a path inside the dataset, or a ValueError.

    Patterns are not trusted, and `str.format` would read attributes.
    """
    wanted = f"a relative path inside the dataset with the fields {', '.join(values)}"
    if not isinstance(pattern, str) or len(pattern) > 512:
        refuse(name, wanted, shown(pattern))

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            refuse(name, wanted, shown(pattern))
        return str(values[match[1]]).zfill(int(match[2] or 0))

    filled = _FIELD.sub(fill, pattern)
    path = PurePosixPath(filled)
    left = _FIELD.sub("", pattern)
    plain = filled.isprintable() and not set(filled) & set("\\:") and not set(left) & set("{}")
    if not plain or not path.parts or path.is_absolute() or ".." in path.parts:
        refuse(name, wanted, shown(filled))
    return path


# -- tables ------------------------------------------------------------------------------------------------------------


def read_parquet(path: Path, columns: Collection[str] | None = None) -> Arrays:
    """Columns of numbers or flags of a parquet file, those of some names or all; lists of one length are further axes.

    ValueError where a column holds nulls, lists of several lengths, or other values.
    """
    with reading(path, "a parquet file"):
        file = _opened(path)
        schema = file.schema_arrow
        names = [each for each in schema.names if _is_wanted(schema, each, columns)]
        if len(set(names)) < len(names):
            refuse(path, "columns of different names", shown(names))
        check_room(path, _VALUE_BYTES * _sizes(path, file, names)[0], path.stat().st_size)
        return {each: column_of(file.read([each], use_threads=False).column(0), f"{path}: {each}") for each in names}


def _opened(path: Path, **options: Any) -> Any:
    """A parquet file of which only the footer has been read."""
    check_file(path, path)
    pq = load("pyarrow.parquet", "video", "demonstrations")
    most = max(1, parquet_pages.footer_bytes(path))
    file = pq.ParquetFile(path, thrift_string_size_limit=most, thrift_container_size_limit=most, **options)
    if (rows := file.metadata.num_rows) > MOST_FRAMES:
        refuse(path, f"at most {MOST_FRAMES:,} rows", f"{rows:,}")
    return file


def _sizes(path: Path, file: Any, names: Collection[str]) -> tuple[int, int, bool]:
    """`column_sizes` of some columns."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    inner = [i for i, each in enumerate(paths) if any((each + ".").startswith(name + ".") for name in names)]
    return parquet_pages.column_sizes(path, file.metadata, inner)


def _is_wanted(schema: Any, name: str, columns: Collection[str] | None) -> bool:
    if columns is not None:
        return name in columns
    kind = schema.field(name).type
    while is_list(kind):
        kind = kind.value_type
    return _is_number(kind)


def is_list(kind: Any) -> bool:
    """True for pyarrow's types of lists."""
    types = load("pyarrow", "video", "demonstrations").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    types = load("pyarrow", "video", "demonstrations").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def column_of(column: Any, name: str) -> np.ndarray:
    """Rows of a chunked array of pyarrow, validated as in `read_parquet`."""
    types = load("pyarrow", "video", "demonstrations").types
    with reading(name, "numbers or flags, as many in each row"):
        values, shape = column.combine_chunks(), [len(column)]
        values = values.chunk(0) if getattr(values, "num_chunks", 0) == 1 else values
        while is_list(values.type):
            if values.null_count or len(shape) > _MOST_AXES:
                refuse(name, "no nulls, and few axes", f"{values.null_count} nulls at axis {len(shape)}")
            if not types.is_fixed_size_list(values.type):
                lengths = np.unique(np.diff(values.offsets.to_numpy()))
                if len(lengths) > 1:
                    refuse(name, "lists of one length", f"{lengths[0]} to {lengths[-1]}")
            inner = values.flatten()
            shape.append(len(inner) // max(1, len(values)))
            values = inner
        if values.null_count:
            refuse(name, "no nulls", f"{values.null_count}")
        if not _is_number(values.type):
            refuse(name, "numbers or flags", values.type)
        return checked(values.to_numpy(zero_copy_only=False).reshape(shape), name)


def read_strings(path: Path, text: Collection[str], number: str) -> dict[int, str]:
    """Strings of a parquet file, whose column has one of the names `text`, by the integers in the column `number`."""
    with reading(path, f"a parquet file of strings with {number}"):
        file = _opened(path)
        if file.metadata.num_rows > 10**6:
            refuse(path, "at most 1,000,000 rows", f"{file.metadata.num_rows:,}")
        column = next(each for each in text if each in file.schema_arrow.names)
        values, size, repeats = _sizes(path, file, (column, number))
        check_room(path, size + _VALUE_BYTES * values, path.stat().st_size)
        if repeats:  # read as a dictionary, a string is held once, however many rows have it
            file = _opened(path, read_dictionary=[column])
        table = file.read(columns=[column, number], use_threads=False)
        words: list[Any] = []
        for chunk in table.column(column).chunks:
            if repeats:
                known = chunk.dictionary.to_pylist()
                words += [None if i is None else known[i] for i in chunk.indices.to_pylist()]
            else:
                words += chunk.to_pylist()
        numbers = table.column(number).to_pylist()
    if not all(isinstance(each, str) for each in words) or not all(isinstance(each, int) for each in numbers):
        refuse(path, "strings and whole numbers", f"{file.schema_arrow.types}")
    return dict(zip(numbers, words, strict=True))


# -- arrays ------------------------------------------------------------------------------------------------------------


def checked(values: Any, name: str) -> np.ndarray:
    """Rows of flags, integers as int64, or finite reals as float32; as float64 where a row is one number."""
    values = np.asarray(values)
    if values.dtype.kind not in "biuf" or values.ndim < 1 or values.ndim > 1 + _MOST_AXES:
        refuse(name, "rows of numbers or flags", f"{values.dtype} {values.shape}")
    if math.prod(values.shape[1:]) > _MOST_VALUES or len(values) > MOST_FRAMES:
        refuse(name, f"at most {_MOST_VALUES:,} numbers in a row", f"shape {values.shape}")
    if values.dtype.kind == "b":
        return np.ascontiguousarray(values)
    if values.dtype.kind in "iu":
        if values.dtype == np.uint64 and values.size and values.max() >= 2**63:
            refuse(name, "whole numbers of 64 bits", str(values.max()))
        return np.ascontiguousarray(values, np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        out = np.ascontiguousarray(values, np.float64 if values.ndim == 1 else np.float32)
    return finite(out, name)


def finite(values: np.ndarray, name: object) -> np.ndarray:
    """The values; ValueError with the first row in which one is not finite."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.nonzero(~np.isfinite(values).reshape(len(values), -1).all(1))[0][0])
        refuse(name, "finite numbers", f"{shown(values[row].tolist())} in row {row}")
    return values


def read_npy(file: BinaryIO, name: object, most_bytes: int) -> np.ndarray:
    """An array of a `.npy` stream; its header is validated before memory is taken."""
    with reading(name, "an array of numbers, no pickled objects"):
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            refuse(name, "version 1 or 2 of the format", version)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(file)
        size = math.prod(shape) * max(1, dtype.itemsize)
        if fortran or dtype.hasobject or size > most_bytes:
            refuse(name, f"at most {most_bytes:,} bytes of plain numbers in C order", f"{dtype} {shape}")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def read_npz(path: Path) -> Arrays:
    """The arrays of a `.npz` file as columns, not yet checked."""
    check_file(path, path)
    out: Arrays = {}
    with reading(path, "arrays of numbers, no pickled objects"), zipfile.ZipFile(path) as archive:
        if (number := len(archive.infolist())) > 1000:
            refuse(path, "at most 1,000 arrays", f"{number:,}")
        check_room(path, 2 * sum(info.file_size for info in archive.infolist()), path.stat().st_size)
        for info in archive.infolist():
            with archive.open(info) as inner:
                out[info.filename.removesuffix(".npy")] = read_npy(inner, path, info.file_size)  # type: ignore[arg-type]
    return out
