"""Lists as warehouse systems write them, each with what a person reads in it.

A case is a file and either its boxes, as (number, millimetres, kilograms of one), or the words of the question that it
leaves open. Made up, by the habits of real systems; none is copied.
"""

from __future__ import annotations

import datetime
import io
import json
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


NUMBERS = [
    Case(
        "decimal comma and thousands",
        csv("Artikel;Länge (mm);Breite (mm);Höhe (mm);Menge;Gewicht kg", "A;1.200;800;600;3;12,5"),
        [LARGE],
    ),
    Case(
        "thousands with decimals",
        csv("sku;length mm;width mm;height mm;qty;weight kg", "A;1.200,000;800,000;600,000;3;12,500"),
        [LARGE],
    ),
    Case(
        "decimal point and thousands",
        csv("sku,length mm,width mm,height mm,qty,weight kg", 'A,"1,200.0",800,600,3,12.5'),
        [LARGE],
    ),
    Case("apostrophes", csv("Artikel;Länge mm;Breite mm;Höhe mm;Menge;Gewicht kg", "A;1'200;800;600;3;12.5"), [LARGE]),
    Case(
        "typographic apostrophes",
        csv("Artikel;Länge mm;Breite mm;Höhe mm;Menge;Gewicht kg", "A;1’200;800;600;3;12.5"),
        [LARGE],
    ),
    Case("blanks", csv("réf;longueur mm;largeur mm;hauteur mm;qté;poids kg", "A;1 200;800;600;3;12,5"), [LARGE]),
    Case(
        "hard blanks", csv("réf;longueur mm;largeur mm;hauteur mm;qté;poids kg", "A;1\u00a0200;800;600;3;12,5"), [LARGE]
    ),
    Case(
        "narrow blanks",
        csv("réf;longueur mm;largeur mm;hauteur mm;qté;poids kg", "A;1\u202f200;800;600;3;12,5"),
        [LARGE],
    ),
    Case(
        "leading zero",
        csv("sku,length m,width m,height m,qty,weight kg", 'A,"0,400","0,300","0,200",2,"5,000"'),
        [USUAL],
    ),
    Case(
        "weight that reads two ways",
        csv("sku;length cm;width cm;height cm;qty;weight kg", "A;40;30;20;2;5.000"),
        asks="decimal",
    ),
    Case(
        "weight that reads two ways, with a word",
        csv("sku;length cm;width cm;height cm;qty;weight kg", "A;40;30;20;2;5.000"),
        [USUAL],
        options={"decimal": "."},
    ),
    Case(
        "thousands alone in millimetres",
        csv("sku;length mm;width mm;height mm;qty", "A;1.200;800;600;3"),
        [(3, (1200, 800, 600), None)],
    ),
    Case(
        "price says the country",
        csv(
            "sku;length cm;width cm;height cm;qty;weight kg;Preis",
            "A;40;30;20;2;5,000;3,50",
            "B;40;30;20;2;5,000;12,99",
        ),
        [USUAL, USUAL],
    ),
    Case(
        "text cells of a workbook",
        excel(
            [
                ["sku", "length m", "width m", "height m", "qty", "weight kg"],
                ["A", "0,400", "0,300", "0,200", 2, "5,000"],
            ]
        ),
        [USUAL],
        suffix=".xlsx",
    ),
    Case(
        "full-width digits",
        csv("商品コード,数量,縦(mm),横(mm),高さ(mm),重量(kg)", "A,２,４００,３００,２００,５"),
        [USUAL],
    ),
    Case(
        "both signs in one list",
        csv("sku;length cm;width cm;height cm;qty;weight kg", "A;40,0;30;20;2;5", "B;40.0;30;20;2;5"),
        [USUAL, USUAL],
        doubts="decimal",
    ),
    Case(
        "quantities of three decimals",
        csv("Material;Menge;Länge mm;Breite mm;Höhe mm;Gewicht", "A;2,000;400;300;200;5,0"),
        [USUAL],
    ),
    Case(
        "numbers between quotes",
        csv('"sku","length_mm","width_mm","height_mm","qty","weight_kg"', '"A","400","300","200","2","5.0"'),
        [USUAL],
    ),
]

UNITS = [
    Case(
        "pounds in brackets",
        csv("sku,length (in),width (in),height (in),qty,weight (lb.)", "A,10,20,30,2,11"),
        [(2, (254, 508, 762), 4.98951607)],
    ),
    Case(
        "ounces",
        csv("sku,length (in),width (in),height (in),qty,weight (oz.)", "A,10,20,30,2,160"),
        [(2, (254, 508, 762), 4.5359237)],
    ),
    Case(
        "a header of pounds alone",
        csv("sku,length (in),width (in),height (in),qty,Pounds", "A,10,20,30,2,10"),
        [(2, (254, 508, 762), 4.5359237)],
    ),
    Case(
        "inch signs in headers",
        csv('sku,Length ("),Width ("),Height ("),Qty', "A,10,20,30,2")
        .replace(b'Length (")', b'"Length ("")"')
        .replace(b'Width (")', b'"Width ("")"')
        .replace(b'Height (")', b'"Height ("")"'),
        [(2, (254, 508, 762), None)],
    ),
    Case(
        "a column of weight units",
        csv(
            "Artikel;Länge mm;Breite mm;Höhe mm;Menge;Gewicht;Gewichtseinheit",
            "A;400;300;200;2;5000;G",
            "B;400;300;200;2;5;KG",
        ),
        [USUAL, USUAL],
    ),
    Case(
        "mm and cm by row",
        csv("sku,length,width,height,unit,qty,weight kg", "A,400,300,200,mm,2,5", "B,40,30,20,cm,2,5"),
        [USUAL, USUAL],
    ),
    Case("a row of units", csv("Item,L,W,H,Qty,Weight", ",mm,mm,mm,pcs,kg", "A,400,300,200,2,5"), [USUAL]),
    Case(
        "a row of units in brackets",
        csv("Item,L,W,H,Qty,Weight", ",(cm),(cm),(cm),,(lb)", "A,40,30,20,2,10"),
        [(2, (400, 300, 200), 4.5359237)],
    ),
    Case(
        "units in cells",
        csv("sku,length,width,height,qty,weight", "A,400 mm,300 mm,200 mm,2 pcs,5 kg", "B,40cm,30cm,20cm,2,5000 g"),
        [USUAL, USUAL],
    ),
    Case(
        "inches in cells",
        csv("sku,length,width,height,qty,weight", "A,15.75in,12in,8in,2,11 lb"),
        [(2, (400.05, 304.8, 203.2), 4.98951607)],
    ),
    Case(
        "fractions of inches",
        csv("sku,length in,width in,height in,qty", "A,15 3/4,12 1/2,8,2"),
        [(2, (400.05, 317.5, 203.2), None)],
    ),
    Case(
        "fractions with inch signs",
        csv("sku,length,width,height,qty", 'A,15 3/4",12",8",2'),
        [(2, (400.05, 304.8, 203.2), None)],
    ),
    Case(
        "vulgar fractions",
        csv("sku,length in,width in,height in,qty", "A,15¾,12½,8,2"),
        [(2, (400.05, 317.5, 203.2), None)],
    ),
    Case(
        "centimetres and inches side by side",
        csv("sku,length cm,width cm,height cm,length in,width in,height in,qty", "A,40,30,20,15.75,11.81,7.87,2"),
        [NO_WEIGHT],
    ),
    Case(
        "inches and centimetres side by side",
        csv("sku,length in,length cm,width in,width cm,height in,height cm,qty", "A,10,25.4,20,50.8,30,76.2,2"),
        [(2, (254, 508, 762), None)],
    ),
    Case(
        "kg and lb side by side",
        csv("sku,length mm,width mm,height mm,qty,weight lb,weight kg", "A,400,300,200,2,11.02,5"),
        asks="",
        doubts="weight",
    ),
    Case(
        "a unit of weight that nobody knows",
        csv("sku,length mm,width mm,height mm,qty,weight (stone)", "A,400,300,200,2,1"),
        asks="weight.unit",
    ),
    Case(
        "a unit of weight that nobody knows, in cells",
        csv("sku,length mm,width mm,height mm,qty,weight", "A,400,300,200,2,1 stone"),
        asks="line 2.*stone",
    ),
    Case("no unit at all", csv("sku,length,width,height,qty", "A,400,300,200,2"), asks="unit"),
    Case("no unit, given", csv("sku,length,width,height,qty", "A,40,30,20,2"), [NO_WEIGHT], options={"unit": "cm"}),
    Case(
        "grams without a word",
        csv("sku,length mm,width mm,height mm,qty,weight", "A,400,300,200,2,5000"),
        [(2, (400, 300, 200), 5000.0)],
        doubts="5000 kg",
    ),
    Case("metres", csv("sku;Länge (m);Breite (m);Höhe (m);Menge;Gewicht (t)", "A;0,4;0,3;0,2;2;0,005"), [USUAL]),
    Case(
        "unit words",
        csv("sku,length millimeters,width millimeters,height millimeters,qty,weight kilograms", "A,400,300,200,2,5"),
        [USUAL],
    ),
    Case(
        "unit with a preposition",
        csv("Artikel;Länge in cm;Breite in cm;Höhe in cm;Menge;Gewicht in kg", "A;40;30;20;2;5"),
        [USUAL],
    ),
    Case("a unit for one side alone", csv("sku,L (cm),W,H,qty", "A,40,30,20,2"), [NO_WEIGHT]),
]

HEADERS = [
    Case("English", csv("Item,Length mm,Width mm,Height mm,Quantity,Gross weight kg", "A,400,300,200,2,5"), [USUAL]),
    Case(
        "German",
        csv("Artikelnummer;Länge [mm];Breite [mm];Höhe [mm];Anzahl;Bruttogewicht [kg]", "A;400;300;200;2;5"),
        [USUAL],
    ),
    Case(
        "German without umlauts",
        csv("ARTNR;LAENGE_MM;BREITE_MM;HOEHE_MM;STUECK;GEWICHT_KG", "A;400;300;200;2;5"),
        [USUAL],
    ),
    Case(
        "French",
        csv("Référence;Longueur (mm);Largeur (mm);Hauteur (mm);Quantité;Poids brut (kg)", "A;400;300;200;2;5"),
        [USUAL],
    ),
    Case(
        "Spanish",
        csv("Artículo;Largo (mm);Ancho (mm);Alto (mm);Cantidad;Peso bruto (kg)", "A;400;300;200;2;5"),
        [USUAL],
    ),
    Case(
        "Italian",
        csv("Articolo;Lunghezza (mm);Larghezza (mm);Altezza (mm);Quantità;Peso lordo (kg)", "A;400;300;200;2;5"),
        [USUAL],
    ),
    Case(
        "Portuguese",
        csv("Artigo;Comprimento (mm);Largura (mm);Altura (mm);Quantidade;Peso bruto (kg)", "A;400;300;200;2;5"),
        [USUAL],
    ),
    Case(
        "Dutch", csv("Artikel;Lengte (mm);Breedte (mm);Hoogte (mm);Aantal;Gewicht (kg)", "A;400;300;200;2;5"), [USUAL]
    ),
    Case(
        "Polish",
        csv("Indeks;Długość (mm);Szerokość (mm);Wysokość (mm);Ilość;Waga brutto (kg)", "A;400;300;200;2;5"),
        [USUAL],
    ),
    Case("Czech", csv("Kód;Délka (mm);Šířka (mm);Výška (mm);Množství;Hmotnost (kg)", "A;400;300;200;2;5"), [USUAL]),
    Case("Russian", csv("Артикул;Длина, мм;Ширина, мм;Высота, мм;Кол-во;Вес, кг", "A;400;300;200;2;5"), [USUAL]),
    Case("Japanese", csv("品番,長さ(mm),幅(mm),高さ(mm),数量,重量(kg)", "A,400,300,200,2,5"), [USUAL]),
    Case("Chinese", csv("货号,长(mm),宽(mm),高(mm),箱数,毛重(kg)", "A,400,300,200,2,5"), [USUAL]),
    Case("camel case", csv("itemId,lengthMm,widthMm,heightMm,orderedQty,grossWeightKg", "A,400,300,200,2,5"), [USUAL]),
    Case(
        "camel case with initials", csv("SKUCode,LengthMM,WidthMM,HeightMM,Qty,WeightKG", "A,400,300,200,2,5"), [USUAL]
    ),
    Case("depth for length", csv("sku,Width cm,Depth cm,Height cm,qty", "A,30,40,20,2"), [NO_WEIGHT]),
    Case("depth for height", csv("sku,Length cm,Width cm,Depth cm,qty", "A,40,30,20,2"), [NO_WEIGHT]),
    Case("Tiefe", csv("Artikel;Breite cm;Tiefe cm;Höhe cm;Menge", "A;30;40;20;2"), [NO_WEIGHT]),
    Case("letters", csv("sku,L,W,H,qty", "A,400,300,200,2"), [NO_WEIGHT], options={"unit": "mm"}),
    Case("letters of a French list", csv("réf;L;l;h;qté", "A;400;300;200;2"), [NO_WEIGHT], options={"unit": "mm"}),
    Case(
        "numbered dimensions", csv("sku,dim 1,dim 2,dim 3,qty", "A,400,300,200,2"), [NO_WEIGHT], options={"unit": "mm"}
    ),
    Case("all in one cell", csv("sku,Dimensions (mm),qty,weight kg", "A,400x300x200,2,5"), [USUAL]),
    Case("all in one cell, with blanks", csv("sku,Size,qty,weight kg", "A,400 x 300 x 200 mm,2,5"), [USUAL]),
    Case("all in one cell, with letters", csv("sku,Size mm,qty,weight kg", "A,L400 W300 H200,2,5"), [USUAL]),
    Case("all in one cell, with stars", csv("货号,外箱尺寸(cm),箱数,毛重(kg)", "A,40*30*20,2,5"), [USUAL]),
    Case(
        "all in one cell, with a cross", csv("Artikel;Maße (LxBxH) cm;Menge;Gewicht kg", "A;40 × 30 × 20;2;5"), [USUAL]
    ),
    Case("all in one cell, width first", csv("Artikel;BxTxH cm;Menge;Gewicht kg", "A;30x40x20;2;5"), [USUAL]),
    Case(
        "all in one cell, decimal commas",
        csv("Artikel;Abmessungen cm;Menge;Gewicht kg", "A;40,0x30,0x20,0;2;5"),
        [USUAL],
    ),
    Case("another language", csv("vara;pituus mm;leveys mm;korkeus mm;kpl", "A;400;300;200;2"), asks="length"),
    Case(
        "another language, named",
        csv("vara;pituus mm;leveys mm;korkeus mm;kpl", "A;400;300;200;2"),
        [NO_WEIGHT],
        options={"columns": "length=pituus mm,width=leveys mm,height=korkeus mm,quantity=kpl"},
    ),
    Case("no header", csv("A;400;300;200;2"), asks="column"),
    Case(
        "no header, numbered",
        csv("A;400;300;200;2"),
        [NO_WEIGHT],
        options={"unit": "mm", "columns": "length=2,width=3,height=4,quantity=5"},
    ),
    Case(
        "two rows of headers",
        csv("Item,Carton,,,Qty,Weight", ",L (mm),W (mm),H (mm),,kg", "A,400,300,200,2,5"),
        [USUAL],
    ),
]

WHICH = [
    Case(
        "gross and net weight",
        csv("sku,length mm,width mm,height mm,qty,net weight kg,gross weight kg", "A,400,300,200,2,4,5"),
        [USUAL],
    ),
    Case(
        "net weight first in German",
        csv("Artikel;Länge mm;Breite mm;Höhe mm;Menge;Nettogewicht kg;Bruttogewicht kg", "A;400;300;200;2;4;5"),
        [USUAL],
    ),
    Case(
        "weight of one and of the line",
        csv("sku,length mm,width mm,height mm,qty,total weight kg,unit weight kg", "A,400,300,200,2,10,5"),
        [USUAL],
    ),
    Case(
        "weight of the line alone",
        csv("sku,length mm,width mm,height mm,qty,Total weight (kg)", "A,400,300,200,2,10"),
        [USUAL],
    ),
    Case(
        "Gesamtgewicht", csv("Artikel;Länge mm;Breite mm;Höhe mm;Menge;Gesamtgewicht kg", "A;400;300;200;2;10"), [USUAL]
    ),
    Case(
        "carton and item",
        csv(
            "sku,Item Length mm,Item Width mm,Item Height mm,Item Weight kg,"
            "Carton Length mm,Carton Width mm,Carton Height mm,Carton Weight kg,Cartons",
            "A,100,90,80,0.2,400,300,200,5,2",
        ),
        [USUAL],
    ),
    Case(
        "outer and inner",
        csv(
            "sku,Inner L mm,Inner W mm,Inner H mm,Outer L mm,Outer W mm,Outer H mm,qty,weight kg",
            "A,390,290,190,400,300,200,2,5",
        ),
        [USUAL],
    ),
    Case(
        "cartons and pieces",
        csv("sku,L mm,W mm,H mm,Total pcs,Qty/CTN,CTNS,G.W. (KGS),N.W. (KGS)", "A,400,300,200,48,24,2,5,4"),
        [USUAL],
    ),
    Case(
        "pieces and what a carton holds",
        csv("sku,L mm,W mm,H mm,Qty,Qty per carton,weight kg", "A,400,300,200,48,24,5"),
        asks="counts",
    ),
    Case(
        "pieces and what a carton holds, said",
        csv("sku,L mm,W mm,H mm,Qty,Qty per carton,weight kg", "A,400,300,200,48,24,5"),
        [USUAL],
        options={"counts": "pieces"},
    ),
    Case(
        "pack quantity alone",
        csv("sku,L mm,W mm,H mm,Pack Qty,weight kg", "A,400,300,200,24,5"),
        [(1, (400, 300, 200), 5.0)],
        doubts="",
    ),
    Case("most weight is none", csv("sku,L mm,W mm,H mm,qty,Max weight kg", "A,400,300,200,2,30"), [NO_WEIGHT]),
    Case(
        "capacity is no load on top",
        csv("sku,L mm,W mm,H mm,qty,weight kg,Max load capacity kg", "A,400,300,200,2,5,30"),
        [USUAL],
    ),
    Case(
        "a quantity that is not known",
        csv("sku,L mm,W mm,H mm,Bunnies,weight kg", "A,400,300,200,2,5", "B,400,300,200,7,5"),
        asks="",
        doubts="Bunnies",
    ),
    Case(
        "row numbers are no quantity",
        csv("Pos,sku,L mm,W mm,H mm,weight kg", "1,A,400,300,200,5", "2,B,400,300,200,5"),
        [(1, (400, 300, 200), 5.0)] * 2,
    ),
    Case(
        "ordered and shipped",
        csv("sku,L mm,W mm,H mm,Qty ordered,Qty shipped,weight kg", "A,400,300,200,5,2,5"),
        [USUAL],
    ),
    Case(
        "two quantities",
        csv("sku,L mm,W mm,H mm,Qty A,Qty B,weight kg", "A,400,300,200,5,2,5"),
        asks="",
        doubts="quantity",
    ),
    Case("volume weight", csv("sku,L mm,W mm,H mm,qty,Dim weight kg,Weight kg", "A,400,300,200,2,4.8,5"), [USUAL]),
    Case(
        "pallet sides",
        csv(
            "sku,Pallet length mm,Pallet width mm,Pallet height mm,length mm,width mm,height mm,qty,weight kg",
            "A,1200,800,1500,400,300,200,2,5",
        ),
        [USUAL],
    ),
    Case(
        "stock is no quantity", csv("sku,L mm,W mm,H mm,Stock qty,Order qty,weight kg", "A,400,300,200,99,2,5"), [USUAL]
    ),
]

SHEETS = [
    Case(
        "a title above the header",
        csv(
            "Packing list 4711,,,,,",
            "Customer: Somebody,,,,,",
            "",
            "sku,L mm,W mm,H mm,qty,weight kg",
            "A,400,300,200,2,5",
        ),
        [USUAL],
    ),
    Case("a total at the end", csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", "Total,,,,2,10"), [USUAL]),
    Case(
        "a total and a remark",
        csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", ",,,,,", "Summe,,,,2,10", "printed on Monday"),
        [USUAL],
    ),
    Case(
        "empty rows",
        csv("sku,L mm,W mm,H mm,qty,weight kg", "", "A,400,300,200,2,5", ",,,,,", "B,400,300,200,2,5"),
        [USUAL, USUAL],
    ),
    Case(
        "an order written once",
        csv(
            "order,sku,L mm,W mm,H mm,qty,weight kg",
            "4711,A,400,300,200,2,5",
            ",B,400,300,200,2,5",
            "4712,C,400,300,200,2,5",
        ),
        [USUAL] * 3,
        orders=["4711", "4712"],
    ),
    Case(
        "merged orders",
        excel(
            [
                ["order", "sku", "L mm", "W mm", "H mm", "qty", "weight kg"],
                ["4711", "A", 400, 300, 200, 2, 5],
                [None, "B", 400, 300, 200, 2, 5],
                ["4712", "C", 400, 300, 200, 2, 5],
            ],
            merged=["A2:A3"],
        ),
        [USUAL] * 3,
        orders=["4711", "4712"],
        suffix=".xlsx",
    ),
    Case(
        "a cover sheet",
        excel(
            [["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], ["A", 400, 300, 200, 2, 5]],
            before=[["Report"], ["printed", "on Monday"]],
            active=0,
        ),
        [USUAL],
        suffix=".xlsx",
    ),
    Case(
        "the active sheet",
        excel(
            [["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], ["A", 400, 300, 200, 2, 5]],
            before=[["sku", "L mm", "W mm", "H mm", "qty"], ["old", 1000, 1000, 1000, 9]],
        ),
        [USUAL],
        doubts="Cover",
        suffix=".xlsx",
    ),
    Case(
        "a hidden sheet",
        excel(
            [["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], ["A", 400, 300, 200, 2, 5]],
            before=[["sku", "L mm", "W mm", "H mm", "qty"], ["old", 1000, 1000, 1000, 9]],
            hide_sheet=True,
        ),
        [USUAL],
        suffix=".xlsx",
    ),
    Case(
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
    ),
    Case(
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
    ),
    Case(
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
    ),
    Case(
        "a date in place of an article",
        excel(
            [["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], [datetime.datetime(2026, 3, 1), 400, 300, 200, 2, 5]]
        ),
        [USUAL],
        doubts="date",
        suffix=".xlsx",
    ),
]

FILES = [
    Case("tabs", csv("sku\tL mm\tW mm\tH mm\tqty\tweight kg", "A\t400\t300\t200\t2\t5"), [USUAL], suffix=".tsv"),
    Case("bars", csv("sku|L mm|W mm|H mm|qty|weight kg", "A|400|300|200|2|5"), [USUAL], suffix=".txt"),
    Case(
        "columns of blanks",
        csv("sku     length_mm  width_mm  height_mm  qty  weight_kg", "A       400        300       200        2    5"),
        [USUAL],
        suffix=".txt",
    ),
    Case(
        "Excel's word for the delimiter", csv("sep=;", "sku;L mm;W mm;H mm;qty;weight kg", "A;400;300;200;2;5"), [USUAL]
    ),
    Case(
        "commas in quoted cells",
        csv("sku;L mm;W mm;H mm;qty;weight kg", '"bolt, long, red, new, cheap";400;300;200;2;5'),
        [USUAL],
    ),
    Case(
        "Windows-1252",
        csv("Artikel;Länge mm;Breite mm;Höhe mm;Stück;Gewicht kg", "A;400;300;200;2;5", encoding="cp1252"),
        [USUAL],
    ),
    Case(
        "Windows-1250",
        csv("Kód;Délka mm;Šířka mm;Výška mm;Množství;Hmotnost kg", "A;400;300;200;2;5", encoding="cp1250"),
        [USUAL],
    ),
    Case(
        "Windows-1251",
        csv("Артикул;Длина мм;Ширина мм;Высота мм;Кол-во;Вес кг", "A;400;300;200;2;5", encoding="cp1251"),
        [USUAL],
    ),
    Case(
        "Shift-JIS",
        csv("商品コード,長さ(mm),幅(mm),高さ(mm),数量,重量(kg)", "A,400,300,200,2,5", encoding="cp932"),
        [USUAL],
    ),
    Case(
        "GB18030",
        csv("货号,长度(mm),宽度(mm),高度(mm),数量,重量(kg)", "A,400,300,200,2,5", encoding="gb18030"),
        [USUAL],
    ),
    Case(
        "UTF-8 with a mark", csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", encoding="utf-8-sig"), [USUAL]
    ),
    Case(
        "UTF-16 with a mark",
        csv("sku\tL mm\tW mm\tH mm\tqty\tweight kg", "A\t400\t300\t200\t2\t5", encoding="utf-16"),
        [USUAL],
    ),
    Case(
        "UTF-16 without a mark",
        csv("sku\tL mm\tW mm\tH mm\tqty\tweight kg", "A\t400\t300\t200\t2\t5", encoding="utf-16-le"),
        [USUAL],
    ),
    Case(
        "UTF-16 of the other order",
        csv("sku\tL mm\tW mm\tH mm\tqty\tweight kg", "A\t400\t300\t200\t2\t5", encoding="utf-16-be"),
        [USUAL],
    ),
    Case("carriage returns alone", csv("sku,L mm,W mm,H mm,qty,weight kg", "A,400,300,200,2,5", end="\r"), [USUAL]),
    Case(
        "a workbook called .csv",
        excel([["sku", "L mm", "W mm", "H mm", "qty", "weight kg"], ["A", 400, 300, 200, 2, 5]]),
        [USUAL],
    ),
    Case(
        "records of JSON",
        json.dumps(
            [{"sku": "A", "length_mm": 400, "width_mm": 300, "height_mm": 200, "qty": 2, "weight_kg": 5}]
        ).encode(),
        [USUAL],
        suffix=".json",
    ),
    Case(
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
    ),
    Case(
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
    ),
    Case(
        "a record a line",
        b'{"sku": "A", "length_mm": 400, "width_mm": 300, "height_mm": 200, "qty": 2, "weight_kg": 5}\n' * 2,
        [USUAL, USUAL],
        suffix=".jsonl",
    ),
    Case(
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
    ),
    Case(
        "the OR-Library",
        b" 1\n 1 2502505\n 587 233 220\n 2\n 1 40 0 30 0 20 1 2\n 2 40 1 30 0 20 1 2\n",
        [NO_WEIGHT, NO_WEIGHT],
        options={"unit": "cm"},
        suffix=".txt",
    ),
    Case(
        "three numbers a line",
        b"400 300 200\n400 300 200\n",
        [(1, (400, 300, 200), None)] * 2,
        options={"unit": "mm"},
        suffix=".txt",
    ),
]
CASES = [*NUMBERS, *UNITS, *HEADERS, *WHICH, *SHEETS, *FILES]
