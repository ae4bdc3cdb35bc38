"""Lists as warehouse systems write them, each with what a person reads in it.

A case is a file and either its boxes, as (number, millimetres, kilograms of one), or the words of the question that it
leaves open. Made up, by the habits of real systems; none is copied.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Box = tuple[int, tuple[float, float, float], float | None]


@dataclass(frozen=True)
class Case:
    """A list, and what is in it.

    Attributes:
        name: What is particular about it.
        content: The file, or a function that makes it.
        boxes: Its rows as a person reads them.
        asks: Words of the question that it leaves open, in place of boxes.
        doubts: Words of what is doubtful about it.
        orders: Names of its orders, where they matter.
        options: What the user says, fields of `ListOptions`.
        suffix: Of the file's name.
    """

    name: str
    content: bytes | Callable[[], bytes]
    boxes: Sequence[Box] = ()
    asks: str = ""
    doubts: str = ""
    orders: Sequence[str] = ()
    options: dict[str, str | bool] = field(default_factory=dict)
    suffix: str = ".csv"

    def make(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content()


CASES: list[Case] = []


def add(
    name: str,
    content: bytes | Callable[[], bytes],
    boxes: Sequence[Box] = (),
    *,
    asks: str = "",
    doubts: str = "",
    orders: Sequence[str] = (),
    options: dict[str, str | bool] | None = None,
    suffix: str = ".csv",
) -> None:
    """Add a case, see `Case`."""
    CASES.append(Case(name, content, boxes, asks, doubts, orders, options or {}, suffix))


def csv(*lines: str, encoding: str = "utf-8", end: str = "\n") -> bytes:
    return (end.join(lines) + end).encode(encoding)


USUAL: Box = (2, (400, 300, 200), 5.0)
LARGE: Box = (3, (1200, 800, 600), 12.5)
NO_WEIGHT: Box = (2, (400, 300, 200), None)


def excel(
    rows: Sequence[Sequence[object]],
    *,
    before: Sequence[Sequence[object]] | None = None,
    hidden: Sequence[int] = (),
    merged: Sequence[str] = (),
    formats: dict[str, str] | None = None,
    active: int | None = None,
    hide_sheet: bool = False,
    hidden_columns: str = "",
    struck: Sequence[int] = (),
) -> Callable[[], bytes]:
    """Make an .xlsx file, with a sheet `before` the one of the rows."""

    def make() -> bytes:
        import openpyxl

        book = openpyxl.Workbook()
        sheet = book.active
        sheet.title = "Boxes"
        for row in rows:
            sheet.append(list(row))
        for line in hidden:
            sheet.row_dimensions[line].hidden = True
        for cells in merged:
            sheet.merge_cells(cells)
        for cell, number_format in (formats or {}).items():
            sheet[cell].number_format = number_format
        for letter in hidden_columns:
            sheet.column_dimensions[letter].hidden = True
        for line in struck:
            for each in sheet[line]:
                each.font = openpyxl.styles.Font(strike=True)
        if before is not None:
            first = book.create_sheet("Cover", 0)
            for row in before:
                first.append(list(row))
            first.sheet_state = "hidden" if hide_sheet else "visible"
        book.active = len(book.worksheets) - 1 if active is None else active
        out = io.BytesIO()
        book.save(out)
        return out.getvalue()

    return make


# A workbook of Excel 97 with a hidden cover sheet and a merged cell of orders, made by xlwt and compressed by zlib.
_XLS = (
    "eNrtWEtoFEEQfT07s7/8dmMSSISwBI0acwkKeolrVjQeNMSARETQrBli2CQTJ+snXozGPQqCJ8VLIBcv8XPwgx/05kGI6EEQhI3iyZOg4CHZ"
    "sbpmZvNxD7ugwci8oau7qqure7qrq3vmzWw0O3WvYQ4rsAs+5KwQ/EtkglLIZSKgesuSRTcPUrI8rCmEgrSQfg1PKl4H5BrK9Z6DgrvqS6LA"
    "J0rHMIouY0SPrSISPIY+IcfQLlTyPQW3KFWinsdVzfQk03VM77DuU6a7WXKVaTvpZsVRzMa7WnY6fnxEaeK6SqICD7nNB5a0oRavpB9fvCZs"
    "XQ0d5mDf0L9Z0aiWYxq0cp36iG72DWVRQ0s4jR9WDPju7tUXMU++unIBkv9cLg8UkF9XVGAC1gkhHTGDCpSr9vLuMc7qphQkNamqIWGc18fm"
    "cRhlxJbZW7VHHzXMNCkYZr9u+oCx1BlqfyA2PExZr53tp4yqTqfHKXif0wcHTqVjqQHyow5KCVLYvqOtLSxjO8eCyLJYUME7pJxoP6q4HOV9"
    "EqFoP3/729uDye74cZZMcPy3T4mN8rVg4ZJsQY0r8zU2beEWW5leZqvrudzAtIbelvLm7lqnsG+Sda5wbTP1s43xLr5pSXkzlTNfDz1qzHyO"
    "b6HyTOfchZqZ9/EpNNGp1U/t5TOJVtEqbt6QeBx3c+HEk49M63+LLUEl4ozdco7CKiwgzMWofV4q1XggVSn2LGI1ZtXHNLCGZzVQcFblG9uc"
    "Ozs2pxDny3M+4tQ8pxKn5TmNOH+e8xMXcHoVBXoV3GvY0Rfcq5z7Z9jAp08UCb/UuK9K2uRztaOoY+vSrrLC7nOyoDg+Iq3aKx1yrCpFWP3i"
    "jEVZ9DIU8jIPHjx48ODBg4diIfhGZd8iVb4z2TfUgPNfZ4FSzvtN8t+iBwY9afos3YsRyk2Ml+Q/ddCEa0sU2cb9XyjRS72bSCHJ40iV7L/0"
    "hSGWvk/RDSN/bguV2n+ulHH+5f5/ARR4CKk="
)


_ODS_MANIFEST = (
    '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0">'
    '<manifest:file-entry manifest:full-path="/" manifest:media-type="application/vnd.oasis.opendocument.spreadsheet"/>'
    "</manifest:manifest>"
)


def ods(rows: Sequence[Sequence[object]]) -> Callable[[], bytes]:
    """Make an .ods file, as LibreOffice writes it."""

    def make() -> bytes:
        content = "".join(f"<table:table-row>{''.join(map(_ods_cell, row))}</table:table-row>" for row in rows)
        names = " ".join(
            f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text")
        )
        body = f'<table:table table:name="Boxes">{content}</table:table>'
        document = f"<office:document-content {names}><office:body><office:spreadsheet>{body}"
        document += "</office:spreadsheet></office:body></office:document-content>"
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
            archive.writestr("META-INF/manifest.xml", _ODS_MANIFEST)
            archive.writestr("content.xml", f'<?xml version="1.0" encoding="UTF-8"?>{document}')
        return out.getvalue()

    return make


def _ods_cell(value: object) -> str:
    if value is None:
        return "<table:table-cell/>"
    if isinstance(value, str):
        return f'<table:table-cell office:value-type="string"><text:p>{value}</text:p></table:table-cell>'
    return f'<table:table-cell office:value-type="float" office:value="{value}"/>'


# -- numbers -------------------------------------------------------------------------------------------------------

add(
    "decimal comma and thousands",
    csv("Artikel;Länge (mm);Breite (mm);Höhe (mm);Menge;Gewicht kg", "A;1.200;800;600;3;12,5"),
    [LARGE],
)
add(
    "thousands with decimals",
    csv("sku;length mm;width mm;height mm;qty;weight kg", "A;1.200,000;800,000;600,000;3;12,500"),
    [LARGE],
)
add(
    "decimal point and thousands",
    csv("sku,length mm,width mm,height mm,qty,weight kg", 'A,"1,200.0",800,600,3,12.5'),
    [LARGE],
)
add("apostrophes", csv("Artikel;Länge mm;Breite mm;Höhe mm;Menge;Gewicht kg", "A;1'200;800;600;3;12.5"), [LARGE])
add(
    "typographic apostrophes",
    csv("Artikel;Länge mm;Breite mm;Höhe mm;Menge;Gewicht kg", "A;1’200;800;600;3;12.5"),
    [LARGE],
)
add("blanks", csv("réf;longueur mm;largeur mm;hauteur mm;qté;poids kg", "A;1 200;800;600;3;12,5"), [LARGE])
add("hard blanks", csv("réf;longueur mm;largeur mm;hauteur mm;qté;poids kg", "A;1\u00a0200;800;600;3;12,5"), [LARGE])
add(
    "narrow blanks",
    csv("réf;longueur mm;largeur mm;hauteur mm;qté;poids kg", "A;1\u202f200;800;600;3;12,5"),
    [LARGE],
)
add(
    "leading zero",
    csv("sku,length m,width m,height m,qty,weight kg", 'A,"0,400","0,300","0,200",2,"5,000"'),
    [USUAL],
)
add(
    "weight that reads two ways",
    csv("sku;length cm;width cm;height cm;qty;weight", "A;40;30;20;2;5.000"),
    asks="decimal",
)
add(
    "weight that reads two ways, with a word",
    csv("sku;length cm;width cm;height cm;qty;weight", "A;40;30;20;2;5.000"),
    [USUAL],
    options={"decimal": "."},
)
add(
    "thousands alone in millimetres",
    csv("sku;length mm;width mm;height mm;qty", "A;1.200;800;600;3"),
    [(3, (1200, 800, 600), None)],
)
add(
    "price says the country",
    csv(
        "sku;length cm;width cm;height cm;qty;weight kg;Preis",
        "A;40;30;20;2;5,000;3,50",
        "B;40;30;20;2;5,000;12,99",
    ),
    [USUAL, USUAL],
)
add(
    "text cells of a workbook",
    excel(
        [
            ["sku", "length m", "width m", "height m", "qty", "weight kg"],
            ["A", "0,400", "0,300", "0,200", 2, "5,000"],
        ]
    ),
    [USUAL],
    suffix=".xlsx",
)
add(
    "full-width digits",
    csv("商品コード,数量,縦(mm),横(mm),高さ(mm),重量(kg)", "A,２,４００,３００,２００,５"),
    [USUAL],
)
add(
    "both signs in one list",
    csv("sku;length cm;width cm;height cm;qty;weight kg", "A;40,0;30;20;2;5", "B;40.0;30;20;2;5"),
    [USUAL, USUAL],
    doubts="decimal",
)
add(
    "quantities of three decimals",
    csv("Material;Menge;Länge mm;Breite mm;Höhe mm;Gewicht", "A;2,000;400;300;200;5,0"),
    [USUAL],
)
add(
    "numbers between quotes",
    csv('"sku","length_mm","width_mm","height_mm","qty","weight_kg"', '"A","400","300","200","2","5.0"'),
    [USUAL],
)


# -- units ---------------------------------------------------------------------------------------------------------

add(
    "pounds in brackets",
    csv("sku,length (in),width (in),height (in),qty,weight (lb.)", "A,10,20,30,2,11"),
    [(2, (254, 508, 762), 4.98951607)],
)
add(
    "ounces",
    csv("sku,length (in),width (in),height (in),qty,weight (oz.)", "A,10,20,30,2,160"),
    [(2, (254, 508, 762), 4.5359237)],
)
add(
    "a header of pounds alone",
    csv("sku,length (in),width (in),height (in),qty,Pounds", "A,10,20,30,2,10"),
    [(2, (254, 508, 762), 4.5359237)],
)
add(
    "inch signs in headers",
    csv('sku,Length ("),Width ("),Height ("),Qty', "A,10,20,30,2")
    .replace(b'Length (")', b'"Length ("")"')
    .replace(b'Width (")', b'"Width ("")"')
    .replace(b'Height (")', b'"Height ("")"'),
    [(2, (254, 508, 762), None)],
)
add(
    "a column of weight units",
    csv(
        "Artikel;Länge mm;Breite mm;Höhe mm;Menge;Gewicht;Gewichtseinheit",
        "A;400;300;200;2;5000;G",
        "B;400;300;200;2;5;KG",
    ),
    [USUAL, USUAL],
)
add(
    "mm and cm by row",
    csv("sku,length,width,height,unit,qty,weight kg", "A,400,300,200,mm,2,5", "B,40,30,20,cm,2,5"),
    [USUAL, USUAL],
)
add("a row of units", csv("Item,L,W,H,Qty,Weight", ",mm,mm,mm,pcs,kg", "A,400,300,200,2,5"), [USUAL])
add(
    "a row of units in brackets",
    csv("Item,L,W,H,Qty,Weight", ",(cm),(cm),(cm),,(lb)", "A,40,30,20,2,10"),
    [(2, (400, 300, 200), 4.5359237)],
)
add(
    "units in cells",
    csv("sku,length,width,height,qty,weight", "A,400 mm,300 mm,200 mm,2 pcs,5 kg", "B,40cm,30cm,20cm,2,5000 g"),
    [USUAL, USUAL],
)
add(
    "inches in cells",
    csv("sku,length,width,height,qty,weight", "A,15.75in,12in,8in,2,11 lb"),
    [(2, (400.05, 304.8, 203.2), 4.98951607)],
)
add(
    "fractions of inches",
    csv("sku,length in,width in,height in,qty", "A,15 3/4,12 1/2,8,2"),
    [(2, (400.05, 317.5, 203.2), None)],
)
add(
    "fractions with inch signs",
    csv("sku,length,width,height,qty", 'A,15 3/4",12",8",2'),
    [(2, (400.05, 304.8, 203.2), None)],
)
add(
    "vulgar fractions",
    csv("sku,length in,width in,height in,qty", "A,15¾,12½,8,2"),
    [(2, (400.05, 317.5, 203.2), None)],
)
add(
    "centimetres and inches side by side",
    csv("sku,length cm,width cm,height cm,length in,width in,height in,qty", "A,40,30,20,15.75,11.81,7.87,2"),
    [NO_WEIGHT],
)
add(
    "inches and centimetres side by side",
    csv("sku,length in,length cm,width in,width cm,height in,height cm,qty", "A,10,25.4,20,50.8,30,76.2,2"),
    [(2, (254, 508, 762), None)],
)
add(
    "kg and lb side by side",
    csv("sku,length mm,width mm,height mm,qty,weight lb,weight kg", "A,400,300,200,2,11.02,7"),
    asks="",
    doubts="weight",
)
add(
    "the same weight in kg and lb",
    csv("sku,length mm,width mm,height mm,qty,weight kg,weight lb", "A,400,300,200,2,5,11.02"),
    [USUAL],
)
add(
    "a unit of weight that nobody knows",
    csv("sku,length mm,width mm,height mm,qty,weight (stone)", "A,400,300,200,2,1"),
    asks="weight.unit",
)
add(
    "a unit of weight that nobody knows, in cells",
    csv("sku,length mm,width mm,height mm,qty,weight", "A,400,300,200,2,1 stone"),
    asks="line 2.*stone",
)
add("no unit at all", csv("sku,length,width,height,qty", "A,400,300,200,2"), asks="unit")
add("no unit, given", csv("sku,length,width,height,qty", "A,40,30,20,2"), [NO_WEIGHT], options={"unit": "cm"})
add(
    "grams without a word",
    csv("sku,length mm,width mm,height mm,qty,weight", "A,400,300,200,2,5000"),
    [(2, (400, 300, 200), 5000.0)],
    doubts="5000 kg",
)
add("metres", csv("sku;Länge (m);Breite (m);Höhe (m);Menge;Gewicht (t)", "A;0,4;0,3;0,2;2;0,005"), [USUAL])
add(
    "unit words",
    csv("sku,length millimeters,width millimeters,height millimeters,qty,weight kilograms", "A,400,300,200,2,5"),
    [USUAL],
)
add(
    "unit with a preposition",
    csv("Artikel;Länge in cm;Breite in cm;Höhe in cm;Menge;Gewicht in kg", "A;40;30;20;2;5"),
    [USUAL],
)
add("a unit for one side alone", csv("sku,L (cm),W,H,qty", "A,40,30,20,2"), [NO_WEIGHT])


# -- headers -------------------------------------------------------------------------------------------------------

add("English", csv("Item,Length mm,Width mm,Height mm,Quantity,Gross weight kg", "A,400,300,200,2,5"), [USUAL])
add(
    "German",
    csv("Artikelnummer;Länge [mm];Breite [mm];Höhe [mm];Anzahl;Bruttogewicht [kg]", "A;400;300;200;2;5"),
    [USUAL],
)
add(
    "German without umlauts",
    csv("ARTNR;LAENGE_MM;BREITE_MM;HOEHE_MM;STUECK;GEWICHT_KG", "A;400;300;200;2;5"),
    [USUAL],
)
add(
    "French",
    csv("Référence;Longueur (mm);Largeur (mm);Hauteur (mm);Quantité;Poids brut (kg)", "A;400;300;200;2;5"),
    [USUAL],
)
add(
    "Spanish",
    csv("Artículo;Largo (mm);Ancho (mm);Alto (mm);Cantidad;Peso bruto (kg)", "A;400;300;200;2;5"),
    [USUAL],
)
add(
    "Italian",
    csv("Articolo;Lunghezza (mm);Larghezza (mm);Altezza (mm);Quantità;Peso lordo (kg)", "A;400;300;200;2;5"),
    [USUAL],
)
add(
    "Portuguese",
    csv("Artigo;Comprimento (mm);Largura (mm);Altura (mm);Quantidade;Peso bruto (kg)", "A;400;300;200;2;5"),
    [USUAL],
)
add("Dutch", csv("Artikel;Lengte (mm);Breedte (mm);Hoogte (mm);Aantal;Gewicht (kg)", "A;400;300;200;2;5"), [USUAL])
add(
    "Polish",
    csv("Indeks;Długość (mm);Szerokość (mm);Wysokość (mm);Ilość;Waga brutto (kg)", "A;400;300;200;2;5"),
    [USUAL],
)
add("Czech", csv("Kód;Délka (mm);Šířka (mm);Výška (mm);Množství;Hmotnost (kg)", "A;400;300;200;2;5"), [USUAL])
add("Russian", csv("Артикул;Длина, мм;Ширина, мм;Высота, мм;Кол-во;Вес, кг", "A;400;300;200;2;5"), [USUAL])
add("Japanese", csv("品番,長さ(mm),幅(mm),高さ(mm),数量,重量(kg)", "A,400,300,200,2,5"), [USUAL])
add("Chinese", csv("货号,长(mm),宽(mm),高(mm),箱数,毛重(kg)", "A,400,300,200,2,5"), [USUAL])
add("camel case", csv("itemId,lengthMm,widthMm,heightMm,orderedQty,grossWeightKg", "A,400,300,200,2,5"), [USUAL])
add("camel case with initials", csv("SKUCode,LengthMM,WidthMM,HeightMM,Qty,WeightKG", "A,400,300,200,2,5"), [USUAL])
add("depth for length", csv("sku,Width cm,Depth cm,Height cm,qty", "A,30,40,20,2"), [NO_WEIGHT])
add("depth for height", csv("sku,Length cm,Width cm,Depth cm,qty", "A,40,30,20,2"), [NO_WEIGHT])
add("Tiefe", csv("Artikel;Breite cm;Tiefe cm;Höhe cm;Menge", "A;30;40;20;2"), [NO_WEIGHT])
add("letters", csv("sku,L,W,H,qty", "A,400,300,200,2"), [NO_WEIGHT], options={"unit": "mm"})
add("letters of a French list", csv("réf;L;l;h;qté", "A;400;300;200;2"), [NO_WEIGHT], options={"unit": "mm"})
add("numbered dimensions", csv("sku,dim 1,dim 2,dim 3,qty", "A,400,300,200,2"), [NO_WEIGHT], options={"unit": "mm"})
add("all in one cell", csv("sku,Dimensions (mm),qty,weight kg", "A,400x300x200,2,5"), [USUAL])
add("all in one cell, with blanks", csv("sku,Size,qty,weight kg", "A,400 x 300 x 200 mm,2,5"), [USUAL])
add("all in one cell, with letters", csv("sku,Size mm,qty,weight kg", "A,L400 W300 H200,2,5"), [USUAL])
add("all in one cell, with stars", csv("货号,外箱尺寸(cm),箱数,毛重(kg)", "A,40*30*20,2,5"), [USUAL])
add("all in one cell, with a cross", csv("Artikel;Maße (LxBxH) cm;Menge;Gewicht kg", "A;40 × 30 × 20;2;5"), [USUAL])
add("all in one cell, width first", csv("Artikel;BxTxH cm;Menge;Gewicht kg", "A;30x40x20;2;5"), [USUAL])
add(
    "all in one cell, decimal commas",
    csv("Artikel;Abmessungen cm;Menge;Gewicht kg", "A;40,0x30,0x20,0;2;5"),
    [USUAL],
)
add("another language", csv("vara;pituus mm;leveys mm;korkeus mm;kpl", "A;400;300;200;2"), asks="length")
add(
    "another language, named",
    csv("vara;pituus mm;leveys mm;korkeus mm;kpl", "A;400;300;200;2"),
    [NO_WEIGHT],
    options={"columns": "length=pituus mm,width=leveys mm,height=korkeus mm,quantity=kpl"},
)
add("no header", csv("A;400;300;200;2"), asks="column")
add(
    "no header, numbered",
    csv("A;400;300;200;2"),
    [NO_WEIGHT],
    options={"unit": "mm", "columns": "length=2,width=3,height=4,quantity=5"},
)
add(
    "two rows of headers",
    csv("Item,Carton,,,Qty,Weight", ",L (mm),W (mm),H (mm),,kg", "A,400,300,200,2,5"),
    [USUAL],
)


# -- which of several ----------------------------------------------------------------------------------------------

add(
    "gross and net weight",
    csv("sku,length mm,width mm,height mm,qty,net weight kg,gross weight kg", "A,400,300,200,2,4,5"),
    [USUAL],
)
add(
    "net weight first in German",
    csv("Artikel;Länge mm;Breite mm;Höhe mm;Menge;Nettogewicht kg;Bruttogewicht kg", "A;400;300;200;2;4;5"),
    [USUAL],
)
add(
    "weight of one and of the line",
    csv("sku,length mm,width mm,height mm,qty,total weight kg,unit weight kg", "A,400,300,200,2,10,5"),
    [USUAL],
)
add(
    "weight of the line alone",
    csv("sku,length mm,width mm,height mm,qty,Total weight (kg)", "A,400,300,200,2,10"),
    [USUAL],
)
add("Gesamtgewicht", csv("Artikel;Länge mm;Breite mm;Höhe mm;Menge;Gesamtgewicht kg", "A;400;300;200;2;10"), [USUAL])
add(
    "carton and item",
    csv(
        "sku,Item Length mm,Item Width mm,Item Height mm,Item Weight kg,"
        "Carton Length mm,Carton Width mm,Carton Height mm,Carton Weight kg,Cartons",
        "A,100,90,80,0.2,400,300,200,5,2",
    ),
    [USUAL],
)
add(
    "outer and inner",
    csv(
        "sku,Inner L mm,Inner W mm,Inner H mm,Outer L mm,Outer W mm,Outer H mm,qty,weight kg",
        "A,390,290,190,400,300,200,2,5",
    ),
    [USUAL],
)
add(
    "cartons and pieces",
    csv("sku,L mm,W mm,H mm,Total pcs,Qty/CTN,CTNS,G.W. (KGS),N.W. (KGS)", "A,400,300,200,48,24,2,5,4"),
    [USUAL],
)
add(
    "pieces and what a carton holds",
    csv("sku,L mm,W mm,H mm,Qty,Qty per carton,weight kg", "A,400,300,200,48,24,5"),
    asks="counts",
)
add(
    "pieces and what a carton holds, said",
    csv("sku,L mm,W mm,H mm,Qty,Qty per carton,weight kg", "A,400,300,200,48,24,5"),
    [USUAL],
    options={"counts": "pieces"},
)
add(
    "pack quantity alone",
    csv("sku,L mm,W mm,H mm,Pack Qty,weight kg", "A,400,300,200,24,5"),
    [(1, (400, 300, 200), 5.0)],
    doubts="",
)
add("most weight is none", csv("sku,L mm,W mm,H mm,qty,Max weight kg", "A,400,300,200,2,30"), [NO_WEIGHT])
add(
    "capacity is no load on top",
    csv("sku,L mm,W mm,H mm,qty,weight kg,Max load capacity kg", "A,400,300,200,2,5,30"),
    [USUAL],
)
add(
    "a quantity that is not known",
    csv("sku,L mm,W mm,H mm,Bunnies,weight kg", "A,400,300,200,2,5", "B,400,300,200,7,5"),
    asks="",
    doubts="Bunnies",
)
add(
    "row numbers are no quantity",
    csv("Pos,sku,L mm,W mm,H mm,weight kg", "1,A,400,300,200,5", "2,B,400,300,200,5"),
    [(1, (400, 300, 200), 5.0)] * 2,
)
add(
    "ordered and shipped",
    csv("sku,L mm,W mm,H mm,Qty ordered,Qty shipped,weight kg", "A,400,300,200,5,2,5"),
    [USUAL],
)
add(
    "two quantities",
    csv("sku,L mm,W mm,H mm,Qty A,Qty B,weight kg", "A,400,300,200,5,2,5"),
    asks="",
    doubts="quantity",
)
add("volume weight", csv("sku,L mm,W mm,H mm,qty,Dim weight kg,Weight kg", "A,400,300,200,2,4.8,5"), [USUAL])
add(
    "pallet sides",
    csv(
        "sku,Pallet length mm,Pallet width mm,Pallet height mm,length mm,width mm,height mm,qty,weight kg",
        "A,1200,800,1500,400,300,200,2,5",
    ),
    [USUAL],
)
add("stock is no quantity", csv("sku,L mm,W mm,H mm,Stock qty,Order qty,weight kg", "A,400,300,200,99,2,5"), [USUAL])


# -- where the table stands ----------------------------------------------------------------------------------------

add(
    "a title above the header",
    csv(
        "Packing list 4711,,,,,",
        "Customer: Somebody,,,,,",
        "",
        "sku,L mm,W mm,H mm,qty,weight kg",
        "A,400,300,200,2,5",
    ),
    [USUAL],
)
add("a total at the end", csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", "Total,,,,2,10"), [USUAL])
add(
    "a total and a remark",
    csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", ",,,,,", "Summe,,,,2,10", "printed on Monday"),
    [USUAL],
)
add(
    "empty rows",
    csv("sku,L mm,W mm,H mm,qty,weight kg", "", "A,400,300,200,2,5", ",,,,,", "B,400,300,200,2,5"),
    [USUAL, USUAL],
)
add(
    "an order written once",
    csv(
        "order,sku,L mm,W mm,H mm,qty,weight kg",
        "4711,A,400,300,200,2,5",
        ",B,400,300,200,2,5",
        "4712,C,400,300,200,2,5",
    ),
    [USUAL] * 3,
    orders=["4711", "4712"],
)
_MERGED_ORDERS = [
    ["order", "sku", "L mm", "W mm", "H mm", "qty", "weight kg"],
    ["4711", "A", 400, 300, 200, 2, 5],
    [None, "B", 400, 300, 200, 2, 5],
    ["4712", "C", 400, 300, 200, 2, 5],
]
add(
    "merged orders",
    excel(_MERGED_ORDERS, merged=["A2:A3"]),
    [USUAL] * 3,
    orders=["4711", "4712"],
    suffix=".xlsx",
)
add(
    "a cover sheet",
    excel(
        [["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], ["A", 400, 300, 200, 2, 5]],
        before=[["Report"], ["printed", "on Monday"]],
        active=0,
    ),
    [USUAL],
    suffix=".xlsx",
)
add(
    "the active sheet",
    excel(
        [["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], ["A", 400, 300, 200, 2, 5]],
        before=[["sku", "L mm", "W mm", "H mm", "qty"], ["old", 1000, 1000, 1000, 9]],
    ),
    [USUAL],
    doubts="Cover",
    suffix=".xlsx",
)
add(
    "a hidden sheet",
    excel(
        [["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], ["A", 400, 300, 200, 2, 5]],
        before=[["sku", "L mm", "W mm", "H mm", "qty"], ["old", 1000, 1000, 1000, 9]],
        hide_sheet=True,
    ),
    [USUAL],
    suffix=".xlsx",
)
add(
    "hidden rows",
    excel(
        [
            ["sku", "L mm", "W mm", "H mm", "qty", "weight kg"],
            ["A", 400, 300, 200, 2, 5],
            ["B", 500, 300, 200, 2, 5],
        ],
        hidden=[3],
    ),
    [USUAL],
    doubts="hidden",
    suffix=".xlsx",
)
add(
    "hidden rows that are wanted",
    excel(
        [
            ["sku", "L mm", "W mm", "H mm", "qty", "weight kg"],
            ["A", 400, 300, 200, 2, 5],
            ["B", 400, 300, 200, 2, 5],
        ],
        hidden=[3],
    ),
    [USUAL, USUAL],
    options={"hidden": True},
    suffix=".xlsx",
)
add(
    "a title over merged cells",
    excel(
        [
            ["Packing list", None, None, None, None, None],
            ["sku", "L mm", "W mm", "H mm", "qty", "weight kg"],
            ["A", 400, 300, 200, 2, 5],
        ],
        merged=["A1:F1"],
    ),
    [USUAL],
    suffix=".xlsx",
)
add(
    "a date in place of an article",
    excel([["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], [datetime.datetime(2026, 3, 1), 400, 300, 200, 2, 5]]),
    [USUAL],
    doubts="date",
    suffix=".xlsx",
)


# -- files ---------------------------------------------------------------------------------------------------------

add("tabs", csv("sku\tL mm\tW mm\tH mm\tqty\tweight kg", "A\t400\t300\t200\t2\t5"), [USUAL], suffix=".tsv")
add("bars", csv("sku|L mm|W mm|H mm|qty|weight kg", "A|400|300|200|2|5"), [USUAL], suffix=".txt")
add(
    "columns of blanks",
    csv("sku     length_mm  width_mm  height_mm  qty  weight_kg", "A       400        300       200        2    5"),
    [USUAL],
    suffix=".txt",
)
add("Excel's word for the delimiter", csv("sep=;", "sku;L mm;W mm;H mm;qty;weight kg", "A;400;300;200;2;5"), [USUAL])
add(
    "commas in quoted cells",
    csv("sku;L mm;W mm;H mm;qty;weight kg", '"bolt, long, red, new, cheap";400;300;200;2;5'),
    [USUAL],
)
add(
    "Windows-1252",
    csv("Artikel;Länge mm;Breite mm;Höhe mm;Stück;Gewicht kg", "A;400;300;200;2;5", encoding="cp1252"),
    [USUAL],
)
add(
    "Windows-1250",
    csv("Kód;Délka mm;Šířka mm;Výška mm;Množství;Hmotnost kg", "A;400;300;200;2;5", encoding="cp1250"),
    [USUAL],
)
add(
    "Windows-1251",
    csv("Артикул;Длина мм;Ширина мм;Высота мм;Кол-во;Вес кг", "A;400;300;200;2;5", encoding="cp1251"),
    [USUAL],
)
add(
    "Shift-JIS",
    csv("商品コード,長さ(mm),幅(mm),高さ(mm),数量,重量(kg)", "A,400,300,200,2,5", encoding="cp932"),
    [USUAL],
)
add(
    "GB18030",
    csv("货号,长度(mm),宽度(mm),高度(mm),数量,重量(kg)", "A,400,300,200,2,5", encoding="gb18030"),
    [USUAL],
)
add("UTF-8 with a mark", csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", encoding="utf-8-sig"), [USUAL])
add(
    "UTF-16 with a mark",
    csv("sku\tL mm\tW mm\tH mm\tqty\tweight kg", "A\t400\t300\t200\t2\t5", encoding="utf-16"),
    [USUAL],
)
add(
    "UTF-16 without a mark",
    csv("sku\tL mm\tW mm\tH mm\tqty\tweight kg", "A\t400\t300\t200\t2\t5", encoding="utf-16-le"),
    [USUAL],
)
add(
    "UTF-16 of the other order",
    csv("sku\tL mm\tW mm\tH mm\tqty\tweight kg", "A\t400\t300\t200\t2\t5", encoding="utf-16-be"),
    [USUAL],
)
add("carriage returns alone", csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", end="\r"), [USUAL])
add(
    "a workbook called .csv",
    excel([["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], ["A", 400, 300, 200, 2, 5]]),
    [USUAL],
)
add(
    "records of JSON",
    json.dumps([{"sku": "A", "length_mm": 400, "width_mm": 300, "height_mm": 200, "qty": 2, "weight_kg": 5}]).encode(),
    [USUAL],
    suffix=".json",
)
add(
    "nested records",
    json.dumps(
        {
            "items": [
                {
                    "sku": "A",
                    "dimensions": {"length": 40, "width": 30, "height": 20, "unit": "cm"},
                    "quantity": 2,
                    "weight": {"value": 5, "unit": "kg"},
                }
            ]
        }
    ).encode(),
    [USUAL],
    suffix=".json",
)
add(
    "orders of JSON",
    json.dumps(
        {
            "orders": [
                {
                    "id": "7",
                    "items": [
                        {"sku": "A", "length_mm": 400, "width_mm": 300, "height_mm": 200, "qty": 2, "weight_kg": 5}
                    ],
                }
            ]
        }
    ).encode(),
    [USUAL],
    orders=["7"],
    suffix=".json",
)
add(
    "a workbook of LibreOffice",
    ods([["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], ["A", 400, 300, 200, 2, 5]]),
    [USUAL],
    suffix=".ods",
)
add("an old workbook", zlib.decompress(base64.b64decode(_XLS)), [USUAL, USUAL], orders=["4711"], suffix=".xls")
add(
    "a record a line",
    b'{"sku": "A", "length_mm": 400, "width_mm": 300, "height_mm": 200, "qty": 2, "weight_kg": 5}\n' * 2,
    [USUAL, USUAL],
    suffix=".jsonl",
)
add(
    "bins and items",
    json.dumps(
        {
            "bins": [{"w": 1200, "h": 1500, "d": 800}],
            "items": [{"id": "A", "w": 300, "h": 200, "d": 400, "q": 2, "wg": 5}],
        }
    ).encode(),
    [NO_WEIGHT],
    options={"unit": "mm"},
    suffix=".json",
)
add(
    "the OR-Library",
    b" 1\n 1 2502505\n 587 233 220\n 2\n 1 40 0 30 0 20 1 2\n 2 40 1 30 0 20 1 2\n",
    [NO_WEIGHT, NO_WEIGHT],
    options={"unit": "cm"},
    suffix=".txt",
)
add(
    "three numbers a line",
    b"400 300 200\n400 300 200\n",
    [(1, (400, 300, 200), None)] * 2,
    options={"unit": "mm"},
    suffix=".txt",
)


# -- traps -------------------------------------------------------------------------------------------------------

add(
    "a decimal comma between commas",
    csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,12,5"),
    asks="line 2.*7 cells",
)
add(
    "an empty cell between blanks",
    csv("sku  length_mm  width_mm  height_mm  qty  weight_kg", "A    400        300       200        5"),
    asks="line 2.*5 cells",
    suffix=".txt",
)
add(
    "cartons that are numbered",
    csv("Carton,L mm,W mm,H mm", "1,400,300,200", "2,400,300,200"),
    [(1, (400, 300, 200), None)] * 2,
)
add(
    "carton numbers",
    csv("Carton No.,L mm,W mm,H mm", "7,400,300,200", "9,400,300,200"),
    [(1, (400, 300, 200), None)] * 2,
)
add("number of cartons", csv("sku,No. of cartons,L mm,W mm,H mm", "A,2,400,300,200"), [NO_WEIGHT])
add(
    "months and versions say no country",
    csv("sku;month;version;L cm;W cm;H cm;qty;weight", "A;03.2026;1.25;40;30;20;2;5,000"),
    asks="decimal",
)
add(
    "a unit above the header",
    csv("All dimensions in mm; weights in lb", "sku;L;W;H;qty;weight", "A;400;300;200;2;10"),
    [(2, (400, 300, 200), 4.5359237)],
)
add(
    "a unit of pieces",
    csv("Artikel;Menge;ME;Länge mm;Breite mm;Höhe mm;Gewicht kg", "A;2;ST;400;300;200;5"),
    [USUAL],
)
add(
    "a unit that the header contradicts",
    csv("sku,length mm,width mm,height mm,unit,qty,weight kg", "A,400,300,200,cm,2,5"),
    [USUAL],
    doubts="cm.*mm",
)
add(
    "the weight of what is in a carton",
    csv("sku,Carton L mm,Carton W mm,Carton H mm,Item weight kg,Cartons", "A,400,300,200,0.5,2"),
    [(2, (400, 300, 200), 0.5)],
    doubts="Item weight",
)
add("formulas that keep zeros", csv("sku,L mm,W mm,H mm,qty,weight kg", '="00123",="400",300,200,2,5'), [USUAL])
add(
    "units in the format of a cell",
    excel(
        [["sku", "L", "W", "H", "qty", "weight"], ["A", 40, 30, 20, 2, 5]],
        formats={"B2": '0" cm"', "C2": '0" cm"', "D2": '0" cm"', "F2": '0.0" kg"'},
    ),
    [USUAL],
    suffix=".xlsx",
)
add("a last row without sides", csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", "B,,,,7,5"), asks="line 3")
add(
    "the header on every page",
    csv(
        "sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", "sku,L mm,W mm,H mm,qty,weight kg", "B,400,300,200,2,5"
    ),
    [USUAL, USUAL],
)
add("an article called Total", csv("sku,L mm,W mm,H mm,qty,weight kg", "Total Cleaner,400,300,200,2,5"), [USUAL])
add("metres in cells of a list in mm", csv("sku,L mm,W mm,H mm,qty,weight kg", "A,0.4 m,300,200,2,5"), [USUAL])
add("a ton that is three", csv("sku,L mm,W mm,H mm,qty,weight", "A,400,300,200,2,0.005 ton"), asks="ton")
add("pounds and ounces", csv("sku,L in,W in,H in,qty,weight", "A,10,20,30,2,10 lb 4 oz"), asks="line 2.*weight")
add("a negative side", csv("sku,L mm,W mm,H mm,qty", "A,400,-300,200,2"), asks="line 2.*width")
add("a side of zero", csv("sku,L mm,W mm,H mm,qty", "A,400,0,200,2"), asks="line 2.*width")
add("a range", csv("sku,L mm,W mm,H mm,qty", "A,400-410,300,200,2"), asks="line 2.*length")


# -- what other columns and rows say -------------------------------------------------------------------------------

add(
    "a weight that no box of these sides has",
    csv("sku;length cm;width cm;height cm;qty;weight kg", "A;40;30;20;2;5.000"),
    [USUAL],
)
add(
    "grams that no box of these sides has",
    csv("sku,length cm,width cm,height cm,qty,weight g", 'A,40,30,20,2,"5,000"'),
    [USUAL],
)
add("an amount of money says the country", csv("sku;L cm;W cm;H cm;qty;wt;EUR", "A;40;30;20;2;5,000;1.234,56"), [USUAL])
add(
    "a total that is the sum of the weights",
    csv("sku,Ctns,L cm,W cm,H cm,G.W. (kg)", "A,2,40,30,20,10", "B,3,60,40,25,37.5", "TOTAL,5,,,,47.5"),
    [USUAL, (3, (600, 400, 250), 12.5)],
)
add(
    "a total that is the sum of the boxes",
    csv("sku,Ctns,L cm,W cm,H cm,G.W. (kg)", "A,2,40,30,20,5", "B,3,60,40,25,12.5", "TOTAL,5,,,,47.5"),
    [USUAL, (3, (600, 400, 250), 12.5)],
)
add(
    "totals of every order",
    csv(
        "order,Ctns,L cm,W cm,H cm,weight kg",
        "7,2,40,30,20,5",
        "Total,2,,,,10",
        "8,2,40,30,20,5",
        "Total,2,,,,10",
        "Grand total,4,,,,20",
    ),
    [USUAL, USUAL],
    orders=["7", "8"],
)
add(
    "volumes of all boxes of a row",
    csv("sku,Pkgs,L cm,W cm,H cm,G.W. (kg),CBM", "A,20,40,30,20,100,0.48"),
    doubts="G.W.*--weights",
)
add(
    "volumes of all boxes of a row, said",
    csv("sku,Pkgs,L cm,W cm,H cm,G.W. (kg),CBM", "A,20,40,30,20,100,0.48"),
    [(20, (400, 300, 200), 5.0)],
    options={"weights": "row"},
)
add(
    "volumes that the sides do not give",
    csv("sku,L cm,W cm,H cm,qty,Volume m3,weight kg", "A,40,30,20,2,0.393,5"),
    doubts="Volume m3.*0.393",
)
add(
    "what a carton holds, by the numbers",
    csv("货号,件数,每箱数量,总数量,外箱尺寸(CM),毛重(KG),总毛重(KG)", "A,2,24,48,40*30*20,5,10"),
    [USUAL],
)
add(
    "numbers of cartons",
    csv("C/NO.,sku,pcs,L cm,W cm,H cm,G.W. kg", "1-2,A,48,40,30,20,5", "3,B,24,40,30,20,5"),
    [USUAL, (1, (400, 300, 200), 5.0)],
)
add(
    "numbers of cartons that hold two articles",
    csv("C/NO.,sku,pcs,L cm,W cm,H cm,G.W. kg", "1-2,A,48,40,30,20,5", "1-2,B,24,40,30,20,5"),
    doubts="1-2",
)
add(
    "cartons that hold two articles, as merged cells",
    excel(
        [["Carton", "sku", "L cm", "W cm", "H cm", "Cartons"], ["1-2", "A", 40, 30, 20, 2], [None, "B"]],
        merged=["A2:A3", "C2:C3", "D2:D3", "E2:E3", "F2:F3"],
    ),
    doubts="Cartons.*several rows",
    suffix=".xlsx",
)
add(
    "a total weight over merged cells",
    excel(
        [["sku", "L mm", "W mm", "H mm", "Ctns", "Total kg"], ["A", 400, 300, 200, 2, 25], ["B", 400, 300, 200, 3]],
        merged=["F2:F3"],
    ),
    doubts="Total kg.*several rows",
    suffix=".xlsx",
)
add("a total with sides", csv("sku,L mm,W mm,H mm,qty", "A,400,300,200,2", "Total,400,300,200,2"), doubts="line 3")
add(
    "cases and eaches in one column",
    csv("sku,qty,uom,L mm,W mm,H mm", "A,2,CS,400,300,200", "B,36,EA,600,400,250"),
    doubts="pieces",
)
add("pallets as units", csv("sku,qty,uom,L mm,W mm,H mm", "A,2,PAL,400,300,200"), doubts="PAL|pal")
add("a quantity of pallets", csv("sku,L mm,W mm,H mm,Qty (pallets)", "A,400,300,200,2"), doubts="pallets")
add("a quantity in kilograms", csv("sku,L mm,W mm,H mm,Qty (kg)", "A,400,300,200,12.5"), doubts="Qty")
add("dozens", csv("sku,L mm,W mm,H mm,qty (dozen)", "A,400,300,200,2"), doubts="dozen")
add(
    "pieces and sides of cartons",
    csv("sku,Carton L mm,Carton W mm,Carton H mm,qty", "A,400,300,200,48 pcs"),
    doubts="qty",
)
add("a quantity in words", csv("sku,L mm,W mm,H mm,qty", "A,400,300,200,two"), doubts="two")
add("cases and eaches", csv("sku,Qty EA,Qty CS,Case L mm,Case W mm,Case H mm", "A,48,2,400,300,200"), [NO_WEIGHT])
add(
    "inches without a unit of weight",
    csv("sku,L (in),W (in),H (in),qty,weight", "A,10,20,30,2,11"),
    doubts="weight.*kg",
)
add("pounds as a sign", csv("sku,L (in),W (in),H (in),qty,Wt (#)", "A,10,20,30,2,11"), asks="#.*weight-unit")
add(
    "a weight by its packing",
    csv("sku,Box L (mm),Box W (mm),Box H (mm),Pallet L (mm),Pallet W (mm),Boxes,Box kg", "A,400,300,200,1200,800,2,5"),
    [USUAL],
    orders=["all"],
)
add("kilograms that are not read", csv("sku,L mm,W mm,H mm,qty,Cargo (kg)", "A,400,300,200,2,5"), doubts="Cargo")
add(
    "no weight in a cell",
    csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", "B,400,300,200,2,n/a"),
    [USUAL, NO_WEIGHT],
)
add("the same headers twice", csv("sku,L mm,W mm,H mm,sku,L mm,W mm,H mm", "A,400,300,200,B,60,40,25"), doubts="twice")
add(
    "the same headers in two groups",
    csv(",Inner,,,Outer,,,", "sku,L cm,W cm,H cm,L cm,W cm,H cm,Cartons", "A,10,9,8,40,30,20,2"),
    [NO_WEIGHT],
)
add("places beside sides", csv("sku,x,y,z,length mm,width mm,height mm,qty", "A,0,0,0,400,300,200,2"), [NO_WEIGHT])
add(
    "latitude and longitude",
    csv("sku,lat,long,Length mm,Width mm,Height mm", "A,52.1,13.2,400,300,200"),
    [(1, (400, 300, 200), None)],
)
add("length, depth and height", csv("Codice;Colli;L (cm);P (cm);H (cm)", "A;2;40;30;20"), [NO_WEIGHT])
add(
    "outer sides in German",
    csv(
        "sku;Innenmaß L;Innenmaß B;Innenmaß H;Außenmaß L mm;Außenmaß B mm;Außenmaß H mm;Menge",
        "A;39;29;19;400;300;200;2",
    ),
    [NO_WEIGHT],
)
add(
    "sides below their group in German",
    csv("Artikel;Abmessungen in mm;;;Menge", ";L;B;H;", "A;400;300;200;2"),
    [NO_WEIGHT],
)
add(
    "row numbers called N",
    csv("N;Артикул;Длина мм;Ширина мм;Высота мм;Кол-во", "1;A;400;300;200;2", "2;B;400;300;200;2"),
    [NO_WEIGHT] * 2,
)


# -- more files ----------------------------------------------------------------------------------------------------

add(
    "lines that are drawn",
    csv("|-----|", "|sku |L mm |W mm |H mm |qty |", "|-----|", "|A   |400  |300  |200  |2   |", "|-----|"),
    [NO_WEIGHT],
    suffix=".txt",
)
add(
    "a table of Markdown",
    csv("| sku | L mm | W mm | H mm | qty |", "|---|---|---|---|---|", "| A | 400 | 300 | 200 | 2 |"),
    [NO_WEIGHT],
    suffix=".md",
)
add(
    "remarks above the header",
    csv("# exported", "# by a system", "sku,L mm,W mm,H mm,qty", "A,400,300,200,2"),
    [NO_WEIGHT],
)
add("carets", csv("sku^L mm^W mm^H mm^qty", "A^400^300^200^2"), [NO_WEIGHT])
add(
    "the old code page",
    csv("Artikel;Länge mm;Breite mm;Höhe mm;Stück", "A;400;300;200;2", encoding="cp850"),
    [NO_WEIGHT],
)
add("KOI8", csv("Артикул;Длина мм;Ширина мм;Высота мм;Кол-во", "A;400;300;200;2", encoding="koi8_r"), [NO_WEIGHT])
add("EUC", csv("商品コード,長さ(mm),幅(mm),高さ(mm),数量", "A,400,300,200,2", encoding="euc_jp"), [NO_WEIGHT])
add("Big5", csv("料號,箱數,長(公分),寬(公分),高(公分)", "A,2,40,30,20", encoding="big5"), [NO_WEIGHT])
add(
    "columns of JSON",
    json.dumps({"sku": ["A"], "length_mm": [400], "width_mm": [300], "height_mm": [200], "qty": [2]}).encode(),
    [NO_WEIGHT],
    suffix=".json",
)
add(
    "rows of JSON",
    json.dumps([["sku", "length_mm", "width_mm", "height_mm", "qty"], ["A", 400, 300, 200, 2]]).encode(),
    [NO_WEIGHT],
    suffix=".json",
)
add(
    "headers beside rows of JSON",
    json.dumps({"columns": ["length_mm", "width_mm", "height_mm", "qty"], "data": [[400, 300, 200, 2]]}).encode(),
    [NO_WEIGHT],
    suffix=".json",
)


# -- more traps ----------------------------------------------------------------------------------------------------

add(
    "numbered cartons and what is in them",
    csv("Carton ID,sku,Qty,L cm,W cm,H cm", "C1,A,10,40,30,20", "C2,A,12,40,30,20"),
    doubts="Carton ID.*Qty",
)
add(
    "pallets' labels and one box each",
    csv("SSCC;Qty;L mm;W mm;H mm", "00340;1;400;300;200", "00341;1;400;300;200"),
    [(1, (400, 300, 200), None)] * 2,
)
add("two units in one header", csv("sku,L (cm/in),W (cm/in),H (cm/in),qty", "A,40,30,20,2"), asks="cm/in")
add("weight per unit", csv("sku,qty,L mm,W mm,H mm,Weight/Unit kg", "A,2,400,300,200,5"), [USUAL])
add("the weight of the order", csv("order,qty,L mm,W mm,H mm,Order weight kg", "7,2,400,300,200,47.5"), [NO_WEIGHT])
add("a row that is cancelled", csv("sku,qty,status,L mm,W mm,H mm", "A,2,cancelled,400,300,200"), doubts="cancelled")
add(
    "numbered packages in French",
    csv("Réf;N° colis;L cm;l cm;H cm;Poids kg", "A;1;40;30;20;5", "B;2;40;30;20;5"),
    [(1, (400, 300, 200), 5.0)] * 2,
)
for _header, _cell in (
    ("Maße (Höhe x Breite x Tiefe) mm", "200x300x400"),
    ("Size (Height x Width x Length) mm", "200x300x400"),
    ("Wymiary (dł x szer x wys) mm", "400x300x200"),
    ("Wymiary wys x szer x dł [mm]", "200x300x400"),
    ("Medidas (alto x ancho x largo) mm", "200x300x400"),
    ("Rozměry (v x š x h) mm", "200x300x400"),
    ("Medidas AxLxC (mm)", "200x300x400"),
    ("Dimensões C x L x A (mm)", "400x300x200"),
    ("Dim. LxPxH mm", "300x400x200"),
    ("尺寸(高*宽*长 mm)", "200*300*400"),
    ("サイズ(奥行×幅×高さ mm)", "400×300×200"),
):
    _sides = (300, 400, 200) if _cell.startswith("300") else (400, 300, 200)
    add(f"sides in the order of {_header}", csv(f"sku;qty;{_header}", f"A;2;{_cell}"), [(2, _sides, None)])
add(
    "two boxes of one article",
    csv("sku,Box 1 L cm,Box 1 W cm,Box 1 H cm,Box 2 L cm,Box 2 W cm,Box 2 H cm", "A,40,30,20,60,40,25"),
    doubts="Box 2 L",
)
add(
    "net sides and gross sides",
    csv("sku,Net L mm,Net W mm,Net H mm,Gross L mm,Gross W mm,Gross H mm,qty", "A,38,28,18,400,300,200,2"),
    [NO_WEIGHT],
)
add(
    "sides without and with packing",
    csv(
        "Artikel;Länge ohne Verpackung cm;Breite ohne Verpackung cm;Höhe ohne Verpackung cm;Länge mit Verpackung cm;"
        "Breite mit Verpackung cm;Höhe mit Verpackung cm;Menge",
        "A;38;28;18;40;30;20;2",
    ),
    [NO_WEIGHT],
)
add("a size that is called L", csv("sku,L,Length mm,Width mm,Height mm,qty", "A,5,400,300,200,2"), [NO_WEIGHT])
add("W beside L, B and H", csv("sku,L,B,H,W,qty", "A,400,300,200,5,2"), doubts="W", options={"unit": "mm"})
add(
    "units without a space in Chinese",
    csv("货号,箱数,长cm,宽cm,高cm,毛重kg", "A,2,40,30,20,5", "TOTAL:,2,,,,10"),
    [USUAL],
)
add("a unit alone above the header", csv("Unit: mm", "sku,L,W,H,qty", "A,400,300,200,2"), [NO_WEIGHT])
add(
    "units of every amount in JSON",
    json.dumps(
        [
            {
                "length": {"value": 40, "unit": "cm"},
                "width": {"value": 300, "unit": "mm"},
                "height": {"value": 20, "unit": "cm"},
                "quantity": 2,
                "weight": {"value": 5000, "unit": "g"},
            }
        ]
    ).encode(),
    [USUAL],
    suffix=".json",
)
add(
    "the weight of an order in JSON",
    json.dumps({"id": 7, "weight": 47.5, "items": [{"l_mm": 400, "w_mm": 300, "h_mm": 200, "qty": 2}]}).encode(),
    [NO_WEIGHT],
    suffix=".json",
)
add(
    "units of every column",
    csv("L,L unit,W,W unit,H,H unit,qty", "40,cm,300,mm,20,cm,2"),
    doubts="units",
)
add(
    "pounds as an escaped format",
    excel(
        [["sku", "L in", "W in", "H in", "qty", "weight"], ["A", 10, 20, 30, 2, 10]],
        formats={"F2": "0.0\\ \\l\\b"},
    ),
    [(2, (254, 508, 762), 4.5359237)],
    suffix=".xlsx",
)
add(
    "a quantity in percent",
    excel([["sku", "L mm", "W mm", "H mm", "qty"], ["A", 400, 300, 200, 2]], formats={"E2": "0%"}),
    asks="quantity|qty",
    suffix=".xlsx",
)


add(
    "volumes that are rounded",
    csv("sku,Qty,L cm,W cm,H cm,Vol m3", "A,1,20,15,20,0.01", "B,1,20,15,20,0.01"),
    [(1, (200, 150, 200), None)] * 2,
)
add("volumes of single boxes", csv("sku,Qty,L cm,W cm,H cm,Vol m3", "A,1,20,15,20,0.098"), doubts="Vol m3")
add("types of cartons", csv("Carton type,sku,L mm,W mm,H mm,Qty", "10-12,A,400,300,200,2"), [NO_WEIGHT])
add("parcel of parcels", csv("Shipment,Parcel,L mm,W mm,H mm", "S,1/2,400,300,200"), [(1, (400, 300, 200), None)])
add(
    "gross and net in one cell", csv("sku,Ctns,L cm,W cm,H cm,G.W./N.W. (kg)", "A,2,40,30,20,5/4"), doubts="two weights"
)
add(
    "pieces of cartons in Chinese",
    csv("货号,数量(个),外箱长(cm),外箱宽(cm),外箱高(cm)", "A,48,40,30,20"),
    doubts="数量",
)
add("a short order in French", csv("N° cde;Qté;L mm;l mm;H mm", "C1;2;400;300;200"), [NO_WEIGHT], orders=["C1"])
add("ordered cases", csv("sku,Order Cases,Order Units,Case Pack,L cm,W cm,H cm", "A,2,48,24,40,30,20"), [NO_WEIGHT])
add("kilograms of a piece", csv("Artikel;Menge;L mm;B mm;H mm;kg/Stk", "A;2;400;300;200;5"), [USUAL])
add(
    "quantities in another sheet",
    excel([["Order", "sku", "Qty"], ["O1", "A", 2]], before=[["sku", "L mm", "W mm", "H mm"], ["A", 400, 300, 200]]),
    doubts="Boxes.*Qty",
    suffix=".xlsx",
)

add(
    "groups of two rows in German",
    csv("Art;Stück;;;Karton;;;Anzahl Kartons", ";L cm;B cm;H cm;L cm;B cm;H cm;", "A;10;9;8;40;30;20;2"),
    [NO_WEIGHT],
)
add("letters of a French carton", csv("Réf;Colis L cm;Colis l cm;Colis H cm;Nb colis", "A;40;30;20;2"), [NO_WEIGHT])
add("cartons and pieces in cells", csv("sku,L mm,W mm,H mm,qty", "A,4,3,2,2 ctn", "B,6,4,2,24 pcs"), doubts="pieces")
add("one of two", csv("sku,L mm,W mm,H mm,qty", "A,400,300,200,1/2"), asks="line 2.*1/2")
add("an empty pallet", csv("item,L mm,W mm,H mm,qty", "EUR pallet,1200,800,144,1"), doubts="EUR pallet")
add("a quantity without a header", csv("sku,L mm,W mm,H mm,", "A,4e2,3e2,2e2,7"), doubts="column 5.*quantity=.5")
add("sides that are about so much", csv("sku,L mm,W mm,H mm", "A,ca. 400,300,200"), asks="length.*L mm.*ca. 400")
add(
    "units in abbreviated columns",
    csv("Auftrag|Artikel|Menge|Länge|Breite|Höhe|LE|Gewicht|GE", "7|A|2|400|300|200|MM|5000|G"),
    [USUAL],
)
add("kilograms of a package", csv("Artikel;Anz. Kolli;L[cm];B[cm];H[cm];kg/Kollo", "A;2;40;30;20;5"), [USUAL])
add("handling units", csv("Handling Units,Pieces,L (mm),W (mm),H (mm),Weight (gm)", "2,48,400,300,200,5000"), [USUAL])
add(
    "volumes of a row in a unit beside them",
    csv("Material;Menge;L mm;B mm;H mm;Bruttogewicht;GE;Volumen;VE", "A;2;400;300;200;10;KG;48;L"),
    doubts="Volumen.*Bruttogewicht",
)

# -- columns of public programs and templates ----------------------------------------------------------------------

add(
    "a template of cartons and pallets",
    csv("Cust PO Number,Carton/Pallet,Length cm,Width cm,Height cm,Quantity,Total Weight kg", "7,Carton,40,30,20,2,10"),
    [USUAL],
    orders=["7"],
)
add(
    "a quotation of freight",
    csv(
        "Total CBM,0.048",
        "Total Pieces,2",
        "",
        "Dimensions",
        "Length (cm),Width (cm),Height (cm),Pieces,Weight per Piece (kg),Total Weight (kg),CBM",
        "40,30,20,2,5,10,0.048",
    ),
    [USUAL],
)
add(
    "an import of a courier",
    csv(
        "Customer Name / Customer ID,Priority,Package Description,Package Count,Total Weight (kg),Length (cm),"
        "Width (cm),Height (cm),Sender Name,Sender Pincode",
        "Somebody,1,cups,2,10,40,30,20,Me,560001",
    ),
    [USUAL],
)
add(
    "a manifest with places",
    csv(
        "Order ID,Source Name,Destination Name,Latitude,Longitude,Length (cm),Width (cm),Height (cm),Weight (kg),"
        "Fragile,This Side Up",
        "ORD1,Here,There,19.0760,72.8777,40,30,20,5,Yes,No",
    ),
    [(1, (400, 300, 200), 5.0)],
    orders=["ORD1"],
)
add(
    "an order with volumes of one and of all",
    csv(
        "Order No.,Customer name,Item,Length (cm),Width (cm),Height (cm),Quantity,Unit volume (m³),Total volume (m³),"
        "Weight (kg),Photo files",
        "7,Somebody,A,40,30,20,2,0.024,0.048,5,a.jpg",
    ),
    [USUAL],
    orders=["7"],
)
add(
    "long, wide and high",
    csv("QTY OF PKGS(CTNS),LONG CM,WIDE CM,HIGH CM,TTL G.W.(KGS),TTL N.W.(KGS),TTL MEAS(CBM)", "2,40,30,20,10,8,0.048"),
    [USUAL],
)
add(
    "a packing list without a unit",
    csv("No,MARKS&NO,DESCRIPTION,CTN,PCS/CTN,T/QTY,L,W,H,G.W.(KGS),N.W.(KGS)", "1,X,cup,2,24,48,40,30,20,5,4"),
    [USUAL],
    options={"unit": "cm"},
)
add(
    "boxes and items of a program",
    csv("width;height;depth;weight;type", "300;200;400;5000;1", "220;185;50;0;0"),
    asks="line 3|unit",
)
add(
    "a master list in German",
    csv("Nummer;Benennung;Länge;Breite;Höhe;Gewicht;Stapelbarkeit", "A;Kiste;1.200;800;600;12,5;3"),
    [(1, (1200, 800, 600), 12.5)],
    options={"unit": "mm"},
)
add(
    "names of a marketplace",
    csv(
        "sku,productPackageDimensionsDepth(in),productPackageDimensionsHeight(in),productPackageDimensionsWidth(in),"
        "productPackageWeight(lb)",
        "A,20,30,10,10",
    ),
    [(1, (508, 254, 762), 4.5359237)],
)
add(
    "cargo with flags",
    csv(
        "label,name,length,width,height,weight,quantity,color,canRotate,stackable",
        "C,crate,400,300,200,5,2,#6,true,false",
    ),
    [USUAL],
    options={"unit": "mm"},
)


# -- what a word leaves out ------------------------------------------------------------------------------------------

for _header in (
    "Volumengewicht kg",
    "Poids volumétrique kg",
    "Peso taxable kg",
    "Billable Weight (kg)",
    "体积重(kg)",
    "Объемный вес, кг",
    "Waga gabarytowa kg",
    "Palettengewicht kg",
    "Peso palet kg",
    "托盘重量(kg)",
    "Sendungsgewicht kg",
    "Вес заказа, кг",
    "Leergewicht kg",
):
    add(f"no weight of a box, {_header}", csv(f"sku;qty;L mm;B mm;H mm;{_header}", "A;2;400;300;200;7"), [NO_WEIGHT])
for _header in (
    "Positionsgewicht kg",
    "Poids ligne kg",
    "Peso complessivo kg",
    "Waga całkowita kg",
    "Weight x Qty (kg)",
    "Combined weight kg",
    "Суммарный вес, кг",
    "重量計(kg)",
    "Row Wt (kg)",
):
    add(f"the weight of a row, {_header}", csv(f"sku;qty;L mm;B mm;H mm;{_header}", "A;2;400;300;200;10"), [USUAL])
for _header in (
    "Stk/Karton",
    "Uds/caja",
    "Pz x cartone",
    "Pièces/colis",
    "Szt. w opak.",
    "шт/кор",
    "个/箱",
    "Stuks/doos",
    "Units per shipper",
    "Qtd/cx",
):
    add(f"what a box holds, {_header}", csv(f"sku;Qty;{_header};L mm;W mm;H mm", "A;48;24;400;300;200"), asks="counts")
for _header in (
    "SO #",
    "Auftrags-Nr.",
    "Belegnummer",
    "Nr zlecenia",
    "Č. objednávky",
    "Nº albarán",
    "N. DDT",
    "Bestelnr.",
    "№ накладной",
    "伝票番号",
    "送货单号",
    "Sales Document",
    "Invoice No.",
):
    add(
        f"orders by {_header}",
        csv(f"{_header};Artikel;Qty;L mm;W mm;H mm", "X1;A;2;400;300;200", "X2;B;2;400;300;200"),
        [NO_WEIGHT] * 2,
        orders=["X1", "X2"],
    )
for _header in ("Pick order", "Sort Order", "Order Item", "Loading order"):
    add(
        f"a sequence by {_header}",
        csv(f"{_header},sku,qty,L mm,W mm,H mm", "10,A,2,400,300,200", "20,B,2,400,300,200"),
        [NO_WEIGHT] * 2,
        orders=["all"],
    )
for _wanted, _shipped in (
    ("Cant. pedida", "Cant. servida"),
    ("Qté commandée", "Qté livrée"),
    ("Ilość zamówiona", "Ilość wydana"),
    ("受注数量", "出荷数量"),
    ("Sollmenge", "Istmenge"),
):
    add(f"{_wanted} and {_shipped}", csv(f"sku;{_wanted};{_shipped};L mm;W mm;H mm", "A;5;2;400;300;200"), [NO_WEIGHT])
add(
    "a shop's numbers of orders",
    csv(
        "Name,Email,Lineitem quantity,Lineitem sku,Length (cm),Width (cm),Height (cm)",
        "#1001,a@example.org,2,A,40,30,20",
        "#1002,b@example.org,2,B,40,30,20",
    ),
    [NO_WEIGHT] * 2,
    orders=["#1001", "#1002"],
)


# -- units and orders of sides ---------------------------------------------------------------------------------------

add(
    "codes of units",
    csv("ITEM,QTY,QTY_UOM,LENGTH,WIDTH,HEIGHT,DIM_UOM,WEIGHT,WT_UOM", "A,2,CT,40,30,20,CMT,11.0231,LBR"),
    [(2, (400, 300, 200), 4.99999)],
)
add(
    "a unit of weight that is no unit", csv("sku,Qty,L mm,W mm,H mm,Weight,Weight UOM", "A,2,4,3,2,5,HGM"), doubts="HGM"
)
add(
    "a unit that is a preposition",
    csv("sku,L in package,W in package,H in package,unit", "A,400,300,200,mm"),
    [(1, (400, 300, 200), None)],
)
add("a title without a unit", csv("Total units: 24 in 3 boxes", "sku,L,W,H,qty", "A,400,300,200,2"), asks="unit")
add("a German unit above the header", csv("Alle Angaben in mm", "Artikel;L;B;H;Menge", "A;400;300;200;2"), [NO_WEIGHT])
add(
    "inches and pounds above the header",
    csv("Unit: inch / lb", "sku,L,W,H,qty,weight", "A,10,20,30,2,10"),
    [(2, (254, 508, 762), 4.5359237)],
)
add(
    "headers that say what must be there",
    csv("SKU*,Quantity*,Length (required),Width (required),Height (required),Dimension Unit", "A,2,40,30,20,cm"),
    [NO_WEIGHT],
)
add("two apostrophes", csv("sku\tqty\tL\tW\tH", "A\t2\t10''\t20''\t30''"), [(2, (254, 508, 762), None)])
for _header, _cell in (
    ("Wymiary (WxSxD) mm", "200x300x400"),
    ("Wymiary SxWxG [mm]", "300x200x400"),
    ("Rozmiar (szer. x wys. x głęb.) mm", "300x200x400"),
):
    add(f"sides in the order of {_header}", csv(f"sku;qty;{_header}", f"A;2;{_cell}"), [NO_WEIGHT])
add("an order of sides with two readings", csv("sku;qty;Medidas (AxAxF) mm", "A;2;200x300x400"), doubts="AxAxF")
for _cell in (
    "30x40x20 cm (BxTxH)",
    "40 x 30 x 20 (cm)",
    "(40 x 30 x 20) cm",
    "40 por 30 por 20 cm",
    "长40cm宽30cm高20cm",
    "長さ40×幅30×高さ20cm",
):
    add(f"the cell {_cell}", csv("sku\tqty\tSize", f"A\t2\t{_cell}"), [NO_WEIGHT])
add("letters with inch signs", csv("sku\tqty\tSize", 'A\t2\t10"L x 20"W x 30"H'), [(2, (254, 508, 762), None)])
add("labelled sides in two units", csv("sku\tqty\tSize", "A\t2\tL1m W30cm H20cm"), asks="length|Size")
add("boxes behind their sides", csv("Ref,Dims (cm),Weight kg", "A,40x30x20/2,5"), asks="line 2.*20/2")
add(
    "sides of pallets in German",
    csv("sku;Palettenlänge mm;Palettenbreite mm;Palettenhöhe mm", "A;1;2;3"),
    asks="length",
)


# -- which quantity --------------------------------------------------------------------------------------------------

add(
    "a quantity of an unknown word, with zeros",
    csv("Product,Demand,Done,L mm,W mm,H mm", "A,2,0,400,300,200", "B,0,3,400,300,200"),
    doubts="Demand.*Done",
)
add("a large demand", csv("sku,Demand,L mm,W mm,H mm", "A,1200,400,300,200", "B,24,400,300,200"), doubts="Demand")
add(
    "an unknown quantity of three decimals",
    csv("sku;Bedarf;L mm;B mm;H mm;kg", "A;2,000;400;300;200;5,0", "B;3,000;400;300;200;5,0"),
    doubts="Bedarf",
)
add(
    "a quantity behind a cross", csv("sku,Order qty,L mm,W mm,H mm", "A,x2,4,3,2", "B,x3,4,3,2"), doubts="Order qty.*x2"
)
add(
    "line numbers called N°",
    csv("N°;L mm;l mm;H mm", "10;400;300;200", "20;400;300;200"),
    [(1, (400, 300, 200), None)] * 2,
)
add("cartons as C/T", csv("Item,C/T,Q'TY (PCS),L(CM),W(CM),H(CM),G.W.(KG)", "A,2,48,40,30,20,5"), [USUAL])
add("boxes and pieces", csv("Item,BOX,PCS,L(CM),W(CM),H(CM)", "A,2,48,40,30,20", "B,5,100,40,30,20"), doubts="BOX")
add("eaches and sides of cases", csv("Item,Qty,UOM,Case L mm,Case W mm,Case H mm", "A,48,EA,400,300,200"), doubts="Qty")
add("a quantity of cases, or in cases", csv("sku,Case Qty,L mm,W mm,H mm", "A,2,400,300,200"), doubts="Case Qty")
add(
    "cartons and pallets",
    csv("Package Type,Qty,L cm,W cm,H cm", "Carton,2,40,30,20", "Pallet,2,120,80,150"),
    doubts="pallet.*Package Type",
)
add(
    "as many boxes as all rows have",
    csv("Shipment,Package No,Total Packages,L cm,W cm,H cm", "S,1,2,40,30,20", "S,2,2,40,30,20"),
    doubts="Package No.*Total Packages",
)
for _cells in (('"1,3"', "2"), ("#1-#2", "#3"), ("1-2/3", "3/3"), ("AB1-AB2", "AB3"), ("1 à 2", "3")):
    add(
        f"numbers of cartons, {_cells[0]}",
        csv("Carton No.,sku,L cm,W cm,H cm", f"{_cells[0]},A,40,30,20", f"{_cells[1]},B,40,30,20"),
        [NO_WEIGHT, (1, (400, 300, 200), None)],
    )
for _header in ("Packstück-Nr.", "N° colis", "№ места", "Marks & Nos."):
    add(
        f"numbers of boxes below {_header}",
        csv(f"{_header};sku;L cm;W cm;H cm", "1-2;A;40;30;20", "3;B;40;30;20"),
        [NO_WEIGHT, (1, (400, 300, 200), None)],
    )
add(
    "names of boxes with a dash",
    csv("Carton No.,L cm,W cm,H cm", "C1-01,40,30,20", "C1-02,40,30,20"),
    [(1, (400, 300, 200), None)] * 2,
)
for _cell in ("2 KAR", "2 Stck.", "2 cx", "2ケース", "2 ctn(s)"):
    add(f"the quantity {_cell}", csv("sku\tqty\tL mm\tW mm\tH mm", f"A\t{_cell}\t400\t300\t200"), [NO_WEIGHT])
for _cell in ("5 kg/ctn", "5 kg each", "5 Kg brutto"):
    add(f"the weight {_cell}", csv("sku\tqty\tL mm\tW mm\tH mm\tweight", f"A\t2\t400\t300\t200\t{_cell}"), [USUAL])
add(
    "the sides of what is inside",
    csv("Product L mm,Product W mm,Product H mm,Units per carton,Cartons", "9,8,7,24,2"),
    doubts="Product L",
)
add(
    "the weight of a piece",
    csv("L mm,W mm,H mm,Pcs/Ctn,Ctns,Unit Weight kg", "400,300,200,24,2,0.2"),
    doubts="Unit Weight",
)
add(
    "boxes in boxes",
    csv(
        "sku,Inner Carton L cm,Inner Carton W cm,Inner Carton H cm,Master Carton L cm,Master Carton W cm,"
        "Master Carton H cm,Cartons",
        "A,20,15,10,40,30,20,2",
    ),
    [NO_WEIGHT],
)


# -- rows between rows -----------------------------------------------------------------------------------------------

_TITLED = ["sku,Ctns,L cm,W cm,H cm,G.W. (kg)", "A,2,40,30,20,10", "B,3,60,40,25,37.5"]
_OF_ROWS = [USUAL, (3, (600, 400, 250), 12.5)]
add("a total weight in words below", csv(*_TITLED, "Total Gross Weight: 47.5 KGS", "Total Cartons: 5"), _OF_ROWS)
add("a total weight in words above", csv("Total cartons: 5", "Total gross weight: 47.5 kg", "", *_TITLED), _OF_ROWS)
add("a total weight in a cell above", csv("Total cartons,5", "Total weight,47.5", "", *_TITLED), _OF_ROWS)
add("a total without a word", csv("sku,qty,L mm,W mm,H mm,kg", "A,2,400,300,200,5", ",2,,,,10"), [USUAL])
add("a sum in German", csv("sku;qty;L mm;W mm;H mm;kg", "A;2;400;300;200;5", "Gesamtsumme;2;;;;10"), [USUAL])
add(
    "an article called Total without sides",
    csv("sku,name,L mm,W mm,H mm,qty", "1,Total Cleaner,,,,2"),
    asks="line 2",
)
add("an article without sides at the end", csv("sku,L mm,W mm,H mm", "B-2,,,"), asks="line 2|no box")
add(
    "pages",
    csv(
        "Artikel;Menge;L mm;B mm;H mm;kg",
        "A;2;400;300;200;5",
        "Übertrag;2;;;;10",
        "Seite 1 von 2",
        "Artikel;Menge;L mm;B mm;H mm;kg",
        "B;2;400;300;200;5",
        "Seite 2",
    ),
    [USUAL, USUAL],
)
add(
    "two rows of headers on every page",
    csv(
        *("sku,Carton,,,qty", ",L mm,W mm,H mm,", "A,400,300,200,2"),
        *("sku,Carton,,,qty", ",L mm,W mm,H mm,", "B,400,300,200,2"),
    ),
    [NO_WEIGHT] * 2,
)
add(
    "a decimal comma that moves an empty cell",
    csv("sku,L cm,W cm,H cm,qty,note", "A,40,5,30,20,2,", "B,40,30,20,2,"),
    asks="line 2",
)
for _header, _cell in (("Cancelled", "Yes"), ("Storno", "X"), ("Löschkennzeichen", "X")):
    add(
        f"a row below {_header}", csv(f"sku;Menge;{_header};L mm;B mm;H mm", f"A;2;{_cell};400;300;200"), doubts=_header
    )
add(
    "a hidden column",
    excel([["sku", "Qty", "L mm", "W mm", "H mm"], ["A", 2, 400, 300, 200]], hidden_columns="B"),
    doubts="Qty.*hidden",
    suffix=".xlsx",
)
add(
    "a hidden column that is wanted",
    excel([["sku", "Qty", "L mm", "W mm", "H mm"], ["A", 2, 400, 300, 200]], hidden_columns="B"),
    [NO_WEIGHT],
    options={"hidden": True},
    suffix=".xlsx",
)
add(
    "a row that is struck through",
    excel([["sku", "Qty", "L mm", "W mm", "H mm"], ["A", 2, 4e2, 3e2, 2e2], ["B", 2, 4e2, 3e2, 2e2]], struck=[3]),
    doubts="line 3 is struck through",
    suffix=".xlsx",
)


# -- packages with what is in them -----------------------------------------------------------------------------------

_PACKAGE = {"length_mm": 400, "width_mm": 300, "height_mm": 200}
add(
    "packages that say what is in them",
    json.dumps(
        {"orders": [{"id": "7", "packages": [_PACKAGE | {"items": [{"sku": "A", "qty": 9}, {"sku": "B"}]}]}]}
    ).encode(),
    [(1, (400, 300, 200), None)],
    orders=["7"],
    suffix=".json",
)
add(
    "packages of packages",
    json.dumps([_PACKAGE | {"sku": "KIT", "components": [{"sku": "A", **_PACKAGE}]}]).encode(),
    doubts="outer ones",
    suffix=".json",
)
add(
    "lines of an order beside others",
    json.dumps({"OrderNo": "7", "Items": [_PACKAGE | {"Quantity": 2}], "Notes": [{"text": "soon"}]}).encode(),
    [NO_WEIGHT],
    orders=["7"],
    suffix=".json",
)


# -- rows and columns that look like boxes -----------------------------------------------------------------------------

for _name in ("Average", "Mittelwert", "Max", "Example: AB-12", "SAMPLE", "例"):
    add(
        f"a row called {_name}",
        csv("sku,qty,L mm,W mm,H mm", "A,2,400,300,200", f"{_name},2,400,300,200"),
        doubts="line 3.*example",
    )
add(
    "sides in a column that no word names",
    csv("sku,qty,Size (cm),Packed (cm)", "A,2,38x28x18,40x30x20"),
    doubts="Size.*Packed",
)
add(
    "one label on two rows",
    csv("LPN,sku,Qty,L cm,W cm,H cm", "P1,A,1,40,30,20", "P1,B,1,40,30,20"),
    doubts="line 3.*P1.*LPN",
)
add(
    "one parcel in two rows",
    csv("Tracking Number,sku,L cm,W cm,H cm", "1Z9,A,40,30,20", "1Z9,B,40,30,20"),
    doubts="line 3.*1Z9",
)
add(
    "one carton as a merged cell",
    excel(
        [["Ctn", "sku", "qty", "L cm", "W cm", "H cm"], ["C1", "A", 2, 40, 30, 20], [None, "B", 3]],
        merged=["A2:A3", "D2:D3", "E2:E3", "F2:F3"],
    ),
    doubts="line 3.*several rows",
    suffix=".xlsx",
)
add("pallets by their code", csv("Anz;Verp.;Länge cm;Breite cm;Höhe cm", "2;EP;120;80;150"), doubts="ep.*Verp")
add(
    "the weight of the packing alone",
    csv("sku;L mm;B mm;H mm;Verpackungsgewicht (g)", "A;4e2;3e2;2e2;500"),
    [(1, (400, 300, 200), None)],
)
add(
    "commas at the end of one row",
    csv("sku,L mm,W mm,H mm,qty,note", "A,400,300,200,2", "B,400,300,200,2,,"),
    [NO_WEIGHT] * 2,
)
add(
    "headers in two languages",
    csv("Artikel/Item;Menge/Qty;Länge/Length mm;Breite/Width mm;Höhe/Height mm", "A;2;400;300;200"),
    [NO_WEIGHT],
)
add(
    "headers in two languages, one below the other",
    csv("品名,箱数,长,宽,高,毛重", "Item,CTNS,L(cm),W(cm),H(cm),G.W.(kg)", "A,2,40,30,20,5"),
    [USUAL],
)
add(
    "a group of sides beside a quantity",
    csv(",Carton (cm),,,,", "sku,L,W,H,Qty,Weight (kg)", "A,40,30,20,2,5"),
    [USUAL],
)
add(
    "a number of pallets at the end",
    csv("sku,qty,L mm,W mm,H mm", "A,2,400,300,200", "Total pallets,1,,,"),
    [NO_WEIGHT],
)
add("feet and inches in two columns", csv("sku,L (ft),L (in),W (in),H (in)", "A,1,6,12,10"), doubts="L .ft.*sum")
add(
    "sides as they are shipped",
    csv("sku,Qty,Product L cm,Product W cm,Product H cm,Ship L cm,Ship W cm,Ship H cm", "A,2,38,28,18,40,30,20"),
    [NO_WEIGHT],
)
add(
    "sums of every column",
    csv("sku,Ctns,L cm,W cm,H cm", "A,2,40,30,20", "B,2,60,40,25", ",4,100,70,45"),
    doubts="line 4.*total",
)
add(
    "weights of every carton",
    csv("sku,ctns,L cm,W cm,H cm,NW/CTN,GW/CTN,TTL NW,TTL GW", "A,2,40,30,20,4,5,8,10"),
    [USUAL],
)
add(
    "numbers of cartons that begin anew",
    csv("Order,Carton No,L cm,W cm,H cm", "7,1,40,30,20", "7,2,40,30,20", "8,1,40,30,20"),
    [(1, (400, 300, 200), None)] * 3,
    orders=["7", "8"],
)
add(
    "shelves that look like numbers of boxes",
    csv("Место;Артикул;Кол-во;Длина мм;Ширина мм;Высота мм", "1-2;A;2;400;300;200", "1-3;B;2;400;300;200"),
    [NO_WEIGHT] * 2,
)
add(
    "the weight of the packing beside a net one",
    csv("sku;Anz;L mm;B mm;H mm;Nettogewicht kg;Verpackungsgewicht kg", "A;2;400;300;200;4,5;0,5"),
    doubts="Nettogewicht kg.*Verpackungsgewicht",
)
add(
    "the weight of the packing beside a plain one",
    csv("sku,qty,L mm,W mm,H mm,Weight kg,Packaging weight kg", "A,2,400,300,200,4.5,0.5"),
    doubts="Weight kg.*Packaging weight",
)
add(
    "the weight of the packing beside a gross one",
    csv("sku,qty,L mm,W mm,H mm,Gross kg,Tare kg,Net kg", "A,2,400,300,200,5,0.5,4.5"),
    [USUAL],
)
add(
    "numbers of boxes below another word",
    csv("Место;Артикул;Длина мм;Ширина мм;Высота мм", "1-2;A;400;300;200", "3-5;B;400;300;200"),
    doubts="Место.*number the boxes.*1-2",
)
add(
    "numbers of shelves that do not follow one another",
    csv("Место;Артикул;Длина мм;Ширина мм;Высота мм", "1-2;A;400;300;200", "1-3;B;400;300;200"),
    [(1, (400, 300, 200), None)] * 2,
)
