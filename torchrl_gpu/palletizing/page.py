"""Pages of loaded pallets, each one file that opens without a network.

A page turns in 3D and goes box by box.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter, defaultdict
from importlib.resources import files
from pathlib import Path
from typing import NotRequired, TypedDict

# Plain values by name: a box of a plan, a pallet, or what is left out.
Row = dict[str, object]

# Place of the data in the template.
_DATA = "/*DATA*/"
_STYLE = "body{font:16px sans-serif;margin:2em}"
_VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
_HEAD = f"<!doctype html><meta charset=utf-8>{_VIEWPORT}<title>Pallets</title><style>{_STYLE}</style>"


class PalletVerdict(TypedDict):
    """Verdict of the simulation on a pallet.

    Attributes:
        order, pallet: Which pallet it is.
        stands: Share of the boxes that stay in place.
        fallen: Sequence numbers of the others, from 1.
    """

    order: str
    pallet: int
    stands: float
    fallen: list[int]


class PlanSummary(TypedDict):
    """What `plan.json` holds: the rows of `PalletPlans`, by what they are."""

    unit: str
    pallet: Row
    orders: list[Row]
    boxes: list[Row]
    left_out: list[Row]
    simulation: NotRequired[list[PalletVerdict]]


def write_pages(folder: Path, summary: PlanSummary) -> None:
    """Write a page for every pallet of a plan, and `index.html`."""
    template = files("torchrl_gpu.palletizing").joinpath("page.html").read_text(encoding="utf-8")
    boxes: dict[tuple[object, object], list[Row]] = defaultdict(list)
    for box in summary["boxes"]:
        boxes[box["order"], box["pallet"]].append(box)
    verdicts: dict[tuple[object, object], PalletVerdict] = {}
    for each in summary.get("simulation", []):
        verdicts[each["order"], each["pallet"]] = each
    # An earlier plan may have left pages.
    for stale in folder.glob("pallet-[0-9][0-9][0-9][0-9]-*.html"):
        stale.unlink()
    of_order = Counter(order for order, _ in boxes)
    links = []
    for number, ((order, pallet), rows) in enumerate(boxes.items(), 1):
        verdict = verdicts.get((order, pallet))
        title = html.escape(f"Order {order}, pallet {pallet} of {of_order[order]}")
        shown = {"order": order, "pallet": pallet, "of": of_order[order], "unit": summary["unit"], "boxes": rows}
        shown |= {"size": summary["pallet"], "verdict": verdict}
        data = json.dumps(shown, ensure_ascii=True)
        # No text of a list can end the script.
        data = data.replace("<", "\\u003c")
        page = template.replace("<title></title>", f"<title>{title}</title>").replace(_DATA, data)
        short_order = re.sub(r"[^A-Za-z0-9-]", "_", str(order))[:48]
        name = f"pallet-{number:04d}-{short_order}-{pallet}.html"
        (folder / name).write_text(page, encoding="utf-8")
        stands = "" if verdict is None else f", {verdict['stands']:.0%} stand in simulation"
        links.append(f'<li><a href="{name}">{title}</a>: {len(rows)} boxes{stands}</li>')
    _write_index(folder, links, summary["left_out"])


def _write_index(folder: Path, links: list[str], left_out: list[Row]) -> None:
    body = f"<h1>Pallets</h1><ol>{''.join(links)}</ol>"
    if left_out:
        lines = [f"<li>{html.escape(_reason_line(row))}</li>" for row in left_out]
        body += f"<h2>Left out</h2><ul>{''.join(lines)}</ul>"
    (folder / "index.html").write_text(f"{_HEAD}{body}\n", encoding="utf-8")


def _reason_line(row: Row) -> str:
    article = f", {row['article']}" if row.get("article") else ""
    return f"line {row['line']}, order {row['order']}{article}: {row['left out']}"
