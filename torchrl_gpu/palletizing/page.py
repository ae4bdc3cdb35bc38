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


def write_pages(folder: Path, summary: PlanSummary) -> list[str]:
    """Write a page for every pallet of a plan, and return their names."""
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
    names = []
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
        names.append(name)
    return names
