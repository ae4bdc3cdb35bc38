"""`pack`: whole orders onto as many pallets as they take."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.physics.scene import FRICTION
from torchrl_gpu.lists.box_list import BoxList
from torchrl_gpu.lists.reading import ListOptions, read_list
from torchrl_gpu.lists.units import LENGTH_BY_WORD, LENGTHS, WEIGHT_BY_WORD, WEIGHTS, unit_of_word
from torchrl_gpu.palletizing import blocks
from torchrl_gpu.palletizing.cells import choose_cell
from torchrl_gpu.palletizing.centring import centre_loads
from torchrl_gpu.palletizing.known_orders import better_of_each_order, pack_known_orders
from torchrl_gpu.palletizing.lengths import WHERE, load_height, metres, own_weight_and_height, sides_of
from torchrl_gpu.palletizing.notes import notes_on_columns, notes_on_light_boxes, notes_on_limits, notes_on_middles
from torchrl_gpu.palletizing.packer import Choice, Packer
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import PalletPlans, Placements, simulate, transport
from torchrl_gpu.palletizing.prepared_boxes import Boxes, PreparedBoxes
from torchrl_gpu.system import arguments

_LOG = logging.getLogger(__name__)
_MOST_VISIBLE = 1024
_MOST_TRIES = 2**16
_LAYERS = ("columns", "interlocked")
# Elements of the maps of all placements that are made at once: so few stay near the caches.
_CHUNK = 2**20

# Called with a line about the progress.
Report = Callable[[str], None]


def pack(
    orders: str | Path | BoxList,
    pallet: str = "eur",
    *,
    unit: str | None = None,
    columns: dict[str, str] | None = None,
    options: ListOptions | None = None,
    height: str | float | None = None,
    weight: float | None = None,
    gap: str | float = 0.0,
    overhang: str | float = 0.0,
    cell: str | float | None = None,
    open_pallets: int = 1,
    visible: int | str | None = None,
    tries: int | None = None,
    layers: str = "columns",
    turns: str = "yaw",
    stability: str = "load_bearing",
    policy: str = "orders",
    physics: bool = False,
    road: bool = False,
    friction: float = FRICTION,
    device: str | torch.device = "auto",
    say: Report = lambda words: None,
) -> PalletPlans:
    """Pack every box of every order.

    The whole of an order is planned at once unless `visible` is a number. Lengths are millimetres, or say their own
    unit: `150cm`, `48in`.

    Args:
        orders: List of boxes, see `read_list`, or one that is read already.
        pallet: One of `PRESETS`, or sides: `1200x800`, `1200x800x1500mm`; the third is the most height.
        unit: Of a list that does not say its own.
        columns: Headers of the list by what they are, where its words do not find them.
        options: More of what the list does not say; `unit` and `columns` go before its own.
        height: Most height of the load, in place of the pallet's.
        weight: Most weight of the load, kilograms.
        gap: Free room between neighbouring boxes, as a gripper needs.
        overhang: What boxes may stick out over each edge.
        cell: Side of the cells that sides are rounded up to where the plan is made on cells; None chooses, see
            `choose_cell`.
        open_pallets: Pallets of an order that are open at a time.
        visible: Next boxes of an order to choose from, in the order of the list, or "all": then the order of the list
            does not count, full layers of an article go first, and each pallet of the rest is filled `tries` times, see
            `pack_known_orders`. None is "all", and 1 where `policy` or `open_pallets` is given, which choose among
            boxes as they come.
        tries: Of every pallet, where all boxes are visible; by the rule "corners" of every order. None is as many as an
            order has time for.
        layers: "columns", or "interlocked": every second layer of an article is turned, see `layer_order`.
        turns: "fixed", "yaw" (turned about the vertical) or "axis" (any side up that the list permits).
        stability: One of `STABILITY_RULES`.
        policy: As in `Packer`.
        physics: Simulate every pallet in MuJoCo, without walls, with the weights where they are listed.
        road: Push every pallet by 0.5 g in every direction, see `physics.transport`.
        friction: Coulomb's coefficient in these simulations.
        device: As in `get_device`.
        say: Called with a line about the progress.

    Raises:
        FileNotFoundError: There is no such list or policy.
        ValueError: An argument is not valid, or the list cannot be read.
        ModuleNotFoundError: A library for the list or for the simulation is not installed.
    """
    friction = arguments.number(WHERE, "friction", friction, 0)
    if not physics and not road:
        arguments.check_effect(WHERE, "physics or transport", friction=(friction, FRICTION))
    else:
        # A library that is missing is reported before anything is packed.
        from torchrl_gpu.system.extras import load_mujoco

        load_mujoco()
    if isinstance(orders, BoxList):
        found = orders
    else:
        found = read_orders(Path(orders), unit, columns, options)
        for doubt in found.doubts:
            _LOG.warning("%s: %s: %s", WHERE, orders, doubt)
    chosen = _pallet_of(pallet, height=height, weight=weight, gap=gap, overhang=overhang)
    boxes = boxes_of(found)
    cell_note = ""
    if cell is None:
        cell_m, cell_note = choose_cell(boxes.sizes, chosen, found.own_unit, may_turn=turns != "fixed")
    else:
        cell_m = metres("cell", cell, above=0.0)
    chosen = replace(chosen, cell=cell_m)
    arguments.choice(WHERE, "layers", layers, _LAYERS)
    visible = _check_visible(visible, tries=tries, layers=layers, policy=policy, open_pallets=open_pallets)
    if tries is not None:
        tries = arguments.whole(WHERE, "tries", tries, 1, _MOST_TRIES)
    packer = Packer(chosen, open_pallets=open_pallets, turns=turns, stability=stability, policy=policy, device=device)
    prepared = packer.prepare(boxes)
    # Lines that are printed between the list and the table.
    notes = []
    plans_by_cells = visible != "all" or not blocks.is_for(packer)
    if plans_by_cells:
        notes = [cell_note, *_notes_on_small_boxes(packer, prepared)]
    fitting = _fitting_boxes(found, prepared)
    # The only text that is left is "all".
    if isinstance(visible, str):
        interlocked = layers == "interlocked"
        placed = pack_known_orders(packer, prepared, fitting, tries, say, interlocked=interlocked)
        if turns == "axis":
            upright = Packer(chosen, turns="yaw", stability=stability, device=device)
            again = upright.prepare(boxes)
            standing = _fitting_boxes(found, again)
            kept_upright = pack_known_orders(upright, again, standing, tries, say, interlocked=interlocked)
            placed = better_of_each_order(placed, kept_upright, prepared, chosen)
    else:
        placed = carry_out(packer, prepared, fitting, visible, say)
    placed = centre_loads(placed, chosen, boxes.weights.numpy())
    plans = PalletPlans(found, chosen, placed, prepared.reasons, told="")
    notes += [*notes_on_limits(plans), *notes_on_columns(plans), *notes_on_light_boxes(plans), *notes_on_middles(plans)]
    plans = plans._replace(told="\n".join(filter(None, notes)))
    if physics:
        plans = simulate(plans, friction, say)
    return transport(plans, friction, say) if road else plans


def _pallet_of(
    name: str, *, height: str | float | None, weight: float | None, gap: str | float, overhang: str | float
) -> Pallet:
    """Make the pallet that a user describes, in cells that are still to be chosen."""
    length, width, most_height = sides_of(name)
    own_weight, own_height = own_weight_and_height(name)
    if height is not None:
        most_height = load_height(height)
    most_weight = math.inf
    if weight is not None:
        most_weight = arguments.number(WHERE, "weight", weight, above=0)
    return Pallet(
        length,
        width,
        most_height,
        most_weight,
        gap=metres("gap", gap),
        overhang=metres("overhang", overhang),
        own_weight=own_weight,
        own_height=own_height,
    )


def _check_visible(
    visible: int | str | None, *, tries: int | None, layers: str, policy: str, open_pallets: int
) -> int | str:
    """Return how many boxes are chosen from, or "all".

    Options that would do nothing are refused.
    """
    if visible is None:
        chooses_as_they_come = policy != "orders" or open_pallets != 1
        visible = 1 if chooses_as_they_come else "all"
    if visible == "all":
        given = {"policy": (policy, "orders"), "open_pallets": (open_pallets, 1)}
        arguments.check_effect(WHERE, "visible of a number", **given)
        return visible
    arguments.check_effect(WHERE, "visible all", tries=(tries, None), layers=(layers, "columns"))
    return arguments.whole(WHERE, "visible", visible, 1, _MOST_VISIBLE)


def boxes_of(found: BoxList) -> Boxes:
    """Boxes of a list, in metres and kilograms."""
    unit_m = LENGTHS[found.unit] / 1000
    sizes = torch.from_numpy(np.concatenate(found.sizes)) * unit_m
    weights = torch.from_numpy(np.concatenate(found.weights))
    is_fragile = torch.from_numpy(np.concatenate(found.fragile))
    up = torch.from_numpy(np.concatenate(found.up))
    max_load = torch.from_numpy(np.concatenate(found.max_loads))
    # Nothing may lie on a fragile box, whatever load the list allows.
    max_load = max_load.masked_fill(is_fragile, 0.0)
    # A weight that the list does not give counts as unknown, 0.
    bottom_only = torch.from_numpy(np.concatenate(found.bottom_only))
    return Boxes(sizes, weights.nan_to_num(0.0), up, max_load, bottom_only)


def _fitting_boxes(found: BoxList, prepared: PreparedBoxes) -> list[np.ndarray]:
    """Numbers of the boxes of each order that fit an empty pallet, (…) int64 each."""
    # Boxes are numbered through the whole list, order after order.
    ends = np.cumsum([len(sizes) for sizes in found.sizes])
    numbers = np.split(np.arange(ends[-1]), ends[:-1])
    fits = np.array([not reason for reason in prepared.reasons])
    return [boxes[fits[boxes]] for boxes in numbers]


def _notes_on_small_boxes(packer: Packer, prepared: PreparedBoxes) -> list[str]:
    """A line about boxes that fill no whole cell in any turn, if there are any.

    Such boxes cost pallets.
    """
    # The other rules judge all cells that are kept for a box.
    if packer.bin.stability != "load_bearing":
        return []
    small = int(prepared.soles.is_small.all(1)[prepared.row].sum())
    if not small:
        return []
    cell = f"{1000 * packer.pallet.cell:g} mm"
    return [
        f"{small:,} boxes fill no whole cell of {cell}: they stand on the floor alone and carry nothing; smaller cells"
        " (--cell) let them be stacked"
    ]


def read_orders(
    path: Path,
    unit: str | None = None,
    columns: dict[str, str] | None = None,
    options: ListOptions | None = None,
) -> BoxList:
    """Read a list of boxes that says its unit, or is given one.

    Args:
        path: As in `read_list`.
        unit: Of a list that does not say its own.
        columns: Headers of the list by what they are.
        options: More of what the list does not say; `unit` and `columns` go before its own.

    Raises:
        FileNotFoundError: There is no such list.
        ValueError: It cannot be read, has no box, or its unit is not known.
    """
    where = f"{WHERE}: {path}"
    options = options or ListOptions()
    if unit is not None:
        options = replace(options, unit=unit)
    if columns:
        options = replace(options, columns=columns)
    options = replace(
        options,
        unit=_known_unit("unit", options.unit, LENGTH_BY_WORD, LENGTHS),
        weight_unit=_known_unit("weight_unit", options.weight_unit, WEIGHT_BY_WORD, WEIGHTS),
    )
    found = read_list(path, where, options=options)
    if not found.orders:
        reason = ""
        if found.faults:
            first = found.faults[0]
            reason = f": line {first.line}: {first.reason}"
        raise ValueError(f"{where}: the list has no box{reason}")
    # "cells" stands for a unit that neither the list nor the user says.
    if found.unit == "cells":
        raise ValueError(f"{where}: the list does not say its unit: give --unit, one of {', '.join(LENGTHS)}")
    if options.unit is not None and found.names_unit and options.unit != found.own_unit:
        raise ValueError(f"{where}: the unit of the list is {found.own_unit}, not {options.unit}: leave --unit out")
    return found


def _known_unit(name: str, given: str | None, by_word: Mapping[str, str], known: Mapping[str, float]) -> str | None:
    """Return the unit that a word of the user names, None for None."""
    if given is None:
        return None
    unit = unit_of_word(given, by_word)
    if not unit:
        arguments.choice(WHERE, name, given, known)
    return unit


def carry_out(
    packer: Packer,
    prepared: PreparedBoxes,
    orders: Sequence[np.ndarray],
    visible: int,
    report: Report = lambda words: None,
) -> Placements:
    """Pack the boxes (…) int64 of each order, and return their placements in order.

    Some orders are packed side by side, those of about equally many boxes, as a batch takes as long as its longest one.
    """
    used = [i for i, boxes in enumerate(orders) if len(boxes)]
    longest_first = sorted(used, key=lambda i: -len(orders[i]))
    turns = prepared.catalogue.num_orientations
    # What the maps of all placements of one order hold.
    elements = packer.open_pallets * visible * turns * math.prod(packer.bin.cells)
    side_by_side = max(1, _CHUNK // elements)
    progress = _Progress(sum(len(boxes) for boxes in orders), report)
    parts = []
    for first in range(0, len(longest_first), side_by_side):
        chosen = longest_first[first : first + side_by_side]
        placed = _pack_side_by_side(packer, prepared, [orders[i] for i in chosen], visible, progress)
        # From places within the batch to places within all orders.
        parts.append(placed._replace(order=np.array(chosen)[placed.order]))
    return Placements.join(parts)


class _Progress:
    """Boxes that are placed, of so many in all."""

    def __init__(self, total: int, report: Report) -> None:
        self._total = total
        self._report = report
        self._done = 0

    def add(self, boxes: int) -> None:
        self._done += boxes
        self._report(f"{self._done:,} of {self._total:,} boxes")


class _Steps:
    """Placements of the steps of a batch, on its device.

    To read each step at once would make every step wait for the device.

    Args:
        rows: Numbers of the orders of the batch, (R,) int64.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._numbers: list[Tensor] = []
        self._along: list[Tensor] = []
        self._lengths: list[Tensor] = []

    def add(self, step: int, choice: Choice, along: Tensor, corner: Tensor, sides: Tensor) -> None:
        rows = self._rows[: len(choice.box)]
        numbers = [rows, torch.full_like(choice.box, step), choice.box, choice.number]
        self._numbers.append(torch.stack(numbers, 1))
        self._along.append(along)
        self._lengths.append(torch.cat([corner, sides], 1))

    def read(self) -> Placements:
        """Read all placements from the device."""
        order, step, box, pallet = torch.cat(self._numbers).cpu().numpy().T
        along = torch.cat(self._along).cpu().numpy()
        corner_and_sides = torch.cat(self._lengths).cpu().numpy()
        corner = corner_and_sides[:, :3]
        sides = corner_and_sides[:, 3:]
        return Placements(order, step, box, pallet, along, corner, sides)


def _pack_side_by_side(
    packer: Packer, prepared: PreparedBoxes, orders: Sequence[np.ndarray], visible: int, progress: _Progress
) -> Placements:
    """Pack some orders, the longest first, and number them by their place among these.

    Every step places one box of every order that has one left. Orders that are done leave the batch, from its end.
    """
    lines = [torch.from_numpy(order) for order in orders]
    boxes = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True, padding_value=-1).to(packer.device)
    # Behind the last box of the longest order there are no boxes to be seen.
    boxes = torch.nn.functional.pad(boxes, (0, visible), value=-1)
    state = packer.begin(prepared, orders)
    offered = boxes[:, :visible]
    slots = torch.arange(visible, device=packer.device, dtype=torch.int64)
    # Which listed side lies along x, y and z in each turn.
    along = packer.rotations.argmax(2).to(packer.device)  # (O, 3)
    steps = _Steps(torch.arange(len(orders), device=packer.device, dtype=torch.int64))
    for step in range(len(orders[0])):
        rows = sum(len(order) > step for order in orders)
        state = state.first(rows)
        offered = offered[:rows]
        choice = packer.choose(state, prepared, offered)
        state = packer.place(state, prepared, choice)
        corner, sides = packer.corner(choice, prepared)
        steps.add(step, choice, along[choice.turn], corner, sides)
        # The next box of each order comes last. Those behind the box that was chosen move up.
        candidates = torch.cat([offered, boxes[:rows, visible + step, None]], 1)
        offered = candidates.gather(1, slots + (slots >= choice.offer[:, None]))
        progress.add(rows)
    return steps.read()
