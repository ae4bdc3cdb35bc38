"""Boxes in JSON, whatever its form: records, orders with items, a record a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeGuard

from torchrl_gpu.lists.candidates import has_any, match_header, parse_header
from torchrl_gpu.lists.columns import COLUMNS, SIDES
from torchrl_gpu.lists.headers import find_columns
from torchrl_gpu.lists.sheets import Sheet
from torchrl_gpu.lists.spreadsheets import MOST_COLUMNS
from torchrl_gpu.lists.words import tokens

# No list of boxes is nested deeper, and the stack holds far more.
_MOST_DEPTH = 24
_ITEM_KEYS = (
    *("items", "item_sequence", "boxes", "packages", "parcels", "cartons", "records", "rows", "data", "lines"),
    *("line_items", "lineitems", "order_lines", "orderlines", "positions", "positionen", "articles"),
)
# Keys of an order that an item may have as well: they are the order's only where the item has none.
_AMOUNTS = "weight, length, width, height, depth, quantity, qty, count, total, gewicht, poids, peso, volume"
# Keys of headers and of rows, where they stand beside each other.
_HEADER_KEYS = ("columns", "header", "headers", "fields")
_VALUE_KEYS = ("value", "amount", "magnitude")
_UNIT_KEYS = ("unit", "units", "uom")
_ROW_KEYS = ("data", "rows", "values", "records")
_NAMES = ("id", "name", "number", "no")
Record = dict[str, object]


def json_sheet(text: str) -> Sheet:
    """Read a list of boxes, orders with their items, or a box a line.

    Raises:
        ValueError: It is no JSON, or holds no boxes.
    """
    value = _parse(text)
    rows = _rows_of(value)
    if rows is not None:
        return Sheet(list(range(len(rows))), rows)
    doubts: list[str] = []
    records = list(_records(value, {}, 0, doubts))
    if not records:
        raise ValueError('the JSON holds no list of boxes: [{"length": …, "width": …, "height": …}, …]')
    keys: dict[str, None] = {}
    for record in records:
        keys.update(dict.fromkeys(record))
    if len(keys) > MOST_COLUMNS:
        raise ValueError(f"{len(keys):,} keys of boxes, more than {MOST_COLUMNS:,}")
    header = list(keys)
    cells = [_cells(record, header) for record in records]
    # Boxes in JSON have no lines: they are counted from 1, and the header stands before them.
    return Sheet(list(range(len(cells) + 1)), [header, *cells], doubts=doubts[:1])


def _rows_of(value: object) -> list[Sequence[object]] | None:
    """Return the rows of a table, None for other JSON.

    It is a list of lists, columns by name, or headers beside rows.
    """
    if isinstance(value, list):
        is_table = len(value) > 1 and all(map(_is_row, value)) and all(isinstance(cell, str) for cell in value[0])
        return value if is_table else None
    if not isinstance(value, Mapping):
        return None
    header = next((value[key] for key in _HEADER_KEYS if _is_row(value.get(key))), None)
    rows = next((value[key] for key in _ROW_KEYS if isinstance(value.get(key), list)), None)
    if isinstance(header, list) and isinstance(rows, list) and rows and all(map(_is_row, rows)):
        return [header, *rows]
    columns = list(value.values())
    if len(columns) > 2 and all(map(_is_row, columns)) and len({len(column) for column in columns}) == 1:
        return [list(value), *zip(*columns, strict=True)]
    return None


def _is_row(value: object) -> TypeGuard[list[object]]:
    """Whether a value is a list of plain values."""
    return isinstance(value, list) and bool(value) and not any(isinstance(each, (list, dict)) for each in value)


def _cells(record: Record, header: Sequence[str]) -> list[object]:
    return [record.get(key) for key in header]


def _parse(text: str) -> object:
    """Parse JSON, or JSON lines as a list."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    except json.JSONDecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or not lines[0].lstrip().startswith("{"):
            raise ValueError(f"invalid JSON: {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"invalid JSON in line {number}: {error}") from error
    return records


def _records(value: object, of_order: Record, depth: int, doubts: list[str]) -> Iterator[Record]:
    """Yield a flat record for every box, with the plain values of the order around it.

    A package with sides of its own is the box, and not what is in it. Where both have sides a sentence is added to
    `doubts`.
    """
    if depth > _MOST_DEPTH:
        raise ValueError("the JSON is nested too deeply")
    if isinstance(value, list):
        for each in value:
            yield from _records(each, of_order, depth + 1, doubts)
        return
    if not isinstance(value, Mapping):
        return
    items = _items_of(value)
    own = _without_lists(value) if items is not None else {}
    if items is not None and _names_sides(tuple(own)):
        inside = list(_records(items, {}, depth + 1, doubts))
        if any(_names_sides(tuple(record)) for record in inside):
            doubts.append("some boxes have sides, and so has what is listed in them: the outer ones are read alone")
        yield of_order | own
    elif items is not None:
        yield from _records(items, of_order | _values_of_order(value), depth + 1, doubts)
    elif _holds_orders(value):
        for name, order in value.items():
            yield from _records(order, of_order | {"order": name}, depth + 1, doubts)
    elif _holds_boxes(value):
        for box in value.values():
            yield from _records(box, of_order, depth + 1, doubts)
    else:
        yield of_order | _flatten(value)


def _items_of(value: Mapping[str, object]) -> object:
    """Return the items of an order, or of a file, None where there are none."""
    by_key = {str(key).casefold(): each for key, each in value.items()}
    for key in _ITEM_KEYS:
        if isinstance(by_key.get(key), (list, dict)):
            return by_key[key]
    lists = [each for each in value.values() if _is_list_of_records(each)]
    return lists[0] if len(lists) == 1 else None


def _without_lists(value: Mapping[str, object]) -> Record:
    """Flat values of a record, without the lists of what is in it."""
    kept = {key: each for key, each in value.items() if str(key).casefold() not in _ITEM_KEYS}
    return _flatten({key: each for key, each in kept.items() if not _is_list_of_records(each)})


@lru_cache(2**12)
def _names_sides(keys: tuple[str, ...]) -> bool:
    """Whether the keys of a record are those of a box with three sides."""
    found = find_columns(keys, [], {})
    dimensions = next(column for column in COLUMNS if column.name == "dimensions")
    is_named = any(match_header(dimensions, parse_header(key), 0) is not None for key in keys)
    return is_named or all(side in found.at for side in SIDES)


def _is_list_of_records(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _values_of_order(value: Mapping[str, object]) -> Record:
    """Plain values of an order.

    Its "id" becomes "order id", and its "weight" is not that of a box.
    """
    values: Record = {}
    for key, each in value.items():
        if each is None or isinstance(each, (str, int, float)):
            values[f"order {key}" if key in _NAMES or _is_of_boxes(key) else key] = each
    return values


def _is_of_boxes(key: str) -> bool:
    """Whether a key is a side, a weight or a number.

    That of an order is not that of its boxes.
    """
    words = tokens(key)
    return words[-1:] != ["unit"] and has_any(words, _AMOUNTS)


def _holds_orders(value: Mapping[str, object]) -> bool:
    """Whether a mapping is {order: {"items": […]}, …}."""
    orders = [each for each in value.values() if isinstance(each, Mapping) and _items_of(each) is not None]
    return bool(value) and len(orders) == len(value)


def _holds_boxes(value: Mapping[str, object]) -> bool:
    """Whether a mapping is {place.

    {"length": …}, …}, and no box such as {"size": {"length": …}}.
    """
    boxes = [each for each in value.values() if isinstance(each, Mapping)]
    if not value or len(boxes) < len(value):
        return False
    describes_a_box = {"dimensions", "dims", "size", "length", "width"}
    return describes_a_box.isdisjoint(str(key).casefold() for key in value)


def _amount(value: object) -> str:
    """Join {"value": 40, "unit": "cm"} to "40 cm", "" for other values."""
    if not isinstance(value, Mapping) or len(value) != 2:
        return ""
    numbers = [value[key] for key in _VALUE_KEYS if key in value]
    units = [value[key] for key in _UNIT_KEYS if key in value]
    is_amount = bool(numbers and units) and isinstance(numbers[0], (int, float, str)) and isinstance(units[0], str)
    return f"{numbers[0]} {units[0]}" if is_amount else ""


def _flatten(value: Mapping[str, object], before: str = "", depth: int = 0) -> Record:
    """Join the keys of nested objects.

    {"size": {"length": 400}} is {"size length": 400}.
    """
    record: Record = {}
    for key, each in value.items():
        joined = f"{before} {key}".strip()
        amount = _amount(each)
        if amount:
            record[joined] = amount
        elif isinstance(each, Mapping) and depth < _MOST_DEPTH:
            record |= _flatten(each, joined, depth + 1)
        elif isinstance(each, list):
            # [400, 300, 200] are the sides of a box.
            record[joined] = "x".join(map(str, each)) if len(each) == 3 else str(each)
        else:
            record[joined] = each
    return record
