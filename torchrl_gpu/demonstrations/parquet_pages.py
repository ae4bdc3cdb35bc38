"""Validation of the pages of parquet columns before pyarrow decodes them.

A footer has the number of values of a column and the sizes of its pages. The pages' own headers have them again, and
decoding goes by these: a file of a kilobyte can so make pyarrow take all memory, which no check of the footer would
show. Run lengths and dictionaries make any number of values from a few bytes, so both numbers are read, and nothing is
unpacked.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

# Bytes of a page's header: most are short, and a long one holds the least and the largest of long strings.
_HEADER_BYTES = (2**12, 2**20)
# Types of pages.
_DATA = 0
_DICTIONARY = 2
_DATA_2 = 3
# Numbers of fields of PageHeader and of the headers inside it (parquet.thrift).
_TYPE_FIELD = 1
_SIZE_FIELD = 2
_STORED_FIELD = 3
_KIND_FIELD = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}
_NUMBER_FIELD = 1
_ENCODING_FIELD = {_DATA: 2, _DICTIONARY: 2, _DATA_2: 4}
# In this encoding each value begins with the one before: sizes grow with the square of the count.
_DELTA_BYTE_ARRAY = 7
_MOST_FOOTER = 2**26
_LEAST_FILE = 12
_MOST_DEEP = 4

# Types of Thrift's compact protocol.
_TRUE = 1
_FALSE = 2
_BYTE = 3
_INTEGERS = (4, 5, 6)
_DOUBLE = 7
_BINARY = 8
_STRUCT = 12

Fields: TypeAlias = dict[int, Any]
"""Fields of a struct of Thrift by their numbers."""

Metadata: TypeAlias = Any
"""Metadata of pyarrow, which brings no types."""


class ColumnSizes(NamedTuple):
    """What some columns take when they are decoded.

    Attributes:
        values: Their number.
        string_bytes: Bytes of their pages, unpacked.
        repeats: Whether values are in a dictionary, so that a long one may stand for many.
    """

    values: int
    string_bytes: int
    repeats: bool


class _Page(NamedTuple):
    """A page of a column.

    Attributes:
        kind: One of the types of pages.
        number: Values.
        size: Bytes, unpacked, with the header.
        end: Where the next page begins.
    """

    kind: int
    number: int
    size: int
    end: int


def footer_bytes(path: Path) -> int:
    """Return the bytes of the footer of a parquet file.

    Raises:
        ValueError: It is too long: parsed it takes fifty times its bytes.
    """
    with path.open("rb") as file:
        file.seek(0, 2)
        size = file.tell()
        if size < _LEAST_FILE:
            raise ValueError("a file that is too short")
        file.seek(-8, 2)
        length = int.from_bytes(file.read(4), "little")
    if length > min(size - 8, _MOST_FOOTER):
        raise ValueError(f"a description of {length:,} bytes")
    return length


def column_sizes(path: Path, metadata: Metadata, columns: Iterable[int]) -> ColumnSizes:
    """Return what some columns take, by their indices.

    Raises:
        ValueError: The pages of a column are others than the footer says.
    """
    values = 0
    size = 0
    repeats = False
    indices = list(columns)
    with path.open("rb") as file:
        for group in range(metadata.num_row_groups):
            described = metadata.row_group(group)
            for i in indices:
                column = described.column(i)
                repeats |= bool(column.num_values) and _check_pages(file, column)
                values += column.num_values
                size += column.total_uncompressed_size
    return ColumnSizes(values, size, repeats)


def _check_pages(file: BinaryIO, column: Metadata) -> bool:
    """Go through the pages of a column, and return whether there is a dictionary."""
    name = column.path_in_schema
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    end = start + column.total_compressed_size
    values = 0
    size = 0
    repeats = False
    while values < column.num_values:
        if not 0 < start < end:
            raise ValueError(f"pages of {values:,} values of {name}, not {column.num_values:,}")
        page = _read_page(file, start, name)
        values += page.number if page.kind != _DICTIONARY else 0
        repeats |= page.kind == _DICTIONARY
        size += page.size
        if values > column.num_values or size > column.total_uncompressed_size:
            declared = f"{column.num_values:,} in {column.total_uncompressed_size:,}"
            raise ValueError(f"pages of {values:,} values in {size:,} bytes of {name}, not {declared}")
        start = page.end
    return repeats


def _read_page(file: BinaryIO, start: int, name: str) -> _Page:
    """Read the header of a page."""
    header, length = _page_header(file, start)
    kind = header.get(_TYPE_FIELD, -1)
    unpacked = header.get(_SIZE_FIELD, -1)
    stored = header.get(_STORED_FIELD, -1)
    inner = header.get(_KIND_FIELD.get(kind, 0), {})
    number = inner.get(_NUMBER_FIELD, -1)
    encoding = inner.get(_ENCODING_FIELD.get(kind, 0), 0)
    if kind not in _KIND_FIELD or min(unpacked, stored, number) < 0 or encoding == _DELTA_BYTE_ARRAY:
        raise ValueError(f"a page of {number:,} values of {name} in encoding {encoding}")
    return _Page(kind, number, unpacked + length, start + length + stored)


def _page_header(file: BinaryIO, start: int) -> tuple[Fields, int]:
    """Return the fields of a page's header, and its bytes."""
    for size in _HEADER_BYTES:
        file.seek(start)
        try:
            return _read_struct(file.read(size), 0)
        except IndexError:
            # Cut off: with more bytes it may be whole.
            continue
    raise ValueError("a page whose description is cut off")


def _read_struct(data: bytes, start: int, deep: int = 0) -> tuple[Fields, int]:
    """Read a struct of Thrift's compact protocol, as far as headers of pages need it.

    Returns:
        Its fields, and where it ends.

    Raises:
        IndexError: It is cut off.
        ValueError: It has fields that no header has.
    """
    if deep > _MOST_DEEP:
        raise ValueError("a page whose description lies too deep")
    fields: Fields = {}
    number = 0
    while data[start] != 0:
        # A byte of the step to the field's number, and of its type. Without a step the number itself follows.
        step = data[start] >> 4
        kind = data[start] & 15
        start += 1
        if step:
            number += step
        else:
            number, start = _read_signed(data, start)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind == _BYTE:
            fields[number] = data[start]
            start += 1
        elif kind in _INTEGERS:
            fields[number], start = _read_signed(data, start)
        elif kind == _DOUBLE:
            start += 8
        elif kind == _BINARY:
            length, start = _read_unsigned(data, start)
            start += length
        elif kind == _STRUCT:
            fields[number], start = _read_struct(data, start, deep + 1)
        else:
            raise ValueError("a page whose description is none")
    return fields, start + 1


def _read_unsigned(data: bytes, start: int) -> tuple[int, int]:
    """Read an integer of seven bits a byte, the lowest first.

    Returns:
        The integer, and where it ends.
    """
    value = 0
    shift = 0
    while data[start] & 128:
        value |= (data[start] & 127) << shift
        shift += 7
        start += 1
        if shift > 63:
            raise ValueError("a number that does not end")
    return value | data[start] << shift, start + 1


def _read_signed(data: bytes, start: int) -> tuple[int, int]:
    """Read an integer whose lowest bit is the sign (zigzag), and return where it ends."""
    value, end = _read_unsigned(data, start)
    return (value >> 1) ^ -(value & 1), end
