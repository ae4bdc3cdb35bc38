"""Pages of loaded pallets, each one file that opens without a network.

A page turns in 3D and goes box by box.
"""

from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from typing import Any

_DATA = "/*DATA*/"


def write_pages(folder: Path, summary: dict[str, Any]) -> None:
    """Write a page for every pallet of `PalletPlans.summary`, and `index.html`."""
    template = files("torchrl_gpu.palletizing").joinpath("page.html").read_text(encoding="utf-8")
    boxes: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for box in summary["boxes"]:
        boxes[box["order"], box["pallet"]].append(box)
    verdicts = {(each["order"], each["pallet"]): each for each in summary.get("simulation", [])}
    # An earlier plan may have left pages.
    for stale in folder.glob("pallet-[0-9][0-9][0-9][0-9]-*.html"):
        stale.unlink()
    links = []
    for number, ((order, pallet), rows) in enumerate(boxes.items(), 1):
        verdict = verdicts.get((order, pallet))
        shown = {"order": order, "pallet": pallet, "unit": summary["unit"], "size": summary["pallet"], "boxes": rows}
        # No text of a list can end the script.
        data = json.dumps(shown | {"verdict": verdict}, ensure_ascii=True).replace("<", "\\u003c")
        name = f"pallet-{number:04d}-{re.sub(r'[^A-Za-z0-9-]', '_', order)[:48]}-{pallet}.html"
        title = html.escape(f"Order {order}, pallet {pallet}")
        page = template.replace("<title></title>", f"<title>{title}</title>").replace(_DATA, data)
        (folder / name).write_text(page, encoding="utf-8")
        stands = "" if verdict is None else f", {verdict['stands']:.0%} stand in simulation"
        links.append(f'<li><a href="{name}">{title}</a>: {len(rows)} boxes{stands}</li>')
    left = [f"<li>{html.escape(_told(each))}</li>" for each in summary["left_out"]]
    more = f"<h2>Left out</h2><ul>{''.join(left)}</ul>" if left else ""
    head = (
        "<!doctype html><meta charset=utf-8><title>Pallets</title><style>body{font:16px sans-serif;margin:2em}</style>"
    )
    (folder / "index.html").write_text(f"{head}<h1>Pallets</h1><ol>{''.join(links)}</ol>{more}\n", encoding="utf-8")


def _told(row: dict[str, Any]) -> str:
    article = f", {row['article']}" if row.get("article") else ""
    return f"line {row['line']}, order {row['order']}{article}: {row['left out']}"
