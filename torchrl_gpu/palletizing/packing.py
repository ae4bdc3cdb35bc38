"""`pack`: whole orders onto as many pallets as they take."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchrl_gpu.envs.packing.items.lists import LENGTHS, BoxList, read_list
from torchrl_gpu.envs.packing.physics.scene import FRICTION
from torchrl_gpu.palletizing.cells import choose_cell
from torchrl_gpu.palletizing.packer import PRESETS, Boxes, Goods, Packer, Pallet
from torchrl_gpu.palletizing.plan import PalletPlans, Placements, simulated
from torchrl_gpu.palletizing.search import TRIES, search
from torchrl_gpu.system import arguments

WHERE = "pack"
MOST_METRES = 100.0
_CHUNK = 2**20  # elements of the maps of all placements that are made at once: they stay near the caches
_SIZE = re.compile(r"([\d.,]+(?:x[\d.,]+){1,2})\s*([a-z]*)")
_LENGTH = re.compile(r"([\d.,]+)\s*([a-z]*)")
Say = Callable[[str], None]


def pack(
    orders: str | Path | BoxList,
    pallet: str = "eur",
    *,
    unit: str | None = None,
    columns: dict[str, str] | None = None,
    height: str | float | None = None,
    weight: float | None = None,
    gap: str | float = 0.0,
    overhang: str | float = 0.0,
    cell: str | float | None = None,
    open_pallets: int = 1,
    visible: int | str = 1,
    tries: int = TRIES,
    turns: str = "yaw",
    stability: str = "load_bearing",
    policy: str = "orders",
    physics: bool = False,
    friction: float = FRICTION,
    device: str | torch.device = "auto",
    say: Say = lambda words: None,
) -> PalletPlans:
    """Packs every box of every order, in the order of the list, and opens a pallet wherever nothing fits any more.

    Lengths are in the unit of the list, or say their own: `1500mm`, `48in`.

    Args:
        orders: List of boxes, see `read_list`, or one that is read already.
        pallet: One of `PRESETS`, or sides: `1200x800`, `1200x800x1500mm`; the third is the most height.
        unit: Of a list that does not say its own.
        columns: Headers of the list by what they are, where its words do not find them.
        height: Most height of the load, in place of the pallet's.
        weight: Most weight of the load, kilograms.
        gap: Free room between neighbouring boxes, as a gripper needs.
        overhang: What boxes may stick out over each edge.
        cell: Side of the cells that sides are rounded up to; None chooses, see `choose_cell`.
        open_pallets: Pallets of an order that are open at a time.
        visible: Next boxes of an order to choose from, or "all": then the order of the list does not count, `tries`
            sequences of its boxes are tried, see `search`, and neither `policy` nor `open_pallets` has an effect.
        tries: Of every order, where all boxes are visible.
        turns: "fixed", "yaw" (turned about the vertical) or "axis" (any side up that the list permits).
        stability: One of `STABILITY_RULES`.
        policy: As in `Packer`.
        physics: Simulate every pallet in MuJoCo, without walls, with the weights where they are listed.
        friction: Coulomb's coefficient in that simulation.
        device: As in `get_device`.
        say: Called with what is going on.

    Raises:
        FileNotFoundError: There is no such list or policy.
        ValueError: An argument cannot be, or the list cannot be read.
        ModuleNotFoundError: A library for the list or for the simulation is not installed.
    """
    friction = arguments.number(WHERE, "friction", friction, 0)
    if not physics:
        arguments.check_effect(WHERE, "physics", friction=(friction, FRICTION))
    if physics:
        from torchrl_gpu.system.extras import load_mujoco

        load_mujoco()
    found = orders if isinstance(orders, BoxList) else read_orders(Path(orders), unit, columns)
    per_unit = LENGTHS[found.unit] / 1000  # of the sizes, metres
    own = LENGTHS[found.own_unit] / 1000
    sides = sides_of(pallet, own)
    most = sides[2] if height is None else metres("height", height, own, above=0.0)
    load = math.inf if weight is None else arguments.number(WHERE, "weight", weight, above=0)
    room = {name: metres(name, given, own) for name, given in (("gap", gap), ("overhang", overhang))}
    sizes = torch.from_numpy(np.concatenate(found.sizes)) * per_unit
    bare = Pallet(sides[0], sides[1], most, load, **room)
    side, told = (
        choose_cell(sizes, bare, found.own_unit) if cell is None else (metres("cell", cell, own, above=0.0), "")
    )
    chosen = Pallet(sides[0], sides[1], most, load, **room, cell=side)
    if visible != "all":
        visible = arguments.whole(WHERE, "visible", visible, 1, 1024)
        arguments.check_effect(WHERE, "visible all", tries=(tries, TRIES))
    tries = arguments.whole(WHERE, "tries", tries, 1, 2**16)
    options: dict[str, Any] = {"turns": turns, "stability": stability, "policy": policy, "device": device}
    packer = Packer(chosen, open_pallets=open_pallets, **options)
    weights = torch.from_numpy(np.concatenate(found.weights))
    fragile, up = (torch.from_numpy(np.concatenate(each)) for each in (found.fragile, found.up))
    max_load = torch.from_numpy(np.concatenate(found.max_loads)).masked_fill(fragile, 0.0)
    goods = packer.goods(Boxes(sizes, weights.nan_to_num(0.0), up, max_load))
    told = "\n".join(filter(None, [told, _small_boxes(packer, goods)]))
    numbers = np.split(np.arange(len(sizes)), np.cumsum([len(each) for each in found.sizes])[:-1])
    fits = np.array([not reason for reason in goods.reasons])
    line = [each[fits[each]] for each in numbers]
    if isinstance(visible, str):
        placed = search(packer, goods, line, tries, say=say)
    else:
        placed = carry_out(packer, goods, line, visible, say)
    plans = PalletPlans(found, chosen, placed, goods.reasons, told)
    return simulated(plans, friction, say) if physics else plans


def _small_boxes(packer: Packer, goods: Goods) -> str:
    """A line about boxes that fill no whole cell in any turn, since they cost pallets; "" without any."""
    if packer.bin.stability != "load_bearing":
        return ""
    small = int(goods.soles.is_small.all(1)[goods.row].sum())
    if not small:
        return ""
    cell = f"{1000 * packer.pallet.cell:g} mm"
    return (
        f"{small:,} boxes fill no whole cell of {cell}: they stand on the floor alone and carry nothing; smaller cells"
        " (--cell) let them be stacked"
    )


def read_orders(path: Path, unit: str | None, columns: dict[str, str] | None = None) -> BoxList:
    """A list of boxes that says its unit, or is given one; see `read_list`."""
    where = f"{WHERE}: {path}"
    if unit is not None:
        arguments.choice(WHERE, "unit", unit, LENGTHS)
    if not path.is_file():
        raise FileNotFoundError(f"{where}: want a list of boxes, .csv, .xlsx, .parquet or .json; there is none")
    found = read_list(path, where, unit or "cells", columns)
    if not found.orders:
        came = f"line {found.faults[0][0]}: {found.faults[0][2]}" if found.faults else "an empty list"
        raise ValueError(f"{where}: want at least one box; got {came}")
    if found.unit == "cells":
        raise ValueError(f"{where}: want --unit, as the list does not say it, one of {', '.join(LENGTHS)}; got none")
    if unit is not None and unit != found.own_unit and LENGTHS[unit] != LENGTHS[found.own_unit]:
        raise ValueError(f"{where}: want the unit of the list, {found.own_unit}; got --unit {unit}")
    return found


def metres(name: str, given: str | float, unit_m: float, above: float | None = None) -> float:
    """A length in metres, of a number in a unit of so many metres or of text that may say another."""
    match = _LENGTH.fullmatch(str(given).strip().casefold())
    if not match or (match[2] and match[2] not in LENGTHS):
        arguments.refuse(WHERE, name, "a length, such as 15 or 15mm", given)
    return _number(name, match[1], given, above) * (LENGTHS[match[2]] / 1000 if match[2] else unit_m)


def sides_of(pallet: str, unit_m: float) -> tuple[float, float, float]:
    """Length, width and most height of a pallet by name, or of sides, metres."""
    if pallet in PRESETS:
        return PRESETS[pallet]
    wanted = f"one of {', '.join(PRESETS)} or sides such as 1200x800mm or 120x80x150cm"
    match = _SIZE.fullmatch(str(pallet).strip().casefold())
    if not match or (match[2] and match[2] not in LENGTHS):
        arguments.refuse(WHERE, "pallet", wanted, pallet)
    per = LENGTHS[match[2]] / 1000 if match[2] else unit_m
    sides = [_number("pallet", each, pallet, 0.0) * per for each in match[1].split("x")]
    if not 0.01 <= min(sides) <= max(sides) <= MOST_METRES:
        arguments.refuse(WHERE, "pallet", f"of sides from 10 mm to {MOST_METRES:g} m", pallet)
    return sides[0], sides[1], sides[2] if len(sides) == 3 else PRESETS["eur"][2]


def _number(name: str, text: str, given: Any, above: float | None) -> float:
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        arguments.refuse(WHERE, name, "a length, such as 15 or 15mm", given)
    return arguments.number(WHERE, name, value, 0, above=above)


def carry_out(
    packer: Packer, goods: Goods, orders: Sequence[np.ndarray], visible: int, say: Say = lambda words: None
) -> Placements:
    """Packs the boxes (…) int64 of each order, some orders side by side, and returns their placements in order."""
    rank = sorted((i for i, each in enumerate(orders) if len(each)), key=lambda i: -len(orders[i]))
    turns = goods.catalogue.num_orientations
    side_by_side = max(1, _CHUNK // (packer.open_pallets * visible * turns * math.prod(packer.bin.cells)))
    parts, done, total = [], 0, sum(map(len, orders))
    for first in range(0, len(rank), side_by_side):
        chosen = rank[first : first + side_by_side]
        longest = [orders[i] for i in chosen]
        placed = _packed(packer, goods, longest, visible, lambda more: say(f"{done + more:,} of {total:,} boxes"))  # noqa: B023
        parts.append(placed._replace(order=np.array(chosen)[placed.order]))
        done += sum(map(len, longest))
    return Placements.joined(parts)


def _packed(
    packer: Packer, goods: Goods, orders: Sequence[np.ndarray], visible: int, progress: Callable[[int], None]
) -> Placements:
    """Placements of orders, the longest first, by their place among these.

    Every step places one box of every order that has one left; orders that are done leave the batch.
    """
    lines = [torch.from_numpy(order) for order in orders]
    boxes = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True, padding_value=-1).to(packer.device)
    boxes = torch.nn.functional.pad(boxes, (0, visible), value=-1)
    number = torch.arange(len(orders), device=packer.device, dtype=torch.int64)
    state, offered = packer.begun(goods, orders), boxes[:, :visible]
    slots = torch.arange(visible, device=packer.device, dtype=torch.int64)
    along = packer.rotations.argmax(2).to(packer.device)  # (O, 3), which listed side lies along x, y and z
    steps, count = [], 0
    for step in range(len(orders[0])):
        rows = sum(len(order) > step for order in orders)
        state, offered = type(state)(*(each[:rows] for each in state)), offered[:rows]
        choice = packer.choose(state, goods, offered)
        state = packer.place(state, goods, choice)
        corner, sides = packer.corner(choice, goods)
        numbers = number[:rows], torch.full_like(choice.box, step), choice.box, choice.number
        steps.append((torch.stack(numbers, 1), along[choice.turn], torch.cat([corner, sides], 1)))
        behind = torch.cat([offered, boxes[:rows, visible + step, None]], 1)
        offered = behind.gather(1, slots + (slots >= choice.offer[:, None]))
        count += rows
        progress(count)
    about, sides_along, lengths = (torch.cat(each).cpu().numpy() for each in zip(*steps, strict=True))
    order, step, box, pallet = about.T
    return Placements(order, step, box, pallet, sides_along, lengths[:, :3], lengths[:, 3:])
