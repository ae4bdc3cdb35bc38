"""`plan.pdf`: its sheets, their texts and fonts, and what is told of faults."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from torchrl_gpu.cli.packing import pack as command
from torchrl_gpu.palletizing import pack, plan_pdf
from torchrl_gpu.palletizing.fonts import FIRST_FAMILY, REPLACEMENT, Fonts
from torchrl_gpu.palletizing.page import PlanSummary, Row
from torchrl_gpu.palletizing.plan_pdf import write_plan_pdf
from torchrl_gpu.palletizing.sheets import PlacedBox, pallets_of, reason_lines, runs

HEADER = "order,article,length_mm,width_mm,height_mm,qty,weight_kg\n"
PALLET: Row = {"length": 1200, "width": 800, "height": 1500, "own_weight_kg": 25.0, "own_height": 144}


def box_row(number: int, layer: int, corner: tuple[int, int, int], sides: tuple[int, int, int], **more: object) -> Row:
    """A row of a plan in millimetres, of order A and pallet 1 unless `more` says more."""
    row: Row = {"order": "A", "pallet": 1, "sequence": number, "layer": layer, "article": "soap", "line": 2}
    row |= dict(zip(("x_mm", "y_mm", "z_mm"), corner, strict=True))
    row |= dict(zip(("length_mm", "width_mm", "height_mm"), sides, strict=True))
    return row | {"turned": "no", "up": "height", "front": "long side", "weight_kg": 5.0} | more


def summary_of(*boxes: Row, left_out: list[Row] | None = None) -> PlanSummary:
    return PlanSummary(unit="mm", pallet=PALLET, orders=[], boxes=list(boxes), left_out=left_out or [])


@pytest.fixture
def sheets(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Texts of every sheet that is written, sheet by sheet."""
    found: list[list[str]] = []
    save = PdfPages.savefig

    def savefig(self: PdfPages, figure: Figure) -> None:
        found.append([text.get_text() for text in figure.texts])
        save(self, figure)

    monkeypatch.setattr(PdfPages, "savefig", savefig)
    return found


@pytest.fixture
def only_first_font(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without fonts but those of matplotlib."""
    manager = font_manager.fontManager
    monkeypatch.setattr(manager, "ttflist", [entry for entry in manager.ttflist if entry.name == FIRST_FAMILY])
    monkeypatch.setattr(font_manager, "findSystemFonts", list)


def numbers_of(boxes: list[PlacedBox]) -> list[int]:
    return [box.number for box in boxes]


def num_pages(path: Path) -> int:
    return len(re.findall(rb"/Type /Page\b", path.read_bytes()))


# -- sheets -----------------------------------------------------------------------------------------------------------


def test_pdf_has_a_cover_and_a_sheet_for_each_layer(tmp_path: Path, sheets: list[list[str]]) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(HEADER + "4711,soap,400,300,240,24,5\n4712,towels,600,400,300,30,4\n", encoding="utf-8")
    plans = pack(path, "eur", device="cpu")
    plans.write(tmp_path / "plan")
    # 24 boxes in layers of 8, and 30 boxes in layers of 4, of which 5 are on a pallet.
    expected = [("4711", "pallet 1 of 1", 3), ("4712", "pallet 1 of 2", 5), ("4712", "pallet 2 of 2", 3)]
    wanted: list[list[str]] = []
    for order, pallet, layers in expected:
        wanted += [[f"Order {order}", f"{pallet}, layer {layer} of {layers}"] for layer in range(1, layers + 1)]
    assert [texts[:2] for texts in sheets[1:]] == wanted
    assert num_pages(tmp_path / "plan" / "plan.pdf") == len(sheets) == 12
    assert [texts[-1] for texts in sheets] == [f"sheet {number} of 12" for number in range(1, 13)]
    first = sheets[1]
    assert {str(number) for number in range(1, 9)} <= set(first)
    assert first.count("soap") == 8 + 1
    assert "boxes 1–8: 300 × 400, 240 high" in first
    assert "height up, short side to the front" in first
    assert "front" in first


def test_cover_tells_weight_height_and_centre_of_gravity(tmp_path: Path, sheets: list[list[str]]) -> None:
    heavy = box_row(1, 1, (0, 0, 0), (400, 400, 300), weight_kg=30.0)
    light = box_row(2, 1, (800, 400, 0), (400, 400, 200), weight_kg=10.0)
    left_out: list[Row] = [{"line": 7, "order": "A", "left out": "too long"}] * 3
    write_plan_pdf(tmp_path / "plan.pdf", summary_of(heavy, light, left_out=left_out))
    cover = sheets[0]
    assert cover[:2] == ["Pallets", "1 order, 1 pallet, 2 boxes on pallets of 1200 × 800 mm; lengths in mm"]
    # Centre by hand: x = (30·200 + 10·1000) / 40 = 400, y = (30·200 + 10·600) / 40 = 300, z = (30·150 + 10·100) / 40.
    off = f"{(200**2 + 100**2) ** 0.5:.0f}"
    row = cover.index("1 of 1")
    assert cover[row - 1 : row + 9] == ["A", "1 of 1", "1", "2", "40.0", "65.0", "300", "444", off, "138"]
    assert "line 7, order A: too long (3 boxes)" in cover


def test_cover_says_at_least_where_weights_are_missing(tmp_path: Path, sheets: list[list[str]]) -> None:
    unknown = box_row(2, 1, (400, 0, 0), (400, 400, 200))
    del unknown["weight_kg"]
    write_plan_pdf(tmp_path / "plan.pdf", summary_of(box_row(1, 1, (0, 0, 0), (400, 400, 300)), unknown))
    assert {"≥ 5.0", "≥ 30.0"} <= set(sheets[0])


def test_box_below_one_of_a_lower_layer_is_told(tmp_path: Path, sheets: list[list[str]]) -> None:
    """Box 4 stands on box 3 and hangs over box 2, which stands on a box of its own."""
    base = box_row(1, 1, (0, 0, 0), (400, 400, 100))
    below = box_row(2, 2, (0, 0, 100), (400, 400, 100))
    pillar = box_row(3, 1, (400, 0, 0), (400, 400, 300))
    above = box_row(4, 2, (300, 0, 300), (500, 400, 100))
    plan = summary_of(base, below, pillar, above)
    assert [view.earlier for view in pallets_of(plan)[0].views()] == [[], []]
    plan["boxes"][1]["layer"] = 3
    earlier = [view.earlier for view in pallets_of(plan)[0].views()]
    assert [len(pairs) for pairs in earlier] == [0, 1, 0]
    first, then = earlier[1][0]
    assert (first.number, then.number) == (2, 4)
    write_plan_pdf(tmp_path / "plan.pdf", plan)
    warning = "Before 4 place 2 of layer 3, which lies below it."
    assert [warning in texts for texts in sheets] == [False, False, True, False]


def test_boxes_below_are_those_that_are_seen() -> None:
    """A box of a column hides the one below it, and a plate hides none wholly."""
    column = [box_row(i + 1, i + 1, (0, 0, 100 * i), (400, 400, 100)) for i in range(3)]
    other = box_row(4, 1, (400, 0, 0), (400, 400, 50))
    plate = box_row(5, 2, (500, 0, 50), (400, 300, 20))
    views = list(pallets_of(summary_of(*column, other, plate))[0].views())
    assert [numbers_of(view.below) for view in views] == [[], [4, 1], [4, 5, 2]]


def test_kinds_of_boxes_beyond_the_sheet_are_counted(tmp_path: Path, sheets: list[list[str]]) -> None:
    boxes = [box_row(i + 1, 1, (10 * i, 0, 0), (10, 400, 100), article=f"a{i}") for i in range(100)]
    write_plan_pdf(tmp_path / "plan.pdf", summary_of(*boxes))
    listed = sum(text.startswith("box ") for text in sheets[1])
    assert f"and {100 - listed} more kinds of boxes: see plan.csv" in sheets[1]
    assert listed > 20


def test_sheets_beyond_the_limit_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sheets: list[list[str]]
) -> None:
    monkeypatch.setattr(plan_pdf, "MOST_SHEETS", 3)
    boxes = [box_row(i + 1, i + 1, (0, 0, 100 * i), (400, 400, 100)) for i in range(7)]
    faults = write_plan_pdf(tmp_path / "plan.pdf", summary_of(*boxes))
    assert len(faults) == 1
    assert "the first 3 of 8 sheets" in faults[0]
    assert any("the first 3 of 8 sheets" in text for text in sheets[0])
    assert num_pages(tmp_path / "plan.pdf") == 3


def test_cover_takes_more_sheets_for_more_pallets(tmp_path: Path, sheets: list[list[str]]) -> None:
    boxes = [box_row(1, 1, (0, 0, 0), (400, 400, 100), order=f"order {i}") for i in range(30)]
    write_plan_pdf(tmp_path / "plan.pdf", summary_of(*boxes))
    assert len(sheets) == 2 + 30
    assert [f"order {i}" for i in range(30) if f"order {i}" in sheets[0]] == [f"order {i}" for i in range(24)]
    assert {f"order {i}" for i in range(24, 30)} <= set(sheets[1])


def test_boxes_without_an_article_are_named_by_their_line(tmp_path: Path, sheets: list[list[str]]) -> None:
    box = box_row(1, 1, (0, 0, 0), (400, 400, 100), line=9)
    del box["article"]
    write_plan_pdf(tmp_path / "plan.pdf", summary_of(box))
    assert sheets[1].count("line 9") == 2


def test_plan_without_a_pallet_is_a_cover(tmp_path: Path, sheets: list[list[str]]) -> None:
    write_plan_pdf(tmp_path / "plan.pdf", summary_of(left_out=[{"line": 2, "order": "A", "left out": "too long"}]))
    assert len(sheets) == 1
    assert "line 2, order A: too long" in sheets[0]


def test_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    plan = summary_of(box_row(1, 1, (0, 0, 0), (400, 300, 100), article="мыло σαπούνι"))
    write_plan_pdf(tmp_path / "plan.pdf", plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    # Another process has other hashes of texts, and a style of its own must not count.
    (tmp_path / "matplotlibrc").write_text("font.size: 30\ntext.color: red\npdf.compression: 0\n", encoding="utf-8")
    script = (
        "import json, pathlib\n"
        "from torchrl_gpu.palletizing.plan_pdf import write_plan_pdf\n"
        "plan = json.loads(pathlib.Path('plan.json').read_text(encoding='utf-8'))\n"
        "write_plan_pdf(pathlib.Path('again.pdf'), plan)\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True, timeout=120)
    content = (tmp_path / "plan.pdf").read_bytes()
    assert (tmp_path / "again.pdf").read_bytes() == content
    assert b"CreationDate" not in content


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([3], "3"), ([1, 2], "1, 2"), ([1, 2, 3, 4, 7], "1–4, 7"), ([1, 3, 4, 5], "1, 3–5"), ([], "")],
)
def test_runs_of_numbers_are_drawn_together(numbers: list[int], words: str) -> None:
    assert runs(numbers) == words


def test_rows_left_out_are_counted() -> None:
    rows: list[Row] = [{"line": 3, "order": "A", "article": "x", "left out": "too long"}] * 2
    rows.append({"line": 4, "order": "A", "left out": "too heavy"})
    assert reason_lines(rows) == ["line 3, order A, x: too long (2 boxes)", "line 4, order A: too heavy"]


# -- texts ------------------------------------------------------------------------------------------------------------


def test_names_are_neither_formulas_nor_escapes(tmp_path: Path, sheets: list[list[str]]) -> None:
    # The first is no formula that could be parsed.
    for name in ("$\\frac{1$ inch", "$x^2$", "\\n\\x41 %s {0}", "<b>&amp;"):
        write_plan_pdf(tmp_path / "plan.pdf", summary_of(box_row(1, 1, (0, 0, 0), (1200, 800, 100), article=name)))
        assert sheets[-1].count(name) == 2
        assert num_pages(tmp_path / "plan.pdf") == 2


def test_long_names_are_cut_visibly() -> None:
    fonts = Fonts([])
    assert fonts.shorten("soap", 9, 50) == "soap"
    cut = fonts.shorten("W" * 100, 9, 50)
    assert re.fullmatch("W{5,30}…", cut)
    assert fonts.width(cut, 9) <= 50 < fonts.width(cut.replace("…", "W…"), 9)


def test_width_is_that_of_the_outlines() -> None:
    # In DejaVu Sans "A" is 1401 of 2048 units wide, and 72 points are 25.4 mm.
    assert Fonts([]).width("AA", 72) == pytest.approx(2 * 25.4 * 1401 / 2048)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("two\nlines\t and  spaces", "two lines and spaces"),
        ("bell\x07", f"bell{REPLACEMENT}"),
        ("\u200fright\u200d\ufe0f", "right"),
        ("half \ud800", f"half {REPLACEMENT}"),
    ],
)
def test_what_has_no_shape_is_taken_out_of_a_line(text: str, printed: str) -> None:
    fonts = Fonts([text])
    assert fonts.clean(text) == printed
    assert fonts.missing == ""


@pytest.mark.usefixtures("only_first_font")
def test_characters_that_no_font_has_are_told(tmp_path: Path, sheets: list[list[str]]) -> None:
    faults = write_plan_pdf(tmp_path / "plan.pdf", summary_of(box_row(1, 1, (0, 0, 0), (400, 300, 100), article="山x")))
    assert len(faults) == 1
    assert "no font of this computer has 山 (U+5C71)" in faults[0]
    assert "\n" not in faults[0]
    assert sheets[1].count(f"{REPLACEMENT}x") == 2
    assert any(text.startswith(REPLACEMENT) for text in sheets[0])


@pytest.mark.usefixtures("only_first_font")
def test_installed_font_is_found_for_what_the_first_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came after matplotlib made its list, with 山, 1.5 ems wide, and no 田."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((1000, 0))
    pen.lineTo((0, 1000))
    pen.closePath()
    builder = FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "mountain"])
    builder.setupCharacterMap({ord("山"): "mountain"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "mountain": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (500, 0), "mountain": (1500, 0)})
    builder.setupHorizontalHeader(ascent=1000, descent=0)
    builder.setupNameTable({"familyName": "Mountains of a test", "styleName": "Regular", "psName": "Mountains"})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(tmp_path / "mountains.ttf")
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"no font")
    installed = [str(broken), str(tmp_path / "mountains.ttf")]
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: installed)
    fonts = Fonts(["山田 soap"])
    assert fonts.families == [FIRST_FAMILY, "Mountains of a test"]
    assert fonts.missing == "田"
    assert fonts.width("山", 72) == pytest.approx(1.5 * 25.4)
    write_plan_pdf(tmp_path / "plan.pdf", summary_of(box_row(1, 1, (0, 0, 0), (400, 300, 100), article="山")))
    assert b"Mountains" in (tmp_path / "plan.pdf").read_bytes()


# -- without matplotlib -----------------------------------------------------------------------------------------------


def test_command_without_extras_writes_the_rest_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(HEADER + "A,soap,400,300,240,3,5\n", encoding="utf-8")
    out = tmp_path / "out"
    words = [str(path), "--out", str(out), "--device", "cpu"]
    command.main(words)
    assert "plan.csv, plan.xlsx, plan.json, plan.pdf and index.html" in capsys.readouterr().out
    assert 'href="plan.pdf"' in (out / "index.html").read_text(encoding="utf-8")
    for module in ("matplotlib", "openpyxl"):
        monkeypatch.setitem(sys.modules, module, None)
    command.main(words)
    shown = capsys.readouterr().out
    assert "not written: plan.xlsx (needs openpyxl) and plan.pdf (needs matplotlib)" in shown
    assert "lists,plots" in shown
    assert "Written:" in shown
    # Those of the first plan must not stand beside the second.
    names = {file.name for file in out.iterdir()}
    assert names == {"plan.csv", "plan.json", "index.html", "pallet-0001-A-1.html"}
    assert "plan.pdf" not in (out / "index.html").read_text(encoding="utf-8")


def test_fault_of_drawing_costs_only_the_pdf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_font(self: PdfPages, figure: Figure) -> None:
        raise RuntimeError("a font is broken")

    monkeypatch.setattr(PdfPages, "savefig", break_font)
    path = tmp_path / "orders.csv"
    path.write_text(HEADER + "A,soap,400,300,240,3,5\n", encoding="utf-8")
    told: list[str] = []
    pack(path, "eur", device="cpu").write(tmp_path / "out", told.append)
    assert told == ["plan.pdf is not written: a font is broken"]
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"plan.csv", "plan.json", "index.html", "pallet-0001-A-1.html"} <= names
    assert "plan.pdf" not in names
