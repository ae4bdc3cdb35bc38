"""What the columns of a list may be: the table that a new column is added to.

A column is one row of `COLUMNS`: its name, its kind, and the words for it, by language. Everything else follows: its
header is found, its cells are read and checked, `BoxList.values` holds it, the table of what was read shows it, and the
plan carries it along.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torchrl_gpu.lists.words import split_phrases

# "length" and "mass" have units. "unit" says the units of a row's other cells, and "sides" is all three in one cell.
Kind = Literal["length", "mass", "count", "flag", "text", "unit", "sides"]
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "ru", "ja", "zh")


@dataclass(frozen=True, eq=False)
class Column:
    """What a column of a list may be.

    Attributes:
        name: By which options and `BoxList.values` know it.
        kind: What its cells hold.
        words: Headers by language, between commas, the best first; a word of one letter counts as the whole header
            alone.
        never: Words, between commas, that make a header another column: "max weight" is no box's weight.
        default: Value of an empty cell and of a list without the column.
        positive: Whether 0 is a fault, for masses.
    """

    name: str
    kind: Kind
    words: Mapping[str, str]
    never: str = ""
    default: float | str = ""
    positive: bool = False

    @cached_property
    def all_words(self) -> list[str]:
        """The words of all languages, in the order in which they are preferred."""
        ranked: dict[str, int] = {}
        for words in self.words.values():
            for rank, word in enumerate(split_phrases(words)):
                ranked[word] = min(rank, ranked.get(word, rank))
        return sorted(ranked, key=lambda word: ranked[word])


SIDES = ("length", "width", "height")
# What boxes stand on: its sides, its weight and its number are none of a box.
_PALLETS = (
    "pallet, pallets, palette, paletten, palet, palets, paleta, palete, paletes, palety, palecie, bancale, bancali, "
    "pedana, pedane, паллет, паллета, паллеты, паллете, поддон, поддона, поддоне, パレット, 托盘, 栈板"
)
# Of other things than a box, or a limit.
_OF_OTHER_THINGS = (
    f"{_PALLETS}, container, truck, bin, shelf, stack, stacking, stapel, cable, lead, limit, "
    "class, code, no, number, id, name, date, weight, load, gewicht"
)
_LENGTH = Column(
    "length",
    "length",
    {
        "en": "length, len, lng, long, l, lenght, dim 1, dim1, dimension 1, side 1, side a, x",
        "de": "länge, laenge, lange seite, lg",
        "fr": "longueur, long, lg",
        "es": "largo, longitud",
        "it": "lunghezza, lungh, lung",
        "pt": "comprimento, compr, comp",
        "nl": "lengte",
        "pl": "długość, dl, dług",
        "cs": "délka, dél",
        "ru": "длина, дл, д",
        "ja": "長さ, 縦, 長辺, タテ",
        "zh": "长度, 长, 長, 長度",
    },
    never=_OF_OTHER_THINGS,
)
_WIDTH = Column(
    "width",
    "length",
    {
        "en": "width, wid, wide, wdth, w, widht, dim 2, dim2, dimension 2, side 2, side b, breadth, y",
        "de": "breite, b, br",
        "fr": "largeur, larg",
        "es": "ancho, anchura",
        "it": "larghezza, largh, larg",
        "pt": "largura, larg",
        "nl": "breedte",
        "pl": "szerokość, szer",
        "cs": "šířka, šíř",
        "ru": "ширина, шир, ш",
        "ja": "幅, 横, 短辺, ヨコ",
        "zh": "宽度, 宽, 寬, 寬度",
    },
    never=_OF_OTHER_THINGS,
)
_HEIGHT = Column(
    "height",
    "length",
    {
        "en": "height, ht, hgt, hght, high, h, heigth, hight, dim 3, dim3, dimension 3, side 3, side c, z",
        "de": "höhe, hoehe",
        "fr": "hauteur, haut",
        "es": "alto, altura",
        "it": "altezza, alt",
        "pt": "altura, alt",
        "nl": "hoogte",
        "pl": "wysokość, wys",
        "cs": "výška, výš",
        "ru": "высота, выс, в",
        "ja": "高さ, 高",
        "zh": "高度, 高",
    },
    never=_OF_OTHER_THINGS,
)
# Length beside a width and a height, height beside a length and a width.
_DEPTH = Column(
    "depth",
    "length",
    {
        "en": "depth, dpth, dep, thickness, d",
        "de": "tiefe, t, dicke, stärke",
        "fr": "profondeur, prof, épaisseur, p",
        "es": "profundidad, fondo, prof, grosor, espesor, p",
        "it": "profondità, prof, spessore, p",
        "pt": "profundidade, prof, espessura, p",
        "nl": "diepte, dikte",
        "pl": "głębokość, głęb, gł, grubość",
        "cs": "hloubka, tloušťka",
        "ru": "глубина, толщина",
        "ja": "奥行, 奥行き, 厚さ, 厚み",
        "zh": "深度, 深, 厚度, 厚",
    },
    never=_OF_OTHER_THINGS,
)
_DIMENSIONS = Column(
    "dimensions",
    "sides",
    {
        "en": (
            "dimensions, dimension, dims, dim, lxwxh, l x w x h, l w h, lwh, size, measurements, measurement, "
            "measure, meas, w x d x h, wxdxh"
        ),
        "de": "abmessungen, abmessung, maße, masse lxbxh, lxbxh, l x b x h, bxtxh, größe, maß",
        "fr": "dimensions, dimension, taille, mesures",
        "es": "dimensiones, medidas, tamaño",
        "it": "dimensioni, misure, misura, formato",
        "pt": "dimensões, medidas, tamanho",
        "nl": "afmetingen, afmeting, maten, formaat",
        "pl": "wymiary, rozmiar, wymiar",
        "cs": "rozměry, rozměr, velikost",
        "ru": "габариты, размеры, размер, дхшхв",
        "ja": "寸法, サイズ, 外寸, 三辺",
        "zh": "尺寸, 规格, 外箱尺寸, 長寬高, 长宽高, 大小",
    },
    never="pallet, palette, container, weight, pack size, shoe, order",
)
_QUANTITY = Column(
    "quantity",
    "count",
    {
        "en": "quantity, qty, q ty, qnty, qtty, copies, count, amount, pieces, pcs, q, n",
        "de": "menge, anzahl, stückzahl, stück, stueck, stk, anz",
        "fr": "quantité, qté, qte, nombre, nbre, nb",
        "es": "cantidad, cant, ctd, unidades, uds",
        "it": "quantità, qta, q tà, pezzi, pz",
        "pt": "quantidade, qtd, qtde, quant, unidades",
        "nl": "aantal, hoeveelheid, stuks",
        "pl": "ilość, il, liczba, szt, sztuk",
        "cs": "množství, počet, ks, kusů",
        "ru": "количество, кол во, колво, кол, шт",
        "ja": "数量, 出荷数, 出庫数, 受注数, 注文数, ピック数, 個数",
        "zh": "数量, 數量, 件数, 件數",
    },
    never=(
        "per, pro, par, por, je, na, pack, inner, moq, min, minimum, max, maximum, stock, available, bestand, "
        "lager, hand, price, weight, gewicht, volume, amount due, discount, account, layer, layers, dozen, "
        "dozens, dutzend, dz, pairs, m2, m3, each, 每, "
        "入数, 入り数, 装箱数, order no, usd, eur, backorder, "
        f"{_PALLETS}"
    ),
    default=1.0,
)
# Words of a quantity that counts boxes; they go before any other.
BOX_WORDS = (
    "ctns, ctn, cartons, carton, boxes, cases, packages, pkgs, parcels, handling units, colli, kolli, collo, kollo, "
    "packstücke, "
    "packstuecke, kartons, kisten, pakete, kartonanzahl, colis, caisses, bultos, cajas, scatole, cartoni, "
    "caixas, volumes, cs, cse, kartony, kartonów, opakowania, paczki, krabice, krabic, balíky, коробок, коробки, "
    "мест, 箱数, 箱數, ケース数, 個口, 梱包数"
)
# Words of a quantity that counts what is in the boxes, where a list counts both.
PIECE_WORDS = (
    "pieces, piece, pcs, pc, pce, units, ea, each, eaches, singles, stück, stueck, stk, uvc, unidades, uds, pezzi, pz, "
    "stuks, szt, ks, шт, 个, 個, 只, 支, バラ, バラ数"
)
# What a quantity may count and a pallet does not hold one by one.
OTHER_COUNTS = (
    "pal, ep, eup, europalette, europaletten, pallet, pallets, plt, palette, paletten, palety, layer, layers, "
    "lage, lagen, dz, doz, dozen, pr, pair, pairs"
)
_PER_BOX = Column(
    "per_box",
    "count",
    {
        "en": (
            "qty per carton, quantity per carton, pcs per carton, pieces per carton, units per carton, "
            "qty per case, units per case, pcs per case, qty per box, pcs per box, units per box, qty per ctn, "
            "pcs per ctn, units per ctn, qty per cs, pcs per cs, units per cs, pack qty, pack quantity, case pack, "
            "pack size, case qty, qty ctn, pcs ctn, units case, inner qty, case contents, carton contents, "
            "per carton, per case, per box, per ctn"
        ),
        "de": "stück pro karton, stück je karton, menge pro karton, menge je karton, inhalt, ve, stk ve, vpe",
        "fr": "quantité par carton, qté par carton, pièces par carton, pcb, par colis",
        "es": "unidades por caja, cantidad por caja, uds por caja",
        "it": "pezzi per scatola, pezzi per cartone, quantità per collo, pz per cartone",
        "pt": "unidades por caixa, quantidade por caixa, qtd por caixa",
        "nl": "aantal per doos, stuks per doos",
        "pl": "ilość w kartonie, szt w kartonie, ilość w opakowaniu",
        "cs": "kusů v balení, ks v balení, ks v kartonu",
        "ru": "в коробке, шт в коробке, количество в коробке, штук в упаковке",
        "ja": "入数, 入り数, ケース入数",
        "zh": "每箱数量, 装箱数, 装箱量, 每箱, 箱入数",
    },
    never="weight, price, kg, volume, cbm, nw, gw, net, gross, netto, brutto, gewicht, peso, poids, waga",
    default=math.nan,
)
# What the packing weighs by itself.
PACKING_WEIGHT_WORDS = (
    "packaging weight, packing weight, packaging wt, tare, tara, verpackungsgewicht, verpackungs gewicht, "
    "gewicht verpackung, leergewicht, poids emballage, peso embalaje, peso imballo, peso embalagem, waga opakowania, "
    "вес упаковки, вес тары, 包装重量, 皮重, 風袋"
)
_NOT_A_BOX = (
    f"max, maximum, maximal, most, limit, capacity, load, min, minimum, {_PALLETS}, class, code, top, "
    "stack, stacking, price, preis, layer, traglast, tragkraft, nośność, l, b, h, truck, "
    # What is charged by its volume weighs something else.
    "volume, volumen, volumetric, volumétrique, volumétrico, volumetrica, wolumetryczna, gabarytowa, objemová, "
    "объемный, dim, dimensional, cubed, cubic, cubado, cubico, chargeable, billable, billed, rated, taxable, taxé, "
    "tassabile, frachtpfl, frachtpflichtig, frachtpflichtiges, 体积, 体積, 容積, 材积, 计费, 運賃, "
    f"leer, empty, vide, vuoto, vacío, verpackungs, {PACKING_WEIGHT_WORDS}, "
    # Of a customer's whole order.
    "order, shipment, consignment, delivery, auftrag, auftrags, sendung, sendungs, lieferung, lieferungs, commande, "
    "envoi, pedido, ordine, spedizione, zending, przesyłki, zamówienia, zásilky, objednávky, заказа, отправления"
)
_WEIGHT = Column(
    "weight",
    "mass",
    {
        "en": "gross weight, gross wt, gw, tgw, weight, wt, wgt, mass, gross",
        "de": "bruttogewicht, brutto gewicht, gewicht, masse, brutto, gew",
        "fr": "poids brut, masse brute, poids, masse, pds",
        "es": "peso bruto, peso, masa",
        "it": "peso lordo, peso, massa",
        "pt": "peso bruto, peso, massa",
        "nl": "brutogewicht, bruto gewicht, gewicht, massa",
        "pl": "waga brutto, masa brutto, waga, masa",
        "cs": "hmotnost brutto, hrubá hmotnost, hmotnost, váha",
        "ru": "вес брутто, масса брутто, вес, масса",
        "ja": "総重量, 重量, 重さ, 質量",
        "zh": "毛重, 重量, 质量, 重",
    },
    never=_NOT_A_BOX,
    default=math.nan,
    positive=True,
)
NET_WORDS = "net, netto, net weight, nw, neto, netta, netto gewicht, нетто, 净重, 淨重, 正味"
_MAX_LOAD = Column(
    "max_load",
    "mass",
    {
        "en": (
            "max load on top, max weight on top, load on top, top load, max stack weight, stack weight, "
            "stacking weight, max stacking weight, stacking load, max stack load, max load, maximum load, "
            "most load"
        ),
        "de": "auflast, stapellast, max auflast, stapeldruck",
        "fr": "charge max, charge maximale, charge sur le dessus, charge de gerbage",
        "es": "carga máxima, carga de apilado, carga encima",
        "it": "carico massimo, carico sovrapponibile, carico sopra",
        "pt": "carga máxima, carga de empilhamento",
        "nl": "stapelbelasting, max belasting, topbelasting",
        "pl": "nacisk, max obciążenie, obciążenie",
        "cs": "stohovací zatížení, max zatížení",
        "ru": "нагрузка сверху, допустимая нагрузка, макс нагрузка",
        "ja": "耐荷重, 積載荷重, 上積み荷重",
        "zh": "承重, 堆码承重, 最大承重",
    },
    never="capacity, pallet, palette, truck, axle, layers",
    default=math.inf,
)
_FRAGILE = Column(
    "fragile",
    "flag",
    {
        "en": (
            "fragile, non stackable, not stackable, do not stack, unstackable, no stacking, top only, on top only, "
            "top layer only, top load only"
        ),
        "de": "zerbrechlich, nicht stapelbar, fragil, nur oben, nur obenauf",
        "fr": "fragile, non gerbable, ne pas gerber, dessus uniquement",
        "es": "frágil, no apilable, no apilar, solo arriba, solo encima",
        "it": "fragile, non sovrapponibile, non impilabile, solo sopra",
        "pt": "frágil, não empilhável, não empilhar, só em cima, somente topo",
        "nl": "breekbaar, niet stapelbaar, alleen bovenop",
        "pl": "kruche, nie piętrować, tylko na górze",
        "cs": "křehké, nestohovatelné, nestohovat, jen nahoře",
        "ru": "хрупкое, хрупкий, не штабелировать, только сверху",
        "ja": "われもの, 割れ物, 段積み禁止, 積重ね禁止, 最上段のみ",
        "zh": "易碎, 不可堆叠, 禁止堆码, 仅限顶层",
    },
    default=0.0,
)
_BOTTOM_ONLY = Column(
    "bottom_only",
    "flag",
    {
        "en": "bottom only, on bottom only, bottom layer only, floor only, on floor only, must be on floor",
        "de": "nur unten, nur am boden, nur bodenlage",
        "fr": "au sol uniquement, dessous uniquement, base uniquement",
        "es": "solo abajo, solo en el suelo, solo base",
        "it": "solo sotto, solo a terra, solo base",
        "pt": "só embaixo, somente base, só no chão",
        "nl": "alleen onderop, alleen op de bodem",
        "pl": "tylko na dole, tylko na spodzie",
        "cs": "jen dole, jen na dně",
        "ru": "только снизу, только на дно, только внизу",
        "ja": "最下段のみ, 下段のみ",
        "zh": "仅限底层, 只能放底层",
    },
    default=0.0,
)
# The other way round: "no" is a box on which nothing may lie.
_STACKABLE = Column(
    "stackable",
    "flag",
    {
        "en": "stackable, can be stacked",
        "de": "stapelbar, stapelfähig",
        "fr": "gerbable, empilable",
        "es": "apilable",
        "it": "sovrapponibile, impilabile",
        "pt": "empilhável",
        "nl": "stapelbaar",
        "pl": "piętrowalne, sztaplowalne",
        "cs": "stohovatelné",
        "ru": "штабелируемый, можно штабелировать",
        "ja": "段積み可, 積重ね可",
        "zh": "可堆叠, 可堆码",
    },
    never="non, not, no, nicht, ne, nie, niet, não, nao, не, 不, max, layers",
    default=1.0,
)
_UPRIGHT = Column(
    "upright",
    "flag",
    {
        "en": "this side up, side up, this way up, upright, do not tip, keep upright, no tilt",
        "de": "nicht kippen, aufrecht, diese seite oben",
        "fr": "ce côté en haut, ne pas basculer, debout",
        "es": "este lado arriba, no volcar",
        "it": "questo lato su, non capovolgere",
        "pt": "este lado para cima, não tombar",
        "nl": "deze kant boven, niet kantelen",
        "pl": "nie przewracać, tą stroną do góry",
        "cs": "neklopit, touto stranou nahoru",
        "ru": "не кантовать, этой стороной вверх",
        "ja": "天地無用, 上向き",
        "zh": "向上, 此面向上, 此面朝上",
    },
    default=0.0,
)
_ORDER = Column(
    "order",
    "text",
    {
        "en": (
            "order, po number, order number, order no, order id, po, po no, sales order, so number, so no, ord no, "
            "order ref, delivery, "
            "delivery no, shipment, shipment id, consignment, pallet, pallet no, so #, sales document, document no, "
            "document number, doc no, pick ticket, pick list, invoice, load id, load no, doc"
        ),
        "de": (
            "auftrag, auftragsnummer, auftragsnr, auftrags nr, auftr nr, kundenauftrag, bestellung, bestellnummer, "
            "bestell nr, best nr, lieferschein, lieferung, palette, sendung, sendungsnummer, sendungsnr, beleg, "
            "belegnummer, belegnr, kommission, kommissionsnummer"
        ),
        "fr": "commande, numéro de commande, n de commande, no commande, cde, n cde, cmde, livraison, n bl",
        "es": "pedido, número de pedido, n pedido, orden, entrega, albarán",
        "it": "ordine, numero ordine, n ordine, consegna, ddt, bolla",
        "pt": "pedido, número do pedido, encomenda, ordem, entrega, nota fiscal, nf",
        "nl": "order, ordernummer, ordernr, bestelling, bestelnummer, bestelnr, levering, pakbon",
        "pl": "zamówienie, numer zamówienia, nr zamówienia, nr zam, zlecenie, nr zlecenia, dostawa, nr wz",
        "cs": "objednávka, číslo objednávky, č objednávky, zakázka, číslo zakázky, dodávka, dodací list",
        "ru": "заказ, номер заказа, № заказа, поставка, накладная, № накладной",
        "ja": "注文番号, 受注番号, 注文, 受注, 出荷番号, 出荷指示番号, 伝票番号",
        "zh": "订单, 订单号, 訂單, 單號, 单号, 发货单, 送货单, 出库单",
    },
    never=(
        "date, datum, data, fecha, time, line, position, pos, status, type, value, total, volume, price, qty, "
        "quantity, menge, cantidad, quantità, quantité, weight, länge, length, width, height, breite, höhe, "
        "ilość, količество, количество, 日, 日期, 数量, gewicht, country, city, address, charge, per, "
        "cases, cartons, ctns, boxes, units, pieces, pcs, "
        # A sequence of boxes is no customer's order.
        "sort order, pick order, picking order, load order, loading order, unloading order, stacking order, "
        "packing order, sequence, item, items, terms, method, mode, carrier, service, priority, window"
    ),
)
_ARTICLE = Column(
    "article",
    "text",
    {
        "en": (
            "article, sku, article number, item number, item no, item code, product code, part number, material, "
            "item, product, part no, ean, gtin, id, name, description"
        ),
        "de": "artikel, artikelnummer, artikelnr, artnr, art nr, materialnummer, bezeichnung",
        "fr": "article, référence, réf, code article, désignation, produit",
        "es": "artículo, referencia, código, producto, descripción, ref",
        "it": "articolo, codice, codice articolo, prodotto, descrizione",
        "pt": "artigo, código, referência, produto, descrição",
        "nl": "artikel, artikelnummer, omschrijving, product",
        "pl": "artykuł, indeks, kod, produkt, nazwa, towar",
        "cs": "artikl, kód, zboží, výrobek, název, položka",
        "ru": "артикул, код, товар, наименование, номенклатура",
        "ja": "商品コード, 品番, 商品, 品名, 商品名",
        "zh": "商品code, 货号, 貨號, 商品, 品名, 物料, 产品, 型号",
    },
    never=(
        "qty, quantity, date, length, width, height, weight, price, group, category, type, länge, breite, "
        "höhe, gewicht, volume, count, menge"
    ),
)
# Which of two units a column holds is decided by its cells: "ST" and "PCE" are neither.
_UNIT = Column(
    "unit",
    "unit",
    {
        "en": "unit, units, uom, dim unit, dimension unit, length unit, weight unit, wt unit",
        "de": "einheit, maßeinheit, gewichtseinheit, längeneinheit, me, eh, ge, le",
        "fr": "unité, unité de mesure, unité de poids",
        "es": "unidad, unidad de medida, um",
        "it": "unità, unità di misura, um",
        "pt": "unidade, unidade de medida",
        "nl": "eenheid, maateenheid",
        "pl": "jednostka, jm, jedn",
        "cs": "jednotka, mj",
        "ru": "единица, ед изм, единица измерения",
        "ja": "単位",
        "zh": "单位, 單位",
    },
    never="price, cost, weight kg, preis, prix, precio, per",
)
# A header goes to the first column that takes it: "product temperature" to a column of temperatures before `_ARTICLE`,
# which has the word "product". A program may append columns of its own.
COLUMNS = [
    *(_LENGTH, _WIDTH, _HEIGHT, _DEPTH, _DIMENSIONS),
    *(_MAX_LOAD, _FRAGILE, _STACKABLE, _BOTTOM_ONLY, _UPRIGHT, _UNIT, _PER_BOX, _QUANTITY, _WEIGHT, _ORDER, _ARTICLE),
]

# -- which of several ------------------------------------------------------------------------------------------------

# What is handled is the outermost packing: its sides and its weight go before those of what is inside.
OUTER_WORDS = (
    "carton, ctn, case, box, outer, master, shipper, package, packaged, packed, packing, parcel, shipping, export, "
    "karton, umkarton, paket, packstück, packstueck, kiste, verpackung, außen, aussen, colis, caisse, "
    "emballage, caja, bulto, embalaje, "
    "scatola, collo, imballo, cartone, caixa, embalagem, doos, colli, opakowanie, opakowania, kartonu, "
    "karton, krabice, balení, obalu, коробка, коробки, упаковка, упаковки, места, "
    "外箱, 箱, ケース, 梱包, 外装, 外寸, 包装"
)
# As a box goes out: "Ship L". Elsewhere the word says where to, or how many.
PACKED_WORDS = "ship"
# Boxes within a box.
INNER_BOX_WORDS = "inner, innen, innenkarton, einzelkarton, gift, retail, colour, color, 内箱, 内盒, 中箱"
INNER_WORDS = (
    "item, product, inner, article, unpacked, innen, artikel, produkt, produit, producto, articolo, "
    "prodotto, produto, produktu, товара, изделия, 内箱, 内盒, 単品, 商品, 产品, 内寸"
)
# Before a word for a packing, these make a size or a weight that of the goods alone.
WITHOUT_WORDS = "without, excl, excluding, w o, ohne, exkl, sans, hors, sin, senza, sem, zonder, bez, без, 不含, 含まず"
GROSS_WORDS = "gross, brutto, bruto, brut, brute, lordo, gw, tgw, hruba, брутто, 毛重"
# Of one box, and of all boxes of a row.
ONE_WORDS = (
    "unit, single, each, ea, per, pro, je, par, por, einzel, piece, unitario, unitaire, unitario, stuck, "
    "1, 单, 單, 单件, 単, 一箱, 每箱, за ед, szt"
)
TOTAL_WORDS = (
    "total, ttl, totale, totaal, tot, tgw, line, row, all, overall, combined, aggregate, x qty, x quantity, "
    "sum, gesamt, summe, ges, extended, ext, subtotal, "
    "positions, zeilen, ligne, cumulé, línea, riga, complessivo, conjunto, całkowita, pozycji, суммарный, "
    "всего, общий, "
    "общая, итого, celkem, celkova, razem, lacznie, laczna, 合計, 小計, 量計, 总, 總, 合计"
)
MOST_WORDS = "max, maximum, maximal, most"
# A header that ends with one of these names the unit of another column: "length unit", but not "unit length".
UNIT_WORDS = "unit, units, uom, einheit, unite, unidad, unidade, unita, eenheid, jednostka"
# Between a count and what holds it: "pcs per carton", "szt w opak".
PER_WORDS = "per, pro, je, par, por, x, в, w, v"
# What holds pieces, by words that alone name no box.
SHORT_BOX_WORDS = "ve, vpe, kor, кор, уп, упак, kar, kart, cart, cx, cj, opak, bal, doos, outer, shipper, gebinde"
# What may be counted in a box, beside pieces.
CONTENT_WORDS = (
    "einheiten, unid, piezas, peças, pièces, inner, inners, артикулов, st, pc, qty, quantity, menge, nb, qtd, "
    "qtde, cant, "
    "cantidad, qté, quantité, quantità, aantal, ilość, množství, počet, кол, кол во"
)
# Of several quantities the one that leaves the warehouse.
SHIPPED_WORDS = (
    "shipped, picked, packed, delivered, pick, ship, geliefert, kommissioniert, liefer, ist, livrée, expédiée, "
    "préparée, servida, enviada, entregada, evasa, spedita, atendida, expedida, geleverd, verzonden, wydana, wysłana, "
    "dodané, expedované, vyskladněné, отгружено, отгруженное, 出荷, 出庫, 实发, 发货"
)
# Columns that are not read and whose numbers are amounts.
AMOUNT_WORDS = (
    "price, cost, amount, value, volume, vol, cbm, m3, area, preis, betrag, wert, volumen, prix, montant, precio, "
    "importe, prezzo, importo, preço, valor, prijs, bedrag, cena, wartość, hodnota, цена, сумма, объем, 価格, 金額, "
    "体積, 单价, 金额, 体积, eur, euro, usd, gbp, chf, pln, czk, rub, brl, cny, rmb, jpy"
)
# Columns of volumes, which show whether the sides are right, and their units, in litres.
VOLUME_WORDS = (
    "volume, vol, cbm, cube, cubage, volumen, volumes, cubicaje, objem, objetosc, объем, 体積, 体积, 材积, "
    "才数, m3, cuft, 立方"
)
VOLUME_UNITS = {
    "m3, cbm, m 3, cubic meters, cubic metres, 立方米": 1000.0,
    "dm3, l, ltr, litre, litres, liter, liters": 1.0,
    "cm3, ccm": 0.001,
    "cft, ft3, cuft, cu ft, cubic feet": 28.316846592,
    "in3, cu in, cubic inches": 0.016387064,
}
# Columns of classes, whose small whole numbers are no quantity.
CLASS_WORDS = (
    "priority, prio, class, klasse, classe, clase, level, zone, status, type, typ, tipo, group, gruppe, color, colour, "
    "stackability, stapelbarkeit, stapelfaktor, gerbabilite, temperature"
)
# Row numbers, which are no quantity.
ROW_NUMBER_WORDS = "no, nr, id, pos, position, line, row, index, zeile, ligne, linea, lp, №, #, 序号"
