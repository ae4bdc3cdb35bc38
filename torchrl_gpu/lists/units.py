"""Units of length and of mass by the words for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torchrl_gpu.lists.words import fold, split_phrases

# In millimetres, and in kilograms, by the name that plans and options use.
LENGTHS = {"mm": 1.0, "cm": 10.0, "dm": 100.0, "m": 1000.0, "in": 25.4, "ft": 304.8, "yd": 914.4}
WEIGHTS = {"kg": 1.0, "g": 1e-3, "mg": 1e-6, "t": 1e3, "lb": 0.45359237, "oz": 0.028349523125}
# "ton" is not here: it is a metric, a short or a long one.
_LENGTH_WORDS = {
    "mm": "mm, mmt, millimeter, millimeters, millimetre, millimetres, milimetros, мм, 毫米, 公厘, 公釐, ミリ, 粍",
    "cm": "cm, cms, cmt, centimeter, centimeters, centimetre, centimetres, zentimeter, см, 厘米, 公分, センチ",
    "dm": "dm, dmt, decimeter, dezimeter",
    "m": "m, mtr, meter, meters, metre, metres, metros, metri, м, 米, 公尺, メートル",
    "in": 'in, ins, inh, inch, inches, ", zoll, pouce, pouces, pulgada, pulgadas, pollici, polegadas, 英寸, インチ',
    "ft": "ft, foot, feet, fuss, pieds, pies",
    "yd": "yd, yard, yards",
}
_WEIGHT_WORDS = {
    "kg": (
        "kg, kgs, kgm, kilo, kilos, kilogram, kilograms, kilogramme, kilogramm, kilogramos, "
        "кг, 公斤, 千克, キロ, キログラム"
    ),
    "g": "g, gr, gm, gms, grm, gram, grams, gramme, grammes, gramm, gramos, grammi, г, гр, 克, グラム",
    "mg": "mg",
    "t": "t, tne, tonne, tonnes, тонн",
    "lb": "lb, lbs, lbr, pound, pounds, libras, libbre, livres, 磅, ポンド",
    "oz": "oz, ozs, onz, ounce, ounces, unzen, onzas, 盎司, オンス",
}


def _by_word(words: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for unit, names in words.items():
        for name in split_phrases(names):
            found[fold(name)] = unit
    return found


LENGTH_BY_WORD = _by_word(_LENGTH_WORDS)
WEIGHT_BY_WORD = _by_word(_WEIGHT_WORDS)
# Letters of the longest word.
_MOST_LETTERS = max(map(len, (*LENGTH_BY_WORD, *WEIGHT_BY_WORD)))
# One-letter units that may also be an initial: "t" and "g" count behind another word alone.
_INITIALS = ("m", "g", "t", "in")
# Behind these words "in" is a preposition.
_PLACES = (
    *("package", "packaging", "packing", "pack", "box", "carton", "case", "verpackung", "karton", "stock", "warehouse"),
    *("transit", "transport", "total", "all", "english", "brackets", "use", "the", "our", "this", "each", "order"),
)


def unit_in(header: Collection[str], by_word: Mapping[str, str]) -> str:
    """Return the unit that a header's words end with, "" for none.

    "Length in mm" is in millimetres: the last word for a unit counts.
    """
    words = list(header)
    for at in reversed(range(len(words))):
        unit = by_word.get(words[at])
        if unit is None:
            continue
        if words[at] in _INITIALS and len(words) > 1 and at == 0:
            continue
        # "Length in package" is no length in inches.
        if words[at] == "in" and words[at + 1 : at + 2] and words[at + 1] in _PLACES:
            continue
        return unit
    # Chinese and Japanese write the unit without a space.
    for word in words:
        for name, unit in by_word.items():
            if len(name) > 1 and not name.isascii() and word.endswith(name) and word != name:
                return unit
    return ""


def unit_of_word(word: str, by_word: Mapping[str, str]) -> str:
    """Return the unit that a word is the name of, "" for none."""
    word = word.strip().rstrip(".")
    # Most cells are numbers or long texts, and a list has millions of them.
    if not word or len(word) > _MOST_LETTERS or word[0].isdigit():
        return ""
    return by_word.get(fold(word), "")
