"""Lists of boxes, one article a row, as warehouse systems write them.

CSV, Excel, Parquet, and orders in JSON.
"""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchrl_gpu.system import arguments
from torchrl_gpu.system.extras import how_to_install

SUFFIXES = (".csv", ".tsv", ".txt", ".xlsx", ".parquet")
# In millimetres, and in kilograms.
LENGTHS = {"mm": 1.0, "cm": 10.0, "m": 1000.0, "in": 25.4, "inch": 25.4, "inches": 25.4, "zoll": 25.4, "ft": 304.8}
WEIGHTS = {"kg": 1.0, "g": 1e-3, "t": 1e3, "lb": 0.45359237, "lbs": 0.45359237}
SIDES = ("length", "width", "height")
COLUMNS = (*SIDES, "quantity", "weight", "order", "article", "unit", "upright", "fragile", "max_load")
MOST_BOXES = 2**24
# Largest size of a file, unpacked, bytes.
MOST_BYTES = 2**30
_MOST_ROWS = 2**22
_MOST_COLUMNS = 1024
# Most memory for the rows of a Parquet file that are read at a time, bytes.
_MOST_BYTES = 2**28
# Words of a header by which a column is found, the first that the file has; single letters only as the whole header.
_LOAD_WORDS = (
    *("max load", "maximum load", "most load", "stack weight", "stacking weight", "max weight on top", "top load"),
    *("load capacity", "traglast", "auflast", "stapellast", "charge max", "carga máxima", "承重"),
)
_FRAGILE_WORDS = (
    *("fragile", "zerbrechlich", "fragil", "frágil", "易碎", "non stackable", "not stackable", "nicht stapelbar"),
    "non gerbable",
)
_UPRIGHT_WORDS = (
    *("this side up", "side up", "this way up", "upright", "do not tip", "nicht kippen"),
    *("向上", "此面向上"),
)
_LENGTH_WORDS = ("length", "l", "länge", "laenge", "longueur", "largo", "lunghezza", "长", "长度", "尺寸 l", "x")
_WIDTH_WORDS = ("width", "w", "breite", "b", "largeur", "ancho", "larghezza", "宽", "宽度", "尺寸 w", "y")
_HEIGHT_WORDS = ("height", "h", "höhe", "hoehe", "hauteur", "alto", "altezza", "高", "高度", "尺寸 h", "z")
_QUANTITY_WORDS = ("quantity", "qty", "copies", "count", "pieces", "pcs", "menge", "anzahl", "stück", "数量")
_WEIGHT_WORDS = ("gross weight", "weight", "mass", "gewicht", "masse", "poids", "peso", "重量")
_ORDER_WORDS = (
    *("order", "po number", "order number", "order no", "order id", "auftrag", "auftragsnummer", "bestellung"),
    *("bestellnummer", "commande", "pedido", "ordine", "订单", "订单号", "pallet", "palette", "pallet no"),
)
_ARTICLE_WORDS = (
    *("article", "sku", "material", "item", "product", "artikel", "article number", "商品code", "id", "name"),
)
_UNIT_WORDS = ("unit", "einheit", "单位")
_WORDS: dict[str, tuple[str, ...]] = {
    "max_load": _LOAD_WORDS,
    "fragile": _FRAGILE_WORDS,
    "upright": _UPRIGHT_WORDS,
    "length": _LENGTH_WORDS,
    "width": _WIDTH_WORDS,
    "height": _HEIGHT_WORDS,
    "quantity": _QUANTITY_WORDS,
    "weight": _WEIGHT_WORDS,
    "order": _ORDER_WORDS,
    "article": _ARTICLE_WORDS,
    "unit": _UNIT_WORDS,
}
# A header with "order" and one of these words is a fact about an order, not its name.
_NO_ORDER = re.compile(r"\b(date|datum|data|fecha|time|line|position|pos|status|type|value|total|volume|price)\b")
_YES = ("yes", "y", "true", "1", "x", "ja", "j", "wahr", "oui", "o", "vrai", "si", "sí", "sì", "s", "是", "✓")
_NO = ("", "no", "n", "false", "0", "-", "nein", "falsch", "non", "faux", "否")
# PackingSolver's columns of rotations, 1 for those that are permitted: the listed sides along x, y and z.
_ROTATION = re.compile(r"rotation ([xyz]{3})")
_UNIT = re.compile(rf"(?:[\s_/]|[(\[（])\s*({'|'.join([*LENGTHS, *WEIGHTS])})\s*[)\]）]?\s*$")


# Facts about a box that plans show: its line in the file, and what else the list has.
Label = dict[str, Any]


class BoxList(NamedTuple):
    """Boxes of a list, in its order, grouped by customer order.

    The arrays hold one entry for each order.

    Attributes:
        orders: Names of the orders.
        sizes: Sides, (boxes, 3) float64, in `unit`.
        weights: Kilograms, (boxes,) float64; NaN where the list has none.
        max_loads: Kilograms that may lie on a box, (boxes,) float64; inf where the list has no limit.
        up: Mask of the sides that may be vertical, (boxes, 3) bool; the height alone means "this side up".
        fragile: Mask of the boxes on which nothing may lie, (boxes,) bool.
        labels: Of each box its "line" in the file, and "article" and "weight/kg" if the list has them.
        unit: "cells", "m", "cm" or "mm".
        own_unit: Unit of the file, which may also be inches or feet.
        names_unit: Whether the file says its unit.
        columns: Headers of the columns that were read, by their meaning.
        unread: Other headers.
        faults: Line, order and reason of each row that gives no box.
    """

    orders: list[str]
    sizes: list[np.ndarray]
    weights: list[np.ndarray]
    max_loads: list[np.ndarray]
    up: list[np.ndarray]
    fragile: list[np.ndarray]
    labels: list[list[Label]]
    unit: str
    own_unit: str
    names_unit: bool
    columns: dict[str, str]
    unread: list[str]
    faults: list[tuple[int, str, str]]


def read_list(path: Path, where: str, unit: str = "cells", columns: Mapping[str, str] | None = None) -> BoxList:
    """Read the boxes of a list or of orders in JSON.

    The suffix is `.csv`, `.tsv`, `.txt`, `.xlsx` (its first sheet is read), `.parquet` or `.json`.

    Args:
        path: The file. Its columns are found by the words of the field in several languages; a file of three numbers a
            line needs no header. JSON holds orders, {order: {"item_sequence": {place: {"length/mm", …}}}}, whose keys
            are the columns and whose boxes are counted as lines, from 1.
        where: Begins the messages of errors.
        unit: Of sides whose unit stands neither in the header (`Length_cm`) nor in a column of units; inches and feet,
            which a file may have, become millimetres.
        columns: Headers by what they are, one of `COLUMNS`, where the words do not find them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no column for a side, or two units, or is too large.
        ModuleNotFoundError: The library for the file is not installed.
    """
    rows = table_rows(path, where)
    header = [("" if cell is None else str(cell).strip()) for cell in next(rows, [])]
    first = 1 if path.suffix.lower() == ".json" else 2
    if len(header) == 3 and all(number_of(cell) is not None for cell in header):
        # A file of three numbers a line has no header: its first line is a box.
        rows = itertools.chain([header], rows)
        header = list(SIDES)
        first = 1
    found = _columns(header, columns or {}, where)
    rotations = _rotations(header, set(found.values()), where)
    sides = [_unit_of(header[found[side]], LENGTHS) for side in SIDES]
    if len(set(sides)) > 1:
        given = ", ".join(header[found[side]] for side in SIDES)
        raise ValueError(f"{where}: the columns {given} must have the same unit")
    by_header = sides[0]
    per_kg = {name: WEIGHTS[_unit_of(header[found[name]], WEIGHTS) or "kg"] for name in _KILOGRAMS if name in found}
    orders: dict[str, list[_Row]] = {}
    faults = []
    units: set[str] = set()
    total = 0
    for line, row in enumerate(rows, first):
        cells = {name: row[at] if at < len(row) else None for name, at in found.items()}
        if not any(map(_text, row)):
            continue
        order = _text(cells.get("order")) or "all"
        own = by_header or (_text(cells["unit"]).casefold() if "unit" in cells else "")
        number, reason = _fault_free(cells, own)
        permitted = [_flag(row[at]) if at < len(row) else False for at in rotations]
        up = _sides_up(permitted, bool(_flag(cells.get("upright"))))
        if reason := reason or _rotation_fault(permitted, up):
            faults.append((line, order, reason))
            continue
        # A quantity of zero is a row without a box, not a fault.
        if number == 0:
            continue
        units.add(own)
        total += number
        if total > MOST_BOXES:
            raise ValueError(f"{where}: more than {MOST_BOXES:,} boxes by line {line}")
        label: Label = {"line": line}
        if article := _text(cells.get("article")):
            label["article"] = article
        masses = {name: (number_of(cells[name]) or 0.0) * per_kg[name] for name in per_kg if _text(cells[name])}
        if "weight" in masses:
            label["weight/kg"] = masses["weight"]
        numbers = [number_of(cells[side]) or 0.0 for side in SIDES]
        numbers += [masses.get(name, none) for name, none in _KILOGRAMS.items()]
        numbers += [float(_flag(cells.get("fragile")) or 0), *map(float, up)]
        orders.setdefault(order, []).append((number, numbers, label))
    known, factor, own_unit = _one_unit(units, unit, where)
    boxes = [_repeated_numbers(rows) for rows in orders.values()]
    named = {name: header[at] for name, at in found.items()}
    taken = (*found.values(), *rotations)
    told = {"sides_up": ", ".join(header[at] for at in rotations)} if rotations else {}
    sizes = [each[:, :3] * factor for each in boxes]
    weights = [each[:, 3] for each in boxes]
    max_loads = [each[:, 4] for each in boxes]
    fragile = [each[:, 5] > 0 for each in boxes]
    vertical = [each[:, 6:] > 0 for each in boxes]
    labels = [_repeated_labels(rows) for rows in orders.values()]
    unread = [name for at, name in enumerate(header) if at not in taken and name]
    return BoxList(
        orders=list(orders),
        sizes=sizes,
        weights=weights,
        max_loads=max_loads,
        up=vertical,
        fragile=fragile,
        labels=labels,
        unit=known,
        own_unit=own_unit,
        names_unit=bool(units - {""}),
        columns=named | told,
        unread=unread,
        faults=faults,
    )


# Number of boxes of a row, their numbers, and their label.
_Row = tuple[int, list[float], Label]


def _repeated_numbers(rows: Sequence[_Row]) -> np.ndarray:
    """Numbers of every box of an order, one row for each box."""
    return np.repeat([numbers for _, numbers, _ in rows], [number for number, _, _ in rows], 0)


def _repeated_labels(rows: Sequence[_Row]) -> list[Label]:
    """Label of every box of an order, shared by the boxes of a row."""
    labels = []
    for number, _, label in rows:
        labels += [label] * number
    return labels


# Columns in kilograms, and the value where the list has none.
_KILOGRAMS = {"weight": math.nan, "max_load": math.inf}
_FLAGS = ("upright", "fragile")


def _fault_free(cells: Mapping[str, object], unit: str) -> tuple[int, str]:
    """Return the number of boxes of a row and its fault, "" for a valid row."""
    for side in SIDES:
        value = number_of(cells[side])
        if value is None or not 0 < value < math.inf:
            return 0, f"{side} must be a positive number; got {_text(cells[side]) or 'nothing'}"
    if unit and unit not in LENGTHS:
        return 0, f"unit must be one of {', '.join(LENGTHS)}; got {unit}"
    number = number_of(cells["quantity"]) if "quantity" in cells else 1.0
    if number is None or not 0 <= number < math.inf or number % 1:
        return 0, f"quantity must be a whole number; got {_text(cells['quantity']) or 'nothing'}"
    if _text(cells.get("weight")) and not 0 < (number_of(cells["weight"]) or 0.0) < math.inf:
        return 0, f"weight must be a positive number, or nothing; got {_text(cells['weight'])}"
    load = number_of(cells.get("max_load"))
    if _text(cells.get("max_load")) and (load is None or not 0 <= load < math.inf):
        return 0, f"max_load must be a number of at least 0, or nothing; got {_text(cells['max_load'])}"
    for name in _FLAGS:
        if _flag(cells.get(name)) is None:
            return 0, f"{name} must be yes or no; got {_text(cells[name])}"
    return int(number), ""


def _rotations(header: Sequence[str], taken: set[int], where: str) -> list[int]:
    """Find the columns of the six rotations, if the header has them.

    The two rotations with the same vertical side stand together, in the order of the sides.
    """
    known = {}
    for at, name in enumerate(header):
        match = None if at in taken else _ROTATION.fullmatch(_plain(name))
        if match and len(set(match[1])) == 3:
            known[match[1]] = at
    if known and len(known) < 6:
        raise ValueError(
            f"{where}: rotations need six columns; there are only {', '.join(header[at] for at in known.values())}"
        )
    return [known[name] for name in ("zyx", "yzx", "xzy", "zxy", "xyz", "yxz")] if known else []


def _sides_up(permitted: Sequence[bool | None], upright: bool) -> tuple[bool, bool, bool]:
    """Return the mask of the sides that may be vertical.

    `permitted` is in the order of `_rotations`; without rotations all sides may be vertical.
    """
    x = any(permitted[0:2]) or not permitted
    y = any(permitted[2:4]) or not permitted
    z = any(permitted[4:6]) or not permitted
    return x and not upright, y and not upright, z


def _rotation_fault(permitted: Sequence[bool | None], up: tuple[bool, bool, bool]) -> str:
    """Why a row's rotations give no box."""
    if None in permitted:
        return "rotations must be yes or no"
    if any(one != other for one, other in zip(permitted[::2], permitted[1::2], strict=True)):
        return "rotations must allow both turns about the vertical, or none"
    return "" if any(up) else "one side must be permitted to be vertical; got none"


def _flag(cell: object) -> bool | None:
    """Read yes or no in several languages.

    An empty cell is no. None for anything else.
    """
    text = _text(cell).casefold()
    if text in _YES:
        return True
    return False if text in _NO else None


def _one_unit(units: set[str], given: str, where: str) -> tuple[str, float, str]:
    """Return the unit of a list, its factor, and the unit of the file.

    The numbers of the file are multiplied by the factor.
    """
    named = units - {""}
    if len(named) > 1 or (named and "" in units):
        raise ValueError(f"{where}: all rows must have the same unit; there are {', '.join(sorted(units))}")
    unit = named.pop() if named else given
    return (unit, 1.0, unit) if unit in ("cells", "m", "cm", "mm") else ("mm", LENGTHS[unit], unit)


def _columns(header: Sequence[str], given: Mapping[str, str], where: str) -> dict[str, int]:
    """Index of each column that a header has, by what it is."""
    for name, column in given.items():
        arguments.choice("BoxSequences", "columns", name, COLUMNS)
        if column not in header:
            raise ValueError(f"{where}: columns.{name} must be one of {', '.join(header)}; got {column}")
    found = {name: header.index(column) for name, column in given.items()}
    plain = [_plain(name) for name in header]
    for name, words in _WORDS.items():
        if name in found:
            continue
        exact = [plain.index(word) for word in words if word in plain]
        # A single letter is no word within a header, and a header such as "unit price" is no unit.
        longer = [word for word in words if len(word) > 1 and name != "unit"]
        texts = [text if name != "order" or not _NO_ORDER.search(text) else "" for text in plain]
        within = []
        for word in longer:
            within += [at for at, text in enumerate(texts) if re.search(rf"\b{word}\b", text)]
        free = [at for at in [*exact, *within] if at not in found.values()]
        if free:
            found[name] = free[0]
    if missing := [side for side in SIDES if side not in found]:
        headers = ", ".join(filter(None, header)) or "no header"
        raise ValueError(
            f"{where}: no column for the {missing[0]} among {headers}; name it by the option columns.{missing[0]}"
        )
    return found


def _plain(header: str) -> str:
    """A header in small letters, without its unit and punctuation."""
    text = _UNIT.sub("", header.casefold())
    return re.sub(r"[\W_]+", " ", text).strip()


def _unit_of(header: str, known: Mapping[str, float]) -> str:
    match = _UNIT.search(header.casefold())
    return match[1] if match and match[1] in known else ""


def _text(cell: object) -> str:
    """Return a cell as text, "" for an empty one.

    Parquet may have NaN for an empty cell.
    """
    if isinstance(cell, float) and math.isnan(cell):
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()


def number_of(cell: object) -> float | None:
    """Read a number, or text such as 12.5, 12,5 or 1,200.

    None for anything else.
    """
    if isinstance(cell, bool):
        return None
    if isinstance(cell, (int, float)):
        return float(cell)
    text = _text(cell)
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    text = text.replace(",", ".")
    return float(text) if re.fullmatch(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?|[+-]?\.\d+", text, re.IGNORECASE) else None


# -- files ----------------------------------------------------------------------------------------------------------


def table_rows(path: Path, where: str) -> Iterator[Sequence[object]]:
    """Yield the rows of the first table of a file, cells as it holds them.

    ValueError, which begins with `where`, if the file holds no table.
    """
    read = {".xlsx": _excel, ".parquet": _parquet, ".json": _json_rows}.get(path.suffix.lower(), _text_rows)
    if not path.is_file():
        raise FileNotFoundError(f"{where}: there is no such list of boxes")
    try:
        check_size(path)
        for number, row in enumerate(read(path)):
            if number >= _MOST_ROWS or len(row) > _MOST_COLUMNS:
                raise ValueError(f"more than {_MOST_ROWS:,} rows of {_MOST_COLUMNS:,} columns, by line {number + 1}")
            yield row
    except ModuleNotFoundError:
        raise
    except Exception as error:
        # A broken or foreign file can make a reader raise anything.
        reason = str(error).strip().split("\n")[0][:160] or type(error).__name__
        raise ValueError(f"{where}: not a table of boxes; reading the file fails with: {reason}") from error


def check_size(path: Path) -> None:
    """Raise ValueError if a file is too large, unpacked if it is zipped."""
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = max(size, sum(info.file_size for info in archive.infolist()))
    if size > MOST_BYTES:
        raise ValueError(f"{size:,} bytes, more than {MOST_BYTES:,}")


def _json_rows(path: Path) -> Iterator[Sequence[object]]:
    raw = json.loads(path.read_bytes())
    orders = list(raw.values()) if isinstance(raw, dict) else [raw]
    if not all(isinstance(each, dict) and "item_sequence" in each for each in orders):
        raise ValueError('no orders, {order: {"item_sequence": {place: {"length/mm": …}}}}')
    rows = []
    for name, order in raw.items():
        items = order["item_sequence"]
        rows += [{"order": name} | item for item in (items.values() if isinstance(items, dict) else items)]
    header = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    yield header
    for row in rows:
        yield [row.get(name) for name in header]


def _text_rows(path: Path) -> Iterator[Sequence[object]]:
    # Files seldom say their encoding. Spreadsheets write UTF-16 and UTF-8 with a mark, and older programs the code page
    # of western Windows, which is what is left when the bytes are no UTF-8.
    raw = path.read_bytes()
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        text = raw.decode("cp1252", errors="replace")
    # The delimiter is the most frequent one in the first line. The sniffer of the module `csv` may guess wrongly where
    # cells hold other delimiters.
    line = text.split("\n", 1)[0]
    delimiter = max(";\t|,", key=line.count)
    if not line.count(delimiter):
        yield from (each.split() for each in text.splitlines())
        return
    for row in csv.reader(io.StringIO(text), delimiter=delimiter):
        # A list with semicolons is of a country that writes 1,200 for 1.2.
        yield [cell.replace(",", ".") if delimiter != "," and re.fullmatch(r"\d+,\d+", cell) else cell for cell in row]


def _excel(path: Path) -> Iterator[Sequence[object]]:
    book = _library("openpyxl", path).load_workbook(path, read_only=True, data_only=True)
    try:
        for row in book.worksheets[0].iter_rows(values_only=True):
            yield list(row)
    finally:
        book.close()


def _parquet(path: Path) -> Iterator[Sequence[object]]:
    file = _library("pyarrow.parquet", path, "parquet").ParquetFile(path)
    yield list(file.schema_arrow.names)
    about = file.metadata
    if about.num_rows > _MOST_ROWS or len(file.schema_arrow.names) > _MOST_COLUMNS:
        raise ValueError(f"{about.num_rows:,} rows of {len(file.schema_arrow.names):,} columns")
    # Every row may hold the longest text of its group, which stands in the file once.
    longest = max((about.row_group(i).total_byte_size for i in range(about.num_row_groups)), default=0)
    if longest > _MOST_BYTES:
        raise ValueError(f"{longest:,} bytes in a group of rows, more than {_MOST_BYTES:,}")
    for batch in file.iter_batches(batch_size=max(1, min(4096, _MOST_BYTES // max(1, longest)))):
        yield from (list(row.values()) for row in batch.to_pylist())


def _library(module: str, path: Path, extra: str = "lists") -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"BoxSequences: {path}: reading it needs {package}, which is not installed;"
            f" to install it: {how_to_install(extra)}",
            name=error.name,
        ) from error
