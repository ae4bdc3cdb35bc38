"""Untrusted JSON, parquet and NumPy files as plain arrays and values.

Every error is a ValueError of one line.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, NoReturn, TypeAlias

import numpy as np
import torch

from torchrl_gpu.demonstrations import parquet_pages
from torchrl_gpu.envs import memory
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.arguments import shown
from torchrl_gpu.system.parts import Part

MOST_FRAMES = 10**8
"""Rows of all files together, and frames of a video."""

_SMALL_JSON_BYTES = 2**20
_MOST_JSON_BYTES = 2**26
# Bytes of memory that one byte of JSON can take: as part of empty lists.
_JSON_TIMES = 48
# Bytes of a file's content, if the free memory is unknown.
_MOST_BYTES = 2**33
# Bytes that the content of any file may take; a large file may take this many times its own bytes more.
_SMALL_BYTES = 2**27
_MOST_TIMES = 1000
# Bytes of a number as a library reads it, and as it is kept.
_VALUE_BYTES = 16
# Numbers of a row, and axes of a value in a row.
_MOST_VALUES = 2**20
_MOST_AXES = 4
_MOST_STRINGS = 10**6
_MOST_ARRAYS = 1000
# Characters of a pattern of paths, and of an error that is quoted.
_MOST_PATTERN = 512
_MOST_QUOTED = 160
# What libraries raise over a broken file.
_UNREADABLE = (
    *(ValueError, TypeError, OSError, EOFError, RuntimeError, OverflowError, RecursionError, MemoryError),
    *(KeyError, IndexError, AttributeError, NotImplementedError, zipfile.BadZipFile, zlib.error),
)
_FIELD = re.compile(r"\{(\w{1,32})(?::0?(\d)d)?\}")

Arrays = dict[str, np.ndarray]
"""Columns by name, (L, …) each: bool, int64 or finite float32; `timestamp` and the like float64."""

Json: TypeAlias = Any
"""A value of a JSON file, which nothing is known of yet."""

PyArrow: TypeAlias = Any
"""An object of pyarrow, which brings no types."""


# -- errors ------------------------------------------------------------------------------------------------------------


def refuse(name: object, wanted: str, given: object) -> NoReturn:
    """Raise the error of a value that is another than it should be."""
    fail(name, f"expected {wanted}, not {given}")


def fail(name: object, problem: str) -> NoReturn:
    """Raise the error of a part of a file.

    Args:
        name: The place: file, entry and row.
        problem: What is wrong there.
    """
    raise ValueError(f"demonstrations: {name}: {problem}")


@contextmanager
def reading(name: object, wanted: str) -> Iterator[None]:
    """Turn the errors that libraries raise for broken files into that error."""
    try:
        yield
    except _UNREADABLE as error:
        if isinstance(error, ModuleNotFoundError) or str(error).startswith("demonstrations: "):
            raise
        reason = re.split(r"\n|\.\s", str(error).strip())[0][:_MOST_QUOTED] or type(error).__name__
        raise ValueError(f"demonstrations: {name}: it cannot be read as {wanted}: {reason}") from error


# -- files and memory --------------------------------------------------------------------------------------------------


def check_file(path: Path, name: object) -> int:
    """Return the bytes of a regular file.

    Raises:
        ValueError: There is none.
    """
    try:
        # Neither a folder nor a pipe, on which reading would wait.
        if path.is_file():
            return path.stat().st_size
    except (OSError, ValueError) as error:
        raise ValueError(f"demonstrations: {name}: the file cannot be read: {shown(str(error))}") from error
    fail(name, "there is no such file")


def most_bytes() -> int:
    """Return the bytes of host memory that the content of a file may take.

    That is most of what is free.
    """
    free = memory.free_bytes(torch.device("cpu"))
    return _MOST_BYTES if free is None else int(memory.SHARE * free)


def check_room(name: object, needed: int, stored: int | None = None) -> None:
    """Check that values fit into memory, and are not too many for their file.

    Args:
        name: Of the file, for the error.
        needed: Bytes that the values take.
        stored: Bytes of the file; None skips the second check.

    Raises:
        ValueError: They do not fit.
    """
    free = most_bytes()
    if needed > free:
        fail(name, f"its values take {needed:,} bytes, more than the {free:,} bytes of memory that they may take")
    if stored is None:
        return
    most = room_of(stored)
    if needed > most:
        fail(name, f"a file of {stored:,} bytes may have {most:,} bytes of values, not {needed:,}")


def room_of(stored: int) -> int:
    """Return the bytes that a file may unpack to.

    They are many more than measurements take.
    """
    return min(most_bytes(), _SMALL_BYTES + _MOST_TIMES * stored)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a folder to write into, which has its name only once all of it is written.

    Nothing is left of an error.

    Raises:
        FileExistsError: There is one of that name, or another program is writing it.
    """
    if folder.exists():
        raise FileExistsError(f"demonstrations: {folder}: the folder exists; choose another or remove it")
    part = Part(folder, "demonstrations", is_folder=True)
    try:
        yield part.part
    # An interrupt, which is no Exception, leaves nothing either.
    except BaseException:
        part.discard()
        raise
    part.publish()


# -- JSON and patterns -------------------------------------------------------------------------------------------------


def read_json(path: Path, most: int | None = None) -> Json:
    """Return the content of a JSON file of at most `most` bytes. Numbers are finite.

    Raises:
        ValueError: It is no such file.
    """
    size = check_file(path, path)
    most = _MOST_JSON_BYTES if most is None else most
    if size > most:
        fail(path, f"JSON may have at most {most:,} bytes, not {size:,}")
    # Small files are read without a look at the memory, which takes longer.
    if size > _SMALL_JSON_BYTES:
        check_room(path, _JSON_TIMES * size)
    with reading(path, "JSON of finite numbers"):
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"the number {word}")


def fill_pattern(pattern: Json, name: object, **values: int | str) -> PurePosixPath:
    """Fill in a pattern such as `data/chunk-{chunk_index:03d}.parquet`.

    Patterns are not trusted, and `str.format` would read attributes.

    Returns:
        A path inside the dataset.

    Raises:
        ValueError: The pattern leads elsewhere, or has other fields.
    """
    wanted = f"a relative path inside the dataset with the fields {', '.join(values)}"
    if not isinstance(pattern, str) or len(pattern) > _MOST_PATTERN:
        refuse(name, wanted, shown(pattern))

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            refuse(name, wanted, shown(pattern))
        return str(values[match[1]]).zfill(int(match[2] or 0))

    filled = _FIELD.sub(fill, pattern)
    path = PurePosixPath(filled)
    without_fields = _FIELD.sub("", pattern)
    is_plain = filled.isprintable() and not set(filled) & set("\\:") and not set(without_fields) & set("{}")
    if not is_plain or not path.parts or path.is_absolute() or ".." in path.parts:
        refuse(name, wanted, shown(filled))
    return path


# -- tables ------------------------------------------------------------------------------------------------------------


def read_parquet(path: Path, columns: Collection[str] | None = None) -> Arrays:
    """Return columns of numbers or flags of a parquet file.

    Lists of one length are further axes.

    Args:
        path: Of the file.
        columns: Their names; None for all.

    Raises:
        ValueError: A column holds nulls, lists of several lengths, or other values.
    """
    with reading(path, "a parquet file"):
        file = _open_parquet(path)
        schema = file.schema_arrow
        names = [each for each in schema.names if _is_wanted(schema, each, columns)]
        if len(set(names)) < len(names):
            refuse(path, "columns of different names", shown(names))
        sizes = _sizes(path, file, names)
        check_room(path, _VALUE_BYTES * sizes.values, path.stat().st_size)
        arrays: Arrays = {}
        for name in names:
            column = file.read([name], use_threads=False).column(0)
            arrays[name] = column_of(column, f"{path}: {name}")
        return arrays


def _open_parquet(path: Path, **options: object) -> PyArrow:
    """Return a parquet file of which only the footer has been read."""
    check_file(path, path)
    pq = load("pyarrow.parquet", "video", "demonstrations")
    most = max(1, parquet_pages.footer_bytes(path))
    file = pq.ParquetFile(path, thrift_string_size_limit=most, thrift_container_size_limit=most, **options)
    rows = file.metadata.num_rows
    if rows > MOST_FRAMES:
        refuse(path, f"at most {MOST_FRAMES:,} rows", f"{rows:,}")
    return file


def _sizes(path: Path, file: PyArrow, names: Collection[str]) -> parquet_pages.ColumnSizes:
    """Return the sizes of some columns, with the columns inside them."""
    schema = file.schema
    paths = [schema.column(i).path for i in range(len(schema))]
    prefixes = tuple(f"{name}." for name in names)
    inner = [i for i, each in enumerate(paths) if f"{each}.".startswith(prefixes)]
    return parquet_pages.column_sizes(path, file.metadata, inner)


def _is_wanted(schema: PyArrow, name: str, columns: Collection[str] | None) -> bool:
    if columns is not None:
        return name in columns
    kind = schema.field(name).type
    # Of lists the innermost values count.
    while is_list(kind):
        kind = kind.value_type
    return _is_number(kind)


def is_list(kind: PyArrow) -> bool:
    """Return whether a type of pyarrow is one of lists."""
    types = load("pyarrow", "video", "demonstrations").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: PyArrow) -> bool:
    types = load("pyarrow", "video", "demonstrations").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def column_of(column: PyArrow, name: str) -> np.ndarray:
    """Return the rows of a chunked array of pyarrow.

    Raises:
        ValueError: As `read_parquet`.
    """
    types = load("pyarrow", "video", "demonstrations").types
    with reading(name, "numbers or flags, as many in each row"):
        values = column.combine_chunks()
        values = values.chunk(0) if getattr(values, "num_chunks", 0) == 1 else values
        shape = [len(column)]
        while is_list(values.type):
            if values.null_count:
                fail(name, f"{values.null_count} lists are null; a column must have no nulls")
            if len(shape) > _MOST_AXES:
                fail(name, f"a row may have at most {_MOST_AXES} axes")
            if not types.is_fixed_size_list(values.type):
                lengths = np.unique(np.diff(values.offsets.to_numpy()))
                if len(lengths) > 1:
                    refuse(name, "lists of one length", f"{lengths[0]} to {lengths[-1]}")
            inner = values.flatten()
            shape.append(len(inner) // max(1, len(values)))
            values = inner
        if values.null_count:
            fail(name, f"{values.null_count} values are null; a column must have no nulls")
        if not _is_number(values.type):
            refuse(name, "numbers or flags", values.type)
        return check_rows(values.to_numpy(zero_copy_only=False).reshape(shape), name)


def read_strings(path: Path, text: Collection[str], number: str) -> dict[int, str]:
    """Return strings of a parquet file by the integers in the column `number`.

    Args:
        path: Of the file.
        text: Names that the column of strings may have.
        number: Name of the column of integers.
    """
    with reading(path, f"a parquet file of strings with {number}"):
        file = _open_parquet(path)
        if file.metadata.num_rows > _MOST_STRINGS:
            refuse(path, f"at most {_MOST_STRINGS:,} rows", f"{file.metadata.num_rows:,}")
        # Writers differ in the name of this column.
        column = next(each for each in text if each in file.schema_arrow.names)
        sizes = _sizes(path, file, (column, number))
        needed = sizes.string_bytes + _VALUE_BYTES * sizes.values
        check_room(path, needed, path.stat().st_size)
        if sizes.repeats:
            # Read as a dictionary, a string is held once, however many rows have it.
            file = _open_parquet(path, read_dictionary=[column])
        table = file.read(columns=[column, number], use_threads=False)
        words: list[str | None] = []
        for chunk in table.column(column).chunks:
            if sizes.repeats:
                known = chunk.dictionary.to_pylist()
                words += [None if i is None else known[i] for i in chunk.indices.to_pylist()]
            else:
                words += chunk.to_pylist()
        numbers = table.column(number).to_pylist()
    strings = [each for each in words if isinstance(each, str)]
    if len(strings) < len(words) or not all(isinstance(each, int) for each in numbers):
        refuse(path, "strings and whole numbers", f"{file.schema_arrow.types}")
    return dict(zip(numbers, strings, strict=True))


# -- arrays ------------------------------------------------------------------------------------------------------------


def check_rows(values: object, name: str) -> np.ndarray:
    """Return rows of flags, of integers as int64, or of finite reals.

    Reals become float32; float64 if a row is one number, such as a time.

    Raises:
        ValueError: They are something else, or too many.
    """
    rows = np.asarray(values)
    if rows.dtype.kind not in "biuf" or rows.ndim < 1 or rows.ndim > 1 + _MOST_AXES:
        refuse(name, "rows of numbers or flags", form_text(rows))
    numbers_per_row = math.prod(rows.shape[1:])
    if numbers_per_row > _MOST_VALUES or len(rows) > MOST_FRAMES:
        refuse(name, f"at most {_MOST_VALUES:,} numbers in a row", f"shape {rows.shape}")
    if rows.dtype.kind == "b":
        return np.ascontiguousarray(rows)
    if rows.dtype.kind in "iu":
        # Beyond that they would become negative without a word.
        if rows.dtype == np.uint64 and rows.size and rows.max() >= 2**63:
            refuse(name, "whole numbers of 64 bits", str(rows.max()))
        return np.ascontiguousarray(rows, np.int64)
    # What is too large becomes infinite, and is refused.
    with np.errstate(over="ignore", invalid="ignore"):
        reals = np.ascontiguousarray(rows, np.float64 if rows.ndim == 1 else np.float32)
    return check_finite(reals, name)


def form_text(values: np.ndarray) -> str:
    """Return dtype and shape of an array, for messages."""
    return f"{values.dtype} {values.shape}"


def check_finite(values: np.ndarray, name: object) -> np.ndarray:
    """Return the values.

    Raises:
        ValueError: One is not finite; with the first such row.
    """
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        is_good = np.isfinite(values).reshape(len(values), -1).all(1)
        row = int(np.nonzero(~is_good)[0][0])
        fail(name, f"numbers must be finite; row {row} is {shown(values[row].tolist())}")
    return values


def read_npy(file: IO[bytes], name: object, most_bytes: int) -> np.ndarray:
    """Return the array of a `.npy` stream.

    Its header is validated before memory is taken.

    Raises:
        ValueError: It is no array of plain numbers, or has more bytes.
    """
    with reading(name, "an array of numbers, no pickled objects"):
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            refuse(name, "version 1 or 2 of the format", version)
        reader = np.lib.format.read_array_header_2_0
        if version == (1, 0):
            reader = np.lib.format.read_array_header_1_0
        shape, fortran, dtype = reader(file)
        size = math.prod(shape) * max(1, dtype.itemsize)
        if fortran or dtype.hasobject or size > most_bytes:
            refuse(name, f"at most {most_bytes:,} bytes of plain numbers in C order", f"{dtype} {shape}")
        # From the beginning again: this reads the header once more.
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def read_npz(path: Path) -> Arrays:
    """Return the arrays of a `.npz` file as columns, not yet checked.

    Raises:
        ValueError: It is no such file, or has too many arrays.
    """
    check_file(path, path)
    arrays: Arrays = {}
    with reading(path, "arrays of numbers, no pickled objects"), zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > _MOST_ARRAYS:
            refuse(path, f"at most {_MOST_ARRAYS:,} arrays", f"{len(entries):,}")
        # Each array is held once more while it is converted.
        size = sum(entry.file_size for entry in entries)
        check_room(path, 2 * size, path.stat().st_size)
        for entry in entries:
            with archive.open(entry) as inner:
                arrays[entry.filename.removesuffix(".npy")] = read_npy(inner, path, entry.file_size)
    return arrays
