"""`plan.pdf`: a cover with all pallets, then a sheet for each layer of each.

A stacker builds from them. The same plan gives the same bytes, by the same release of matplotlib in the same fonts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_pdf import PdfPages

from torchrl_gpu.palletizing.fonts import REPLACEMENT, Fonts
from torchrl_gpu.palletizing.page import PlanSummary
from torchrl_gpu.palletizing.sheet_drawing import COVER_ROWS, LayerStyle, Sheet, draw_cover, draw_layer
from torchrl_gpu.palletizing.sheets import LayerView, LoadedSheets, count_words, pallets_of, reason_lines, short

# Sheets of a file: they take about a minute.
MOST_SHEETS = 1000
# Lines about boxes that are left out.
_MOST_LEFT_OUT = 200
# Characters that a line on the terminal shows.
_MOST_CHARACTERS = 20

# Draws the sheet of a number, from 1, of so many.
_Drawing = Callable[[Sheet, int, int], None]


def write_plan_pdf(path: Path, summary: PlanSummary) -> list[str]:
    """Write the sheets of a plan.

    Args:
        path: Of the file.
        summary: The plan.

    Returns:
        A line for each thing that is not as it should be: characters that no font has, and sheets that are left out.
    """
    pallets = pallets_of(summary)
    left_out = reason_lines(summary["left_out"])
    fonts = Fonts(_texts(pallets, left_out))
    cover = _Cover(summary, pallets, left_out)
    num_sheets = cover.num_sheets + sum(pallet.layers for pallet in pallets)
    faults = []
    remarks = []
    if fonts.missing:
        faults.append(_missing_words(fonts.missing))
        remarks.append(f"{REPLACEMENT} stands for a character that no font of the computer had")
    if num_sheets > MOST_SHEETS:
        kept = f"the first {MOST_SHEETS:,} of {num_sheets:,} sheets"
        faults.append(f"plan.pdf holds {kept}; the other layers are in the pages of the pallets, see index.html")
        remarks.append(f"{kept}; the other layers are in the pages of the pallets, see index.html")
    drawings = chain(cover.drawings(remarks), _layer_drawings(summary, pallets))
    num_written = min(num_sheets, MOST_SHEETS)
    # A user's own style must not change the sheets.
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["font.family"] = fonts.families
        # Outlines of glyphs: the other type, 42, cannot hold the fonts that most Chinese and Japanese texts are in.
        mpl.rcParams["pdf.fonttype"] = 3
        # What would differ each time, and names of programs.
        without = dict.fromkeys(("Creator", "Producer", "CreationDate"))
        with PdfPages(path, metadata={"Title": "Pallets", **without}) as file:
            for number, draw in enumerate(islice(drawings, num_written), 1):
                sheet = Sheet(fonts)
                draw(sheet, number, num_written)
                file.savefig(sheet.figure)
    return faults


def _missing_words(missing: str) -> str:
    shown = ", ".join(f"{char} (U+{ord(char):04X})" for char in missing[:_MOST_CHARACTERS])
    more = "" if len(missing) <= _MOST_CHARACTERS else f" and {len(missing) - _MOST_CHARACTERS:,} more"
    return (
        f"plan.pdf: no font of this computer has {shown}{more}, for which {REPLACEMENT} stands: install one that has"
        " them, such as Noto Sans CJK for Chinese and Japanese"
    )


def _texts(pallets: Sequence[LoadedSheets], left_out: Sequence[str]) -> Iterator[str]:
    """Every text of the user's that is printed."""
    yield from left_out
    for pallet in pallets:
        yield pallet.order
        for box in pallet.boxes:
            yield box.name


def _layer_drawings(summary: PlanSummary, pallets: Sequence[LoadedSheets]) -> Iterator[_Drawing]:
    colors: dict[str, int] = {}
    for pallet in pallets:
        for box in pallet.boxes:
            colors.setdefault(box.name, len(colors))
    style = LayerStyle(summary["pallet"], summary["unit"], colors)
    for pallet in pallets:
        for view in pallet.views():
            yield _layer_drawing(pallet, view, style)


def _layer_drawing(pallet: LoadedSheets, view: LayerView, style: LayerStyle) -> _Drawing:
    def draw(sheet: Sheet, number: int, of: int) -> None:
        remark = draw_layer(sheet, pallet, view, style)
        sheet.foot(remark, number, of)

    return draw


class _Cover:
    """The cover: as many sheets as the pallets and the boxes that are left out take."""

    def __init__(self, summary: PlanSummary, pallets: Sequence[LoadedSheets], left_out: list[str]) -> None:
        self._summary = summary
        self._pallets = pallets
        self._rows = [self._row(pallet) for pallet in pallets]
        self._left_out = _bounded(left_out)

    @property
    def num_sheets(self) -> int:
        return max(1, math.ceil((len(self._rows) + len(self._left_out)) / COVER_ROWS))

    def drawings(self, remarks: Sequence[str]) -> Iterator[_Drawing]:
        """Drawings of the sheets, with remarks on what is missing on each."""
        unit = self._summary["unit"]
        about = [f"{count_words(self._summary, self._pallets)}; lengths in {unit}", *remarks]
        for first in range(0, self.num_sheets * COVER_ROWS, COVER_ROWS):
            rows = self._rows[first : first + COVER_ROWS]
            begin = max(0, first - len(self._rows))
            left_out = self._left_out[begin : max(0, first + COVER_ROWS - len(self._rows))]
            yield self._drawing(about, rows, left_out)

    def _drawing(self, about: Sequence[str], rows: Sequence[Sequence[str]], left_out: Sequence[str]) -> _Drawing:
        def draw(sheet: Sheet, number: int, of: int) -> None:
            draw_cover(sheet, about, rows, left_out)
            sheet.foot("", number, of)

        return draw

    def _row(self, pallet: LoadedSheets) -> list[str]:
        size = self._summary["pallet"]
        own_kg = float(str(size.get("own_weight_kg", 0)))
        own_height = float(str(size.get("own_height", 0)))
        x, y, up = pallet.centre_of_gravity()
        off = math.hypot(x - float(str(size["length"])) / 2, y - float(str(size["width"])) / 2)
        digits = {"m": 2, "mm": 0}.get(self._summary["unit"], 1)
        row = [f"{pallet.order}", f"{pallet.number} of {pallet.of}", str(pallet.layers), str(len(pallet.boxes))]
        row += [pallet.kg_words(0.0), pallet.kg_words(own_kg) if own_kg else "–"]
        row += [short(pallet.height), short(pallet.height + own_height) if own_height else "–"]
        row += [f"{off:.{digits}f}", f"{up:.{digits}f}"]
        if pallet.fallen is not None:
            row.append(pallet.standing_words())
        return row


def _bounded(left_out: Sequence[str]) -> list[str]:
    """Lines of the cover about what is left out, with their heading."""
    if not left_out:
        return []
    lines = ["", "Left out:", *left_out[:_MOST_LEFT_OUT]]
    if len(left_out) > _MOST_LEFT_OUT:
        lines.append(f"and {len(left_out) - _MOST_LEFT_OUT:,} more: see plan.csv")
    return lines
