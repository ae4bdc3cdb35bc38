"""Validation of the pages of parquet columns before pyarrow decodes them.

A footer has the number of values of a column and the sizes of its pages; the pages' own headers have them again, and
decoding goes by these. Run lengths and dictionaries make any number of values from a few bytes, so both are read, and
nothing is unpacked.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

_HEADER_BYTES = (2**12, 2**20)  # of a page; a long one holds the least and the largest of long strings
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3  # types of pages
_SIZE_FIELD, _STORED_FIELD = 2, 3  # of PageHeader (parquet.thrift)
_KIND_FIELD = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}
_ENCODING_FIELD = {_DATA: 2, _DICTIONARY: 2, _DATA_2: 4}
_DELTA_BYTE_ARRAY = 7  # each value begins with the one before: sizes grow with the square of the count
_MOST_FOOTER, _MOST_DEEP = 2**26, 4


def footer_bytes(path: Path) -> int:
    """Bytes of the footer of a parquet file; ValueError where it is too long: parsed it takes fifty times its bytes."""
    with path.open("rb") as file:
        file.seek(0, 2)
        if (size := file.tell()) < 12:
            raise ValueError("a file that is too short")
        file.seek(-8, 2)
        length = int.from_bytes(file.read(4), "little")
    if length > min(size - 8, _MOST_FOOTER):
        raise ValueError(f"a description of {length:,} bytes")
    return length


def column_sizes(path: Path, metadata: Any, columns: Iterable[int]) -> tuple[int, int, bool]:
    """Values of some columns of a file, the bytes of their unpacked pages, and whether any of these are dictionaries.

    ValueError where pages and footer disagree, or pages are packed in a way without a bound.
    """
    values = size = 0
    repeats, columns = False, list(columns)
    with path.open("rb") as file:
        for group in range(metadata.num_row_groups):
            described = metadata.row_group(group)
            for i in columns:
                column = described.column(i)
                repeats |= bool(column.num_values) and _walk(file, column)
                values += column.num_values
                size += column.total_uncompressed_size
    return values, size, repeats


def _walk(file: BinaryIO, column: Any) -> bool:
    at, values, size, repeats = column.data_page_offset, 0, 0, False
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end = at + column.total_compressed_size
    while values < column.num_values:
        if not 0 < at < end:
            raise ValueError(f"pages of {values:,} values of {column.path_in_schema}, not {column.num_values:,}")
        header, length = _page_header(file, at)
        kind = header.get(1, -1)
        unpacked, stored = header.get(_SIZE_FIELD, -1), header.get(_STORED_FIELD, -1)
        inner = header.get(_KIND_FIELD.get(kind, 0), {})
        number, encoding = inner.get(1, -1), inner.get(_ENCODING_FIELD.get(kind, 0), 0)
        if kind not in _KIND_FIELD or min(unpacked, stored, number) < 0 or encoding == _DELTA_BYTE_ARRAY:
            raise ValueError(f"a page of {number:,} values of {column.path_in_schema} in encoding {encoding}")
        values += number if kind != _DICTIONARY else 0
        repeats |= kind == _DICTIONARY
        size += unpacked + length
        if values > column.num_values or size > column.total_uncompressed_size:
            declared = f"{column.num_values:,} in {column.total_uncompressed_size:,}"
            raise ValueError(f"pages of {values:,} values in {size:,} bytes of {column.path_in_schema}, not {declared}")
        at += length + stored
    return repeats


def _page_header(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The fields of a page's header by their numbers, and its bytes."""
    for size in _HEADER_BYTES:
        file.seek(at)
        try:
            return _fields(file.read(size), 0)
        except IndexError:
            continue
    raise ValueError("a page whose description is cut off")


def _fields(data: bytes, at: int, deep: int = 0) -> tuple[dict[int, Any], int]:
    """A struct of Thrift's compact protocol, as far as headers of pages need it, and where it ends."""
    if deep > _MOST_DEEP:
        raise ValueError("a page whose description lies too deep")
    fields: dict[int, Any] = {}
    number = 0
    while kind := data[at]:
        at += 1
        if kind >> 4:
            number += kind >> 4
        else:
            number, at = _whole(data, at)
        kind &= 15
        if kind in (1, 2):  # yes or no
            fields[number] = kind == 1
        elif kind == 3:
            fields[number], at = data[at], at + 1
        elif kind in (4, 5, 6):
            fields[number], at = _whole(data, at)
        elif kind == 7:
            at += 8
        elif kind == 8:
            length, at = _varint(data, at)
            at += length
        elif kind == 12:
            fields[number], at = _fields(data, at, deep + 1)
        else:
            raise ValueError("a page whose description is none")
    return fields, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 128:
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if shift > 63:
            raise ValueError("a number that does not end")
    return value | byte << shift, at + 1


def _whole(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at
