"""The jobs of a backend against those of `eager`, on packings of a few bins: what a proof runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrl_gpu import proofs
from torchrl_gpu.arguments import shown
from torchrl_gpu.envs.packing.kernels import eager
from torchrl_gpu.envs.packing.kernels.balance import balanced
from torchrl_gpu.envs.packing.types import (
    STABILITY_RULES,
    Bin,
    Catalogue,
    Moved,
    PackingState,
    Placement,
    StoredMaps,
)

JOBS = ("drop_map", "place", "pile_growth", "advance", "restart", "any_legal")
_MOST_ITEMS = 12  # of a user's own, evenly from first to last
_CELL = 0.125  # metres, a power of two: heights and their sums are exact


class Setting(NamedTuple):
    """What a backend may compile its kernels for.

    Attributes:
        name: What it is, for people.
        bin: The bin.
        catalogue: The items, on the device.
        visible_items: K.
        num_envs: N.
        most_wrong: Share of the verdicts on placements that may differ from those of `eager`.
    """

    name: str
    bin: Bin
    catalogue: Catalogue
    visible_items: int
    num_envs: int
    most_wrong: float = 0.0


def of_every_kind(module: str, device: str) -> str:
    """Which job of a backend is wrong on boxes, in small bins and wide ones, and on solids, by every rule; "" for none.

    Raises:
        proofs.Unavailable: The device cannot be used from this process.
    """
    there = proofs.usable(device)
    return _first_problem(module, (setting for rule in STABILITY_RULES for setting in _settings(rule, there)))


def of_setting(module: str, device: str, path: str) -> str:
    """Which job of a backend is wrong in a setting that `save` has written; "" for none.

    Raises:
        proofs.Unavailable: The device cannot be used from this process.
    """
    return _first_problem(module, [load(path, proofs.usable(device))])


def _first_problem(module: str, settings: Any) -> str:
    backend = importlib.import_module(module)
    jobs = {job: getattr(backend, job) for job in JOBS}
    try:
        return next(filter(None, (disagreement(jobs, setting) for setting in settings)), "")
    except torch.OutOfMemoryError as error:
        raise proofs.Unavailable(f"the device's memory is full: {proofs.reason(error)}") from error


# -- settings ---------------------------------------------------------------------------------------------------------


def _settings(rule: str, device: torch.device) -> Iterator[Setting]:
    """Small ones, of every kind of kernel: boxes in small and in wide bins, solids whose heights are counted or not."""
    small, wide = _bin((9, 8), 1, rule), _bin((18, 7), 2, rule)
    for name, bin_, catalogue in (
        ("boxes", small, _boxes()),
        ("boxes in a wide bin", wide, _boxes()),
        ("solids", _bin((9, 8), 2, rule), _solids(None)),
        ("solids of whole heights", _bin((9, 8), 2, rule), _solids(_CELL)),
    ):
        there = catalogue.to(device)
        yield Setting(f"{name}, rule {rule}", bin_, balanced(there, bin_) if rule == "com" else there, 2, 5)


def _bin(cells: tuple[int, int], step: int, rule: str) -> Bin:
    return Bin((cells[0] * _CELL, cells[1] * _CELL, 12 * _CELL), cells, step, rule)


def _boxes() -> Catalogue:
    """Four boxes in two orientations; one of them is too large for a small bin."""
    sides = torch.tensor([[1, 1, 2], [3, 2, 1], [4, 5, 2], [10, 3, 1]], dtype=torch.float64, device="cpu")
    sizes = torch.stack([sides, sides[:, [1, 0, 2]]], 1)
    return Catalogue.of_boxes(
        sizes * torch.tensor([1, 1, _CELL], dtype=torch.float32, device="cpu"), sides.prod(1) * _CELL**3
    )


def _solids(unit: float | None) -> Catalogue:
    """Three solids with overhangs in four quarter turns: a table, a step, and one with a hole."""
    table = torch.tensor([[0, 2, 2, 0], [2, 2, 2, 2], [0, 2, 2, 0]], dtype=torch.int64, device="cpu")
    step = torch.tensor([[0, 0], [1, 1], [2, 2], [2, 0], [1, 0]], dtype=torch.int64, device="cpu")
    frame = torch.tensor([[0, 0, 0], [0, 9, 0], [0, 0, 0]], dtype=torch.int64, device="cpu")  # 9 stands for no material
    top, bottom = (
        torch.zeros(3, 4, 5, 5, dtype=torch.float32, device="cpu"),
        torch.full((3, 4, 5, 5), torch.inf, dtype=torch.float32, device="cpu"),
    )
    extent, centre = (
        torch.zeros(3, 4, 2, dtype=torch.int64, device="cpu"),
        torch.zeros(3, 4, 2, dtype=torch.float32, device="cpu"),
    )
    for item, low in enumerate((table, step, frame)):
        for turn in range(4):
            view = torch.rot90(low, turn)
            rows, columns = view.shape
            there = view < 9
            bottom[item, turn, :rows, :columns] = torch.where(there, view * _CELL, torch.inf)
            top[item, turn, :rows, :columns] = torch.where(there, (3 + item) * _CELL, 0.0)
            extent[item, turn] = torch.tensor(view.shape, dtype=torch.int64, device="cpu")
            centre[item, turn] = extent[item, turn] * (_CELL / 2)
    return Catalogue.of_maps(
        top, bottom, extent, torch.tensor([0.04, 0.03, 0.02], dtype=torch.float32, device="cpu"), unit, centre
    )


_TENSORS = ("extent", "height", "volume", "top", "bottom", "centre", "plumb", "steady")


def save(setting: Setting, path: str) -> None:
    """Writes a setting, tensors and plain data, with some of its items: a catalogue may take most of the memory."""
    c, b = setting.catalogue, setting.bin
    rows = torch.linspace(
        0, c.num_items - 1, min(c.num_items, _MOST_ITEMS), device=c.extent.device, dtype=torch.float32
    ).long()
    tensors = {name: None if (value := getattr(c, name)) is None else value[rows].cpu() for name in _TENSORS}
    plain = {"bounds": c.bounds, "least": c.least, "unit": c.unit}
    told = {"name": setting.name, "visible_items": setting.visible_items, "num_envs": setting.num_envs}
    of_bin = {"size": b.size, "cells": b.cells, "step": b.step, "stability": b.stability}
    torch.save({"catalogue": tensors | plain, "bin": of_bin, **told, "most_wrong": setting.most_wrong}, path)


def load(path: str, device: torch.device) -> Setting:
    """A setting that `save` has written."""
    told = torch.load(path, weights_only=True)
    catalogue = Catalogue(**told.pop("catalogue")).to(device)
    return Setting(bin=Bin(**told.pop("bin")), catalogue=catalogue, **told)


# -- comparison -------------------------------------------------------------------------------------------------------


def disagreement(jobs: dict[str, Callable[..., Any]], setting: Setting, steps: int = 3) -> str:
    """Which job gives something else than that of `eager` while a few bins are packed; "" for none.

    Args:
        jobs: Those of a backend, by name.
        setting: Where they run.
        steps: Items placed in every bin; eager chooses, so that an error does not hide those behind it.
    """
    bin_, catalogue, n, k = setting.bin, setting.catalogue, setting.num_envs, setting.visible_items
    tried = _Comparison(jobs, setting)
    device = catalogue.extent.device
    row = torch.arange(n, device=device, dtype=torch.int64)
    item_id = (row[:, None] + torch.arange(k, device=device, dtype=torch.int64)) % catalogue.num_items
    item_id[0, -1] = -1 if k > 1 else item_id[0, -1]  # an empty slot
    blank = _blank(setting, steps)
    tried("restart", blank, row % 3 < 2, row + 7, item_id, catalogue, bin_)
    state: PackingState = tried("restart", blank, row >= 0, row + 7, item_id, catalogue, bin_)
    for number in range(steps):
        stored = None
        if number:
            following = (row + number * k) % catalogue.num_items
            action = _action(state, number)
            moved: Moved = tried("advance", state, action, following, catalogue, bin_)
            stored = StoredMaps(state.z_map, state.legal, moved.slot, moved.changed)
            made = moved.state.placements[row, state.num_packed.clamp_max(steps - 1)].long()
            z = moved.state.placement_z[row, state.num_packed.clamp_max(steps - 1)]
            placement = Placement(torch.where(moved.legal, made[:, 0], -1), made[:, 1], made[:, 2], made[:, 3], z)
            tried("place", state.heightmap, placement, catalogue, bin_)
            state = moved.state
        z_map, legal = tried("drop_map", state.heightmap, state.item_id, catalogue, bin_)
        if stored is not None and not catalogue.flat:
            tried("drop_map", state.heightmap, state.item_id, catalogue, bin_, stored)
        tried("pile_growth", state.heightmap, state.item_id, z_map, catalogue, bin_)
        tried("any_legal", legal)
        state = replace(state, z_map=z_map, legal=legal)
        if tried.problem:
            return tried.problem
    return tried.problem


def run_once(jobs: dict[str, Callable[..., Any]], setting: Setting) -> None:
    """Every job once as an environment calls it; what they give is thrown away.

    Raises:
        Exception: Whatever a compiler, a driver or a kernel raises.
    """
    bin_, catalogue = setting.bin, setting.catalogue
    state = _blank(setting, 1)
    row = torch.arange(setting.num_envs, device=state.key.device, dtype=torch.int64)
    item_id = (
        row[:, None] + torch.arange(setting.visible_items, device=row.device, dtype=torch.int64)
    ) % catalogue.num_items
    state = jobs["restart"](state, row >= 0, row, item_id, catalogue, bin_)
    moved = jobs["advance"](state, torch.zeros_like(row), row % catalogue.num_items, catalogue, bin_)
    z_map, legal = jobs["drop_map"](moved.state.heightmap, moved.state.item_id, catalogue, bin_)
    if not catalogue.flat:
        stored = StoredMaps(state.z_map, state.legal, moved.slot, moved.changed)
        z_map, legal = jobs["drop_map"](moved.state.heightmap, moved.state.item_id, catalogue, bin_, stored)
    zero = torch.zeros_like(row)
    placement = Placement(zero, zero, zero, zero, torch.zeros_like(state.volume))
    jobs["place"](state.heightmap, placement, catalogue, bin_)
    jobs["pile_growth"](state.heightmap, item_id, z_map, catalogue, bin_)
    jobs["any_legal"](legal).sum().item()  # waits, so that what failed on the device is raised here


def _blank(setting: Setting, longest: int) -> PackingState:
    bin_, catalogue, n, k = setting.bin, setting.catalogue, setting.num_envs, setting.visible_items
    device = catalogue.extent.device
    count = torch.zeros(n, dtype=torch.int64, device=device)
    maps = torch.zeros(n, k, catalogue.num_orientations, *bin_.grid, device=device, dtype=torch.float32)
    counts = {name: count.clone() for name in ("position", "key", "episode", "num_packed", "step_count")}
    return PackingState(
        heightmap=torch.zeros(n, *bin_.cells, device=device, dtype=torch.float32),
        item_id=torch.full((n, k), -1, dtype=torch.int64, device=device),
        **counts,
        volume=torch.zeros(n, device=device, dtype=torch.float32),
        stable=count > 0,
        placements=torch.zeros(n, longest, 4, dtype=torch.int32, device=device),
        placement_z=torch.zeros(n, longest, device=device, dtype=torch.float32),
        z_map=maps,
        legal=maps > 0,
    )


def _action(state: PackingState, number: int) -> Tensor:
    """(N,) int64: of each bin the legal action of some rank, another in each; the last bin's is not legal."""
    legal = state.legal.flatten(1)
    row = torch.arange(len(legal), device=legal.device, dtype=torch.int64)
    rank = (row * 3 + number) % legal.sum(1).clamp_min(1)
    action = ((legal.cumsum(1) == rank[:, None] + 1) & legal).int().argmax(1)
    return torch.where(row == len(legal) - 1, (~legal).int().argmax(1), action) if len(legal) > 1 else action


class _Comparison:
    """Calls a job of the backend and that of `eager`, gives what the latter gives, and keeps the first difference."""

    def __init__(self, jobs: dict[str, Callable[..., Any]], setting: Setting) -> None:
        self.jobs, self.setting, self.problem = jobs, setting, ""

    def __call__(self, job: str, *arguments: Any) -> Any:
        expected = getattr(eager, job)(*map(_copied, arguments))
        if not self.problem:
            try:
                came = self.jobs[job](*map(_copied, arguments))
                self.problem = self._difference(job, list(_parts(came)), list(_parts(expected)))
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self.problem = f"{job} of {self.setting.name}: {proofs.reason(error)}"
        return expected

    def _difference(self, job: str, came: list[tuple[str, Tensor]], expected: list[tuple[str, Tensor]]) -> str:
        where = f"{job} of {self.setting.name}"
        if [name for name, _ in came] != [name for name, _ in expected]:
            return f"{where}: gives {len(came)} tensors, eager {len(expected)}"
        for (name, ours), (_, theirs) in zip(came, expected, strict=True):
            if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
                return f"{where}: {name} is {shown(ours)}, of eager {shown(theirs)}"
            wrong = int(_differs(ours, theirs, self.setting.bin.tolerance).sum())
            allowed = self.setting.most_wrong * theirs.numel() if theirs.dtype == torch.bool else 0
            if wrong > allowed:
                return f"{where}: {wrong} of {theirs.numel()} numbers of {name} are not those of eager"
        return ""


def _differs(ours: Tensor, theirs: Tensor, tolerance: float) -> Tensor:
    if not theirs.is_floating_point():
        return ours != theirs
    return ~torch.isclose(ours, theirs, rtol=1e-5, atol=tolerance / 2)  # what is no number differs


def _parts(result: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of what a job gives, by name."""
    if isinstance(result, Tensor):
        yield "the result", result
    elif isinstance(result, Moved):
        yield from _parts(result.state)
        yield from (("legal", result.legal), ("slot", result.slot), ("changed", result.changed))
    elif isinstance(result, PackingState):
        yield from ((field.name, getattr(result, field.name)) for field in fields(PackingState))
    else:
        yield from zip(("z_map", "legal"), result, strict=True)


def _copied(argument: Any) -> Any:
    """So that what a job writes in place is its own."""
    if not isinstance(argument, PackingState):
        return argument
    return replace(argument, placements=argument.placements.clone(), placement_z=argument.placement_z.clone())
