"""Lists of boxes: what is read, how it is shown, and what is refused."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.lists import files
from torchrl_gpu.lists.box_list import BoxList
from torchrl_gpu.lists.columns import COLUMNS, Column
from torchrl_gpu.lists.reading import read_list
from torchrl_gpu.lists.report import first_rows, list_table
from torchrl_gpu.lists.side_texts import is_order_unknown
from torchrl_gpu.palletizing import pack

CASES = """PO Number,Pallet No,Material,Pick_quantity_cs,Length_cm,Width_cm,Height_cm,Vol/CS(dm3),Gross weight
A,1,P_1,2,35,20.3,20.8,29.6,6.3
A,1,P_2,1,33.7,19.1,17,10.9,5.9
B,2,P_1,1,35,20.3,20.8,29.6,6.3
"""


def read(
    tmp_path: Path,
    text: str,
    name: str = "a.csv",
    *,
    encoding: str = "utf-8",
    unit: str = "cells",
    columns: dict[str, str] | None = None,
) -> BoxList:
    path = tmp_path / name
    path.write_text(text, encoding=encoding)
    return read_list(path, "here", unit=unit, columns=columns)


def test_a_picking_list_is_read_by_order_with_its_articles(tmp_path: Path) -> None:
    found = read(tmp_path, CASES)
    assert (found.orders, found.unit, found.names_unit, found.faults) == (["A", "B"], "cm", True, [])
    assert [sizes.tolist() for sizes in found.sizes] == [
        [[35, 20.3, 20.8], [35, 20.3, 20.8], [33.7, 19.1, 17]],
        [[35, 20.3, 20.8]],
    ]
    assert found.labels[0][2] == {"line": 3, "article": "P_2", "weight/kg": 5.9}
    assert found.columns["quantity"] == "Pick_quantity_cs"
    assert found.unread == ["Pallet No", "Vol/CS(dm3)"]


@pytest.mark.parametrize(
    ("header", "unit", "scale"),
    [
        ("Länge;Breite;Höhe", "cells", 1),
        ("Länge (mm);Breite (mm);Höhe (mm)", "mm", 1),
        ("L [cm];W [cm];H [cm]", "cm", 1),
        ("longueur;largeur;hauteur", "cells", 1),
        ("尺寸（L）;尺寸（W）;尺寸（H）", "cells", 1),
        ("length/in;width/in;height/in", "mm", 25.4),
        ("item;Max. length m;Max. width m;Max. height m", "m", 1),
        ("height;width;length", "cells", 1),
    ],
)
def test_headers_of_many_kinds(header: str, unit: str, scale: float, tmp_path: Path) -> None:
    names = header.casefold().split(";")
    turned = names[0] == "height"
    found = read(tmp_path, f"{header}\n{'bolt;' * names.count('item')}3,5;2;1\n")
    assert found.unit == unit
    wanted = [1, 2, 3.5] if turned else [3.5, 2, 1]
    assert found.sizes[0] == pytest.approx(scale * np.array([wanted]))


def test_numbers_of_several_countries(tmp_path: Path) -> None:
    assert read(tmp_path, "l;w;h\n1,200;2,5;3\n").sizes[0].tolist() == [[1.2, 2.5, 3]]
    assert read(tmp_path, 'l,w,h\n"1,200",2.5,3\n').sizes[0].tolist() == [[1200, 2.5, 3]]
    with pytest.raises(ValueError, match=r"1,200.* 1200 .* 1\.2 .*--decimal"):
        read(tmp_path, "l;w;h\n1,200;2;3\n")
    assert read(tmp_path, "l\tw\th\n1.5\t2e1\t3\n", "a.tsv").sizes[0].tolist() == [[1.5, 20, 3]]
    assert read(tmp_path, "Länge,Breite,Höhe\n1,2,3\n", encoding="cp1252").sizes[0].tolist() == [[1, 2, 3]]


def test_three_numbers_a_line_need_no_header(tmp_path: Path) -> None:
    for name, text in (("a.txt", "107 63 8.5\n95 60 9\n"), ("a.csv", "107,63,8.5\n95,60,9\n")):
        found = read(tmp_path, text, name, unit="cm")
        assert (found.unit, found.names_unit) == ("cm", False)
        assert found.sizes[0].tolist() == [[107, 63, 8.5], [95, 60, 9]]
        assert found.labels[0][1] == {"line": 2}


def test_weights_are_kilograms(tmp_path: Path) -> None:
    found = read(tmp_path, "l,w,h,weight (lb)\n1,2,3,10\n1,2,3,\n")
    assert found.labels[0] == [{"line": 2, "weight/kg": pytest.approx(4.5359237)}, {"line": 3}]


def test_what_a_box_may_bear_and_how_it_may_lie(tmp_path: Path) -> None:
    header = "l,w,h,max stack height,Max load (lb),this side up,Fragile,weight,qty"
    found = read(tmp_path, f"{header}\n1,2,3,9,10,x,no,4,2\n1,2,3,9,0,NEIN,true,,1\n1,2,3,9,,,,5,1\n")
    assert found.sizes[0].tolist() == [[1, 2, 3]] * 4
    assert found.max_loads[0] == pytest.approx([4.5359237, 4.5359237, 0, np.inf])
    assert found.weights[0] == pytest.approx([4, 4, np.nan, 5], nan_ok=True)
    assert found.up[0].tolist() == [[False, False, True]] * 2 + [[True] * 3] * 2
    assert found.fragile[0].tolist() == [False, False, True, False]
    assert found.unread == ["max stack height"]


ROTATIONS = "ID,X,Y,Z,ROTATION_XYZ,ROTATION_YXZ,ROTATION_ZYX,ROTATION_YZX,ROTATION_XZY,ROTATION_ZXY,COPIES"


def test_sides_that_may_be_vertical_by_the_columns_of_packingsolver(tmp_path: Path) -> None:
    rows = [
        "0,108,76,30,1,1,0,0,0,0,1",
        "1,110,43,25,1,1,0,0,1,1,2",
        "2,92,81,55,1,1,1,1,1,1,1",
        "3,9,8,7,0,0,1,1,0,0,1",
    ]
    found = read(tmp_path, "\n".join([ROTATIONS, *rows]), unit="cm")
    # In BR1 itself: "108 0 76 0 30 1", "110 0 43 1 25 1" and "92 1 81 1 55 1".
    assert found.up[0].tolist() == [
        [False, False, True],
        [False, True, True],
        [False, True, True],
        [True, True, True],
        [True, False, False],
    ]
    assert not found.unread
    assert found.columns["sides_up"].split(", ") == sorted(ROTATIONS.split(",")[4:-1], key=lambda name: name[-1])
    shown = list_table(found, "a")
    told = dict(zip(*(list(column.cells) for column in shown.columns), strict=True))
    assert (told["this side up"], told["not read"]) == ("1 boxes", "no column")
    assert told["sides up from"] == found.columns["sides_up"]


def test_rows_of_rotations_that_give_no_box(tmp_path: Path) -> None:
    rows = ["0,3,2,1,1,0,0,0,0,0,1", "1,3,2,1,0,0,0,0,0,0,1", "2,3,2,1,2,2,0,0,0,0,1", "3,3,2,1"]
    found = read(tmp_path, "\n".join([ROTATIONS.replace(",COPIES", ",N"), *rows]), unit="cm")
    assert [(line, reason) for line, _, reason in found.faults] == [
        (2, "rotations must allow both turns about the vertical, or none"),
        (3, "rotations allow no side to be vertical"),
        (4, "rotations must be yes or no"),
        (5, "quantity must be a whole number, not an empty cell"),
    ]
    with pytest.raises(ValueError, match=r"rotations.* Rotation_XYZ, rotation yxz"):
        read(tmp_path, "x,y,z,Rotation_XYZ,rotation yxz\n1,2,3,1,1\n")


@pytest.mark.parametrize(
    ("header", "order"),
    [
        ("order date,order", "order"),
        ("order date,order key", "order key"),
        ("Order line,Order No", "Order No"),
        ("order date,order status", None),
        ("Bestelldatum,Auftragsnummer", "Auftragsnummer"),
        ("customer order,order date", "customer order"),
        ("order qty,pallet no", "pallet no"),
    ],
)
def test_facts_about_an_order_are_not_its_name(header: str, order: str | None, tmp_path: Path) -> None:
    assert read(tmp_path, f"{header},l,w,h\n1,2,3,4,5\n").columns.get("order") == order


def test_orders_in_json_are_rows_too(tmp_path: Path) -> None:
    def box(height: float, **more: bool) -> dict[str, object]:
        return {"article": "jam", "length/mm": 600, "width/mm": 400, "height/mm": height, "weight/kg": 6.3, **more}

    orders = {"7": {"item_sequence": {"1": box(220), "2": box(0)}}, "8": {"item_sequence": [box(50, fragile=True)]}}
    found = read(tmp_path, json.dumps(orders), "a.json")
    assert (found.orders, found.unit, found.names_unit) == (["7", "8"], "mm", True)
    assert found.labels == [
        [{"line": 1, "article": "jam", "weight/kg": 6.3}],
        [{"line": 3, "article": "jam", "weight/kg": 6.3}],
    ]
    assert found.faults == [(2, "7", "height must be a positive number, not 0")]
    assert found.fragile[1].tolist() == [True]
    for broken in ("[[[1, 2, 3]]]", "{}", '{"7": {}}', '{"7": {"item_sequence": [1]}}', "[" * 100_000, "1"):
        with pytest.raises(ValueError, match=r"^here: .+"):
            read(tmp_path, broken, "a.json")


def cells_of(found: BoxList) -> dict[str, str]:
    """The table of a list, by the words of its first column."""
    names, cells = list_table(found, "a").columns
    return {str(name): str(cell) for name, cell in zip(names.cells, cells.cells, strict=True)}


def test_the_table_shows_what_was_read(tmp_path: Path) -> None:
    text = "order,article,l/in,w/in,h/in,weight/lb,[qty],upright,colour\n"
    rows = ["A,a,10,20,30,10,2,1,red", "A,b,60,20,5,5,3,0,red", "B,d,5,5,60,9,1,1,red", "B,e,0,1,1"]
    found = read(tmp_path, text + "\n".join(rows))
    shown = cells_of(found)
    assert shown["table"] == "header in line 1, utf-8, cells between commas"
    assert (shown["orders"], shown["boxes"]) == ("2", "6 in 3 rows")
    assert shown["sides"] == "5 to 60 in, as the file says"
    assert shown["volume"] == f"{(2 * 6000 + 3 * 6000 + 1500) * 0.0254**3:.4g} m³"
    assert shown["weight"] == "19.9581 kg, a box 2.26796 to 4.53592 kg"
    assert shown["this side up"] == "3 boxes"
    assert shown["quantity from"] == r"\[qty], first cell 2"
    assert shown["length from"] == "l/in, first cell 10, unit in"
    assert shown["not read"] == "colour"
    assert shown["left out"] == "line 5, order B: length must be a positive number, not 0"
    first = [list(map(str, column.cells)) for column in first_rows(found).columns]
    assert first[0] == ["2", "3", "4"]
    assert first[3] == ["2", "3", "1"]
    assert first[4] == ["10 × 20 × 30", "60 × 20 × 5", "5 × 5 × 60"]


def test_column_of_ones_own_is_one_row_of_the_table(tmp_path: Path) -> None:
    own = Column("temperature", "text", {"en": "temperature class, temp class", "de": "temperaturklasse"})
    COLUMNS.append(own)
    try:
        found = read(tmp_path, "l mm;w mm;h mm;qty;Temperaturklasse\n400;300;200;2;frozen\n400;300;200;1;\n")
        pack(found, device="cpu").write(tmp_path / "plan")
    finally:
        COLUMNS.remove(own)
    assert found.values["temperature"][0].tolist() == ["frozen", "frozen", ""]
    assert cells_of(found)["temperature from"] == "Temperaturklasse, first cell frozen"
    plan = (tmp_path / "plan" / "plan.csv").read_text(encoding="utf-8-sig").splitlines()
    assert plan[0].endswith(";Temperaturklasse")
    assert sorted(row.split(";")[-1] for row in plan[1:]) == ["", "frozen", "frozen"]
    assert read(tmp_path, "l mm,w mm,h mm,temp class\n4,3,2,1\n").unread == ["temp class"]


def test_doubts_stand_in_the_table(tmp_path: Path) -> None:
    found = read(tmp_path, "l mm,w mm,h mm,weight\n1.2,300,200,900\n5000,300,200,9\n")
    assert [doubt.split(":")[0] for doubt in found.doubts] == ["line 2", "line 3", "line 2"]
    assert "doubtful" in cells_of(found)


def test_a_table_of_no_boxes_counts_its_faults(tmp_path: Path) -> None:
    shown = list_table(read(tmp_path, "l,w,h\n" + "0,1,1\n" * 30), "a.csv")
    assert list(shown.columns[1].cells)[1:3] == ["0", "0 in 0 rows"]
    assert list(shown.columns[1].cells)[-1] == "and 10 rows more"


def test_columns_can_be_named(tmp_path: Path) -> None:
    text = "a,b,c,how many\n1,2,3,2\n"
    with pytest.raises(ValueError, match=r"length.* \"a\", \"b\", \"c\".*--column length"):
        read(tmp_path, text)
    columns = {"length": "a", "width": "b", "height": "c", "quantity": "how many"}
    assert read(tmp_path, text, columns=columns).sizes[0].tolist() == [[1, 2, 3]] * 2
    with pytest.raises(ValueError, match=r"columns.length.*\"d\".* a, b, c, how many"):
        read(tmp_path, text, columns={"length": "d"})
    with pytest.raises(ValueError, match="columns must be one of"):
        read(tmp_path, text, columns={"colour": "a"})


def test_excel_and_parquet_say_the_same(tmp_path: Path) -> None:
    openpyxl, pyarrow = pytest.importorskip("openpyxl"), pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [line.split(",") for line in CASES.splitlines()]
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append([float(cell) if cell[0].isdigit() else cell for cell in row])
    book.save(tmp_path / "a.xlsx")
    columns = {}
    for at, name in enumerate(rows[0]):
        columns[name] = [row[at] for row in rows[1:]]
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    wanted = read(tmp_path, CASES)
    for name in ("a.xlsx", "a.parquet"):
        found = read_list(tmp_path / name, "here")
        assert (found.orders, found.labels, found.columns) == (wanted.orders, wanted.labels, wanted.columns)
        assert all(map(np.array_equal, found.sizes, wanted.sizes))


# -- what is wrong with some ------------------------------------------------------------------------------------------


def test_empty_cells_of_parquet_and_orders_of_nothing(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    numbers = {"l": [2.0, 2.0, 2.0, 2.0], "w": [3.0] * 4, "h": [4.0] * 4, "qty": [1.0, np.nan, np.inf, 0.0]}
    columns = numbers | {"weight": [np.nan, 1.0, 1.0, 1.0], "order": ["A", "A", "A", "B"], "unit price": [9.5] * 4}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    found = read_list(tmp_path / "a.parquet", "here")
    assert (found.orders, found.labels) == (["A"], [[{"line": 2}]])
    wanted = "quantity must be a whole number, not"
    assert found.faults == [(3, "A", f"{wanted} an empty cell"), (4, "A", f"{wanted} inf")]


def test_texts_that_repeat_are_not_all_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {side: [1.0] * 500 for side in "lwh"} | {"article": ["x" * 100_000] * 500}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 200_000
    monkeypatch.setattr(files, "_MOST_BATCH_BYTES", 1 << 20)
    sizes, iterate = [], parquet.ParquetFile.iter_batches

    def counted(file: object, batch_size: int) -> Iterator[object]:
        sizes.append(batch_size)
        return iterate(file, batch_size)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    assert len(read_list(tmp_path / "a.parquet", "here").sizes[0]) == 500
    assert sizes[0] * 100_000 <= 1 << 20
    monkeypatch.setattr(files, "_MOST_BATCH_BYTES", 1000)
    with pytest.raises(ValueError, match="bytes in a group of rows, more than 1,000"):
        read_list(tmp_path / "a.parquet", "here")


BROKEN = "order,l,w,h,qty\nA,2,3,4,1\nA,2,0,4,1\nB,2,3,x,1\nB,2,3,4,1.5\nC,5,5,5,1\n"


def test_rows_that_give_no_box_are_named(tmp_path: Path) -> None:
    assert read(tmp_path, BROKEN).faults == [
        (3, "A", "width must be a positive number, not 0"),
        (4, "B", 'height must be a positive number, not "x"'),
        (5, "B", "quantity must be a whole number, not 1.5"),
    ]


def test_limits_that_no_environment_heeds_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header = "length_cm,width_cm,height_cm,qty,fragile,max load kg,this side up\n"
    (tmp_path / "a.csv").write_text(f"{header}30,20,10,3,yes,,\n40,30,20,1,no,5,yes\n40,30,30,1,no,,no\n")
    for orientations, more in (("yaw", ""), ("axis", ", 1 not to lie on every side")):
        items = BoxSequences(str(tmp_path / "a.csv"))
        PackingEnv(
            2, bin_size=(1.2, 0.8, 1.0), resolution=(60, 40), items=items, orientations=orientations, device="cpu"
        )
        (said,) = caplog.messages
        told = f"boxes 3 fragile, 1 of limited load{more}: torchrl-gpu pack heeds that, environments do not"
        assert said == f"BoxSequences: {tmp_path / 'a.csv'}: {told}"
        caplog.clear()
    (tmp_path / "a.csv").write_text(f"{header}30,20,10,3,no,,no\n")
    BoxSequences(str(tmp_path / "a.csv")).build(Bin((1.2, 0.8, 1.0), (60, 40)), "axis", 5, 2)
    assert caplog.messages == []


def test_misfits_decides_on_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text(BROKEN)
    path = str(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"line 3 \(order A\): width.* 0; the first of 3"):
        BoxSequences(path)
    boxes = BoxSequences(path, misfits="skip_boxes")
    assert (boxes.names, [len(each) for each in boxes.episodes]) == (["A", "C"], [1, 1])
    assert "left out boxes of line 3 (order A)" in caplog.text
    assert BoxSequences(path, misfits="skip_orders").names == ["C"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "empty"),
        ("a.csv", b"l,w,h\n", "no order of boxes"),
        ("a.csv", b"l,w,h,unit\n1,2,3,cm\n1,2,3,\n", "line 3.*unit.* cm"),
        ("a.csv", b"l,w,h,unit\n1,2,3,cm\n1,2,3,ell\n", 'line 3: unit: "ell".* mm, cm'),
        ("a.csv", b"l,w,h,weight\n1,2,3,1\n1,2,3,heavy\n", 'line 3: weight.*"heavy"'),
        ("a.csv", b"l,w,h,fragile\n1,2,3,no\n1,2,3,maybe\n", "line 3: fragile.* maybe"),
        ("a.csv", b"l,w,h,max load\n1,2,3,-1\n", "line 2: max_load.* -1"),
        ("a.csv", b"l,w,h,qty\n1,2,3,99999999999\n", "16,777,216 boxes.*line 2"),
        ("a.csv", b"l,w,h\n" + 2000 * b"1,", "fails with: more than"),
        ("a.csv", b"l,w,h\n1,2,3e9\n", "sizes must be at most 1e[+]09"),
        ("a.xlsx", b"PK\x03\x04 and so on", "table of boxes.*fails with"),
        ("a.parquet", b"PAR1 and so on", "table of boxes.*fails with"),
    ],
)
def test_other_files_are_refused_in_a_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    if name != "a.csv":
        pytest.importorskip({"a.xlsx": "openpyxl", "a.parquet": "pyarrow"}[name])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        BoxSequences(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_file_that_unpacks_to_more_than_memory_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 10_000)
    monkeypatch.setattr(files, "excel_sheets", None)
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", bytes(20_000))
    with pytest.raises(ValueError, match="20,000 bytes, more than 10,000"):
        BoxSequences(str(tmp_path / "a.xlsx"))


def test_columns_are_for_lists(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((1, 1, 3)))
    with pytest.raises(ValueError, match=r"columns must be none but for \.csv"):
        BoxSequences(str(tmp_path / "a.npy"), columns={"length": "l"})


def test_a_list_is_packed_and_its_articles_are_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CASES)
    items = BoxSequences(str(tmp_path / "a.csv"), in_order=True)
    env = PackingEnv(2, bin_size=(1.34, 1.25, 1.0), resolution=(134, 125), items=items, num_items=3, device="cpu")
    first = env.reset()
    assert first["item_size"][:, 0, 0, :3].tolist() == [pytest.approx([0.35, 0.21, 0.21])] * 2
    volumes = torch.tensor([0.337 * 0.191 * 0.17, 0.35 * 0.203 * 0.208])
    assert torch.allclose(env.catalogue.volume.sort().values, volumes)
    label = {"row": 2, "line": 3, "article": "P_2", "weight/kg": 5.9, "sides": [33.7, 19.1, 17]}
    assert items.box_label(0, 2) == label


_MANY_COLUMNS = ",".join(f"c{i}" for i in range(10_000))
_MANY_KEYS = json.dumps([{f"k{i}": i} for i in range(20_000)])
HOSTILE = {
    "a cell of a megabyte": ("sku,l,w,h\n" + "x" * 10**6 + ",1,2,3\n", "131,072 characters"),
    "a quote that nothing ends": ('sku,l,w,h\n"' + "x,1,2,3\n" * 50_000, "quote"),
    "ten thousand columns": (_MANY_COLUMNS + "\n1\n", "columns"),
    "twenty thousand keys": (_MANY_KEYS, "20,000 keys"),
}
HOSTILE |= {
    "a million brackets": ("[" * 10**6, "deeply|JSON"),
    "no text": ("\0" * 5000, "no text"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_in_bounded_time(kind: str, tmp_path: Path) -> None:
    content, message = HOSTILE[kind]
    path = tmp_path / "list.csv"
    path.write_text(content, encoding="utf-8")
    started = time.process_time()
    with pytest.raises(ValueError, match=message):
        read_list(path, "here", unit="cm")
    assert time.process_time() - started < 20


def test_merged_cells_of_a_whole_sheet_are_refused(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["l mm", "w mm", "h mm"])
    book.save(tmp_path / "small.xlsx")
    merged = b'</sheetData><mergeCells count="1"><mergeCell ref="A3:XFD1048576"/></mergeCells>'
    with zipfile.ZipFile(tmp_path / "small.xlsx") as small, zipfile.ZipFile(tmp_path / "a.xlsx", "w") as made:
        for name in small.namelist():
            made.writestr(name, small.read(name).replace(b"</sheetData>", merged))
    with pytest.raises(ValueError, match="merged cells"):
        read_list(tmp_path / "a.xlsx", "here")


def test_format_down_to_the_last_row_costs_nothing(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["l mm", "w mm", "h mm"])
    book.active.append([400, 300, 200])
    book.active["A1000000"].number_format = "0.00"
    book.save(tmp_path / "a.xlsx")
    started = time.process_time()
    assert read_list(tmp_path / "a.xlsx", "here").sizes[0].tolist() == [[400, 300, 200]]
    assert time.process_time() - started < 5


def test_order_of_sides_is_looked_for_at_the_beginning_of_a_header() -> None:
    # A search in 30,000 letters took eleven seconds.
    assert is_order_unknown("size AxAxF")
    assert not is_order_unknown("s" * 300 + " AxAxF")


def test_fraction_of_many_digits_is_a_fault_that_shows_its_beginning(tmp_path: Path) -> None:
    found = read(tmp_path, "l,w,h,qty\n" + "1" * 9000 + "/" + "3" * 9000 + ",2,3,1\n4,5,6,1\n", unit="cm")
    assert [fault.line for fault in found.faults] == [2]
    assert len(found.faults[0].reason) < 200
