"""`index.html`: all pallets of a plan, its other files, and what is left out."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchrl_gpu.palletizing.page import PlanSummary
from torchrl_gpu.palletizing.sheets import LoadedSheets, count_words, pallets_of, reason_lines, short

_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 1em 1.5em; color: #2b333d; background: #fff; max-width: 60em }
h1 { font-size: 1.3em; margin: 0 0 .2em } h2 { font-size: 1.1em; margin: 1.2em 0 .3em } a { color: #1a5fa8 }
table { border-collapse: collapse; margin-top: .8em }
td, th { padding: .3em .7em; text-align: right; vertical-align: top }
td:first-child, th:first-child { text-align: left; padding-left: 0; overflow-wrap: anywhere; min-width: 5em }
td { border-top: 1px solid #e3e7ec; white-space: nowrap } td:first-child { white-space: normal } th { font-weight: 600 }
li { overflow-wrap: anywhere } ul { padding-left: 1.2em }
@media (max-width: 600px) { body { margin: .8em } td, th { padding: .3em } table { width: 100% } }
"""
_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<title>Pallets</title><style>{_STYLE}</style>"
)
# Other files of a plan, and what they are for.
_FILES = {
    "plan.pdf": "to print: a sheet for each layer",
    "plan.xlsx": "a workbook",
    "plan.csv": "a table",
    "plan.json": "data",
}


def write_index(folder: Path, summary: PlanSummary, pages: Sequence[str]) -> None:
    """Write the page that opens all others.

    Args:
        folder: Of the plan, whose other files are there.
        summary: The plan.
        pages: Names of the files of the pallets, by order and number.
    """
    pallets = pallets_of(summary)
    body = [f"<h1>Pallets</h1><div>{html.escape(count_words(summary, pallets))}</div>"]
    links = [_link(name, name) + f" ({words})" for name, words in _FILES.items() if (folder / name).exists()]
    body.append(f"<div>Files: {', '.join(links)}</div>")
    if pallets:
        body.append(_table(summary, pallets, pages))
    if summary["left_out"]:
        lines = [f"<li>{html.escape(line)}</li>" for line in reason_lines(summary["left_out"])]
        body.append(f"<h2>Left out</h2><ul>{''.join(lines)}</ul>")
    text = "\n".join([_HEAD, *body])
    (folder / "index.html").write_text(f"{text}\n", encoding="utf-8")


def _table(summary: PlanSummary, pallets: Sequence[LoadedSheets], pages: Sequence[str]) -> str:
    headings = ["order", "pallet", "boxes", "kg", f"height, {html.escape(summary['unit'])}"]
    if "simulation" in summary:
        headings.append("simulation")
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    rows = []
    for pallet, page in zip(pallets, pages, strict=True):
        cells = "".join(f"<td>{cell}</td>" for cell in _cells(pallet, page))
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cells(pallet: LoadedSheets, page: str) -> Iterator[str]:
    """Cells of a pallet's row, as HTML."""
    # An order is named once.
    yield html.escape(pallet.order) if pallet.number == 1 else ""
    yield _link(page, f"{pallet.number} of {pallet.of}")
    yield str(len(pallet.boxes))
    yield pallet.kg_words(0.0)
    yield short(pallet.height)
    if pallet.fallen is not None:
        yield pallet.standing_words()


def _link(name: str, words: str) -> str:
    return f'<a href="{html.escape(name)}">{html.escape(words)}</a>'
