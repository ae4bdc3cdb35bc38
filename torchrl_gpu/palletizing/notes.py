"""Lines about plans that a person wants to know before the table."""

from __future__ import annotations

import numpy as np

from torchrl_gpu.palletizing.centring import MOST_OFF_MIDDLE, off_middle
from torchrl_gpu.palletizing.plan import LoadedPallet, PalletPlans
from torchrl_gpu.palletizing.scores import ROAD_G, Column, most_slender_column, presses_on_lighter

# Times the fewest pallets that an order takes where what its boxes bear is to blame.
_MANY_TIMES = 2
_MOST_ORDERS = 5


def notes_on_limits(plans: PalletPlans) -> list[str]:
    """A line for each order that takes many pallets as its boxes bear little."""
    found = plans.found
    fragile = found.fragile
    max_loads = found.max_loads
    number_of = {order: number for number, order in enumerate(found.orders)}
    lines: list[str] = []
    for row in plans.orders():
        at = number_of[row["order"]]
        is_closed = fragile[at] | (max_loads[at] <= 0)
        is_limited = np.isfinite(max_loads[at]) | is_closed
        is_many = row["pallets"] >= _MANY_TIMES * row["at least"]
        if not is_many or not is_limited.any():
            continue
        if len(lines) == _MOST_ORDERS:
            lines.append("and so do more orders")
            break
        many = f"order {row['order']} takes {row['pallets']:,} pallets, and volume and weight allow {row['at least']:,}"
        bears = f"{int(is_closed.sum()):,} of its boxes bear nothing, {int(is_limited.sum()):,} only so much"
        lines.append(f"{many}: {bears} (fragile, most load). Is that what the list means?")
    return lines


def notes_on_columns(plans: PalletPlans) -> list[str]:
    """A line about pallets on which a free column tips on the road, if there are any."""
    loose: list[tuple[LoadedPallet, Column]] = []
    pallets = plans.pallets()
    for pallet in pallets:
        column = most_slender_column(pallet.placed.corner, pallet.placed.sides)
        if column.tips_at_g < ROAD_G:
            loose.append((pallet, column))
    if not loose:
        return []
    first, column = min(loose, key=_tips_at)
    height = f"{1000 * column.height:,.0f} mm"
    width = f"{1000 * column.width:,.0f} mm"
    which = f"{first.name}: {height} high above what is beside it and {width} wide, it tips at {column.tips_at_g:.2f} g"
    return [f"wrap {len(loose):,} of {len(pallets):,} pallets, whose free columns tip below {ROAD_G} g; first {which}"]


def notes_on_light_boxes(plans: PalletPlans) -> list[str]:
    """A line about boxes that stand on much lighter ones, if there are any."""
    weights = np.concatenate(plans.found.weights)
    total = 0
    first = ""
    for pallet in plans.pallets():
        weight = np.nan_to_num(weights[pallet.placed.box])
        pressing = np.flatnonzero(presses_on_lighter(pallet.placed.corner, pallet.placed.sides, weight))
        if len(pressing) and not total:
            box = int(pressing[0])
            first = f"box {box + 1} of {pallet.name}, {weight[box]:.4g} kg"
        total += len(pressing)
    if not total:
        return []
    many = "1 box stands" if total == 1 else f"{total:,} boxes stand"
    return [f"{many} on one less than half as heavy; first {first}. A most load in the list rules that out"]


def notes_on_middles(plans: PalletPlans) -> list[str]:
    """A line about loads that lie off the middle, if there are any."""
    weights = np.concatenate(plans.found.weights)
    pallets = plans.pallets()
    lies_off: list[tuple[float, str]] = []
    for pallet in pallets:
        weight = np.nan_to_num(weights[pallet.placed.box])
        off = off_middle(pallet.placed.corner, pallet.placed.sides, weight, plans.pallet)
        if off > MOST_OFF_MIDDLE:
            lies_off.append((off, pallet.name))
    if not lies_off:
        return []
    furthest, name = max(lies_off)
    many = f"{len(lies_off):,} of {len(pallets):,} loads"
    lie = "lies" if len(lies_off) == 1 else "lie"
    return [f"{many} {lie} off the middle by more than {MOST_OFF_MIDDLE:.0%} of a side; most {name}: {furthest:.0%}"]


def _tips_at(loose: tuple[LoadedPallet, Column]) -> float:
    return loose[1].tips_at_g
