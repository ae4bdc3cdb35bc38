"""Decoding of text mesh files, whatever program wrote them."""

from __future__ import annotations

import codecs

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def decoded(data: bytes) -> str:
    """The text of a file without a byte order mark, its lines ended by line feeds."""
    mark = next((each for each in _MARKS if data.startswith(each)), b"")
    text = data[len(mark) :].decode(_MARKS.get(mark, "utf-8"), errors="replace")  # names may be in any encoding
    return text.replace("\r\n", "\n").replace("\r", "\n")
