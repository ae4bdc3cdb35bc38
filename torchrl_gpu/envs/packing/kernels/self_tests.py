"""Self-tests of kernel backends.

Every kernel is compared with that of `eager` while a few bins are packed. A backend is tested on small bins of every
kind before "auto" takes it on a device. Triton compiles kernels for the constants of a bin, so it is also tested in the
bin of an environment when that is made; then each kernel runs once in this process at the environment's size, so that
no step compiles anything.
"""

from __future__ import annotations

import importlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.packing.kernels import eager
from torchrl_gpu.envs.packing.stability.com import balanced
from torchrl_gpu.envs.packing.types import STABILITY_RULES, Bin, Catalogue, Moved, PackingState, Placement, StoredMaps
from torchrl_gpu.system import self_tests, triton_kernels
from torchrl_gpu.system.arguments import shown
from torchrl_gpu.system.self_tests import SelfTest

JOBS = ("drop_map", "place", "pile_growth", "advance", "restart", "any_legal", "upheld", "bear")
Jobs = dict[str, Callable[..., object]]
# `eager` is what the others are compared with, `reference` what all are tested against.
_NEEDS_NO_TEST = ("eager", "reference")
_COMPILED_FOR_SETTINGS = ("triton",)
_HERE = Path(__file__).parent
# Environments of the self-test in an environment's bin.
_ENVS = 3
# Most items of an environment's catalogue that are tested, evenly from first to last.
MOST_ITEMS = 12
# Metres, a power of two: heights and their sums are exact.
_CELL = 0.125


class Setting(NamedTuple):
    """Bin, catalogue and batch sizes that a backend may compile its kernels for.

    Attributes:
        name: For messages.
        bin: The bin.
        catalogue: The items, on the device.
        visible_items: K.
        num_envs: N.
        most_wrong: Share of placements whose stability may differ from that of `eager`.
    """

    name: str
    bin: Bin
    catalogue: Catalogue
    visible_items: int
    num_envs: int
    most_wrong: float = 0.0

    @property
    def device(self) -> torch.device:
        """Device of the catalogue, on which the kernels run."""
        return self.catalogue.extent.device


def device_failure(backend: str, device: torch.device, module: str) -> str:
    """Return the failure of a self-test on a device in one line, "" for none.

    `module` defines its kernels.
    """
    if backend in _NEEDS_NO_TEST:
        return ""
    name = f"the packing kernels {backend!r} on {device}"
    function = f"{__name__}:run_every_kind"
    forks = backend == "compiled"
    return SelfTest(name, function, (module, str(device)), versions(module, device), forks).failure()


def setting_failure(backend: str, setting: Setting, module: str) -> str:
    """Return the failure of a self-test in an environment's bin, "" for none.

    It is one line. `module` defines the backend's kernels.
    """
    if backend not in _COMPILED_FOR_SETTINGS:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        test = _setting_test(backend, setting, module, Path(folder) / "setting.pt")
        if test.known_failure() is None:
            save(setting._replace(num_envs=_ENVS), test.arguments[-1])
        return test.failure()


def _setting_test(backend: str, setting: Setting, module: str, path: Path) -> SelfTest:
    name = f"the packing kernels {backend!r} in {setting.name}"
    depends_on = versions(module, setting.device) | {"setting": constants_of(setting._replace(num_envs=_ENVS))}
    return SelfTest(name, f"{__name__}:run_setting", (module, str(setting.device), str(path)), depends_on)


def launch_failure(backend: str, setting: Setting, module: str) -> str:
    """Return the failure of a backend's kernels in this process, "" where they run.

    They are called as an environment will.

    Raises:
        RuntimeError: They have left the device unusable for this process.
        torch.OutOfMemoryError: The environment does not fit on the device.
    """
    device = setting.device
    # Interpreted kernels take seconds, and nothing is compiled.
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if backend not in _COMPILED_FOR_SETTINGS or interpreted:
        return ""
    key = module, str(device), constants_of(setting)
    if key in _LAUNCHED:
        return _LAUNCHED[key]
    jobs = _jobs(module)

    def call(job: str, *given: object) -> object:
        return jobs[job](*given)

    def choose_first(state: PackingState, number: int) -> Tensor:
        return torch.zeros_like(state.key)

    try:
        legal = _play(call, setting, 2, choose_first)
        # This synchronises, so that a failure on the device is raised here.
        legal.sum().item()
        _LAUNCHED[key] = ""
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        # A compiler, a driver or a kernel may raise anything.
        failure = self_tests.reason(error)
        _LAUNCHED[key] = failure
        try:
            self_tests.usable(str(device))
        except self_tests.Unavailable:
            # An illegal access leaves a process no way back to the device.
            _setting_test(backend, setting, module, Path()).keep(failure)
            raise RuntimeError(
                f"packing kernels: backend {backend!r} has left {device} unusable for this process: {failure}; the"
                " next run takes another backend, as does this one with backend='eager'"
            ) from error
    return _LAUNCHED[key]


# Failures by module, device and constants of what has run once.
_LAUNCHED: dict[tuple[str, str, str], str] = {}


def constants_of(setting: Setting) -> str:
    """Return the constants that kernels may be compiled for, as a key."""
    c = setting.catalogue
    maps = None if c.bottom is None else tuple(c.bottom.shape[-2:])
    parts = setting.bin, c.bounds, c.least, c.unit, maps, c.centre_16ths is None, *setting[3:5]
    # Triton compiles anew for a number that is 1, or divisible by 16.
    num_items = c.num_items if c.num_items < 2 else c.num_items % 16 == 0
    return repr((*parts, num_items))


def versions(module: str, device: torch.device) -> dict[str, str]:
    """Return versions of all that the result of a backend's self-test depends on.

    These are sources, packages, compiler and device.
    """
    own = Path(importlib.import_module(module).__file__ or __file__)
    room = _HERE.parent
    sources = {*_HERE.rglob("*.py"), *(room / "stability").rglob("*.py"), room / "types.py", room / "geometry.py", own}
    contents = b"".join(path.read_bytes() for path in sorted(sources))
    found = triton_kernels.versions(module, contents, device)
    if device.type == "cpu":
        # The library's name contains a hash of its sources, compiler and processor.
        found["library"] = "" if native.problem() else Path(native.library()._name).name
    return found


# -- in the subprocess ------------------------------------------------------------------------------------------------


def run_every_kind(module: str, device: str) -> str:
    """Return the first wrong kernel of a backend, "" for none.

    It is tried on boxes, in small and wide bins, and on solids, by every rule.
    """
    there = self_tests.usable(device)
    by_rule = (settings(rule, there) for rule in STABILITY_RULES)
    return _first_difference(module, itertools.chain.from_iterable(by_rule))


def run_setting(module: str, device: str, path: str) -> str:
    """Return the first wrong kernel in a setting that `save` has written, "" for none."""
    return _first_difference(module, iter([load(path, self_tests.usable(device))]))


def _first_difference(module: str, tested: Iterator[Setting]) -> str:
    jobs = _jobs(module)
    try:
        for setting in tested:
            found = difference(jobs, setting)
            if found:
                return found
    except torch.OutOfMemoryError as error:
        raise self_tests.Unavailable(f"the device's memory is full: {self_tests.reason(error)}") from error
    return ""


def _jobs(module: str) -> Jobs:
    backend = importlib.import_module(module)
    return {job: getattr(backend, job) for job in JOBS}


def save(setting: Setting, path: str) -> None:
    """Save a setting with at most `MOST_ITEMS` of its items.

    A catalogue may take most of the memory.
    """
    c = setting.catalogue
    few = min(c.num_items, MOST_ITEMS)
    rows = torch.linspace(0, c.num_items - 1, few, dtype=torch.float32, device=setting.device).long()
    kept: dict[str, Tensor] = {}
    for field in fields(c):
        value = getattr(c, field.name)
        if isinstance(value, Tensor):
            kept[field.name] = value[rows]
    smaller = replace(c, **kept)  # type: ignore[arg-type]
    torch.save(setting._replace(catalogue=smaller), path)


def load(path: str, device: torch.device) -> Setting:
    """Load a setting that `save` has written."""
    with torch.serialization.safe_globals([Setting, Bin, Catalogue]):
        setting: Setting = torch.load(path, weights_only=True, map_location=device)
    return setting


def settings(rule: str, device: torch.device) -> Iterator[Setting]:
    """Yield small settings for every kind of kernel.

    These are boxes in small and wide bins, and solids whose heights are counted or not.
    """
    small = (9, 8)
    wide = (18, 7)
    kinds = [("boxes", small, 1, _boxes()), ("boxes in a wide bin", wide, 2, _boxes())]
    kinds += [("solids", small, 2, _solids(None)), ("solids of whole heights", small, 2, _solids(_CELL))]
    for name, cells, step, catalogue in kinds:
        size = cells[0] * _CELL, cells[1] * _CELL, 12 * _CELL
        bin_ = Bin(size, cells, step, rule, _CELL, 10)
        if bin_.rule.tracks_bearing and not catalogue.flat:
            continue
        there = catalogue.to(device)
        if bin_.rule.reads_centre:
            there = balanced(there, bin_)
        yield Setting(f"{name}, rule {rule}", bin_, there, 2, 5)


# Cells along x, y and up.
_BOX_SIDES = ((1, 1, 2), (3, 2, 1), (4, 5, 2), (10, 3, 1))


def _boxes() -> Catalogue:
    """Return four boxes in two orientations, one of them too large for a small bin."""
    sides = torch.tensor(_BOX_SIDES, dtype=torch.float64, device="cpu")
    metres = torch.tensor([1, 1, _CELL], dtype=torch.float64, device="cpu")
    turned = sides[:, [1, 0, 2]]
    return Catalogue.of_boxes(torch.stack([sides, turned], 1) * metres, sides.prod(1) * _CELL**3)


# Cells of nothing below the material of three solids with overhangs: a table, a step, and one with a hole.
_NO_MATERIAL = 9
_TABLE = [[0, 2, 2, 0], [2, 2, 2, 2], [0, 2, 2, 0]]
_STEP = [[0, 0], [1, 1], [2, 2], [2, 0], [1, 0]]
_RING = [[0, 0, 0], [0, _NO_MATERIAL, 0], [0, 0, 0]]


def _solids(unit: float | None) -> Catalogue:
    """Return three solids with overhangs in four quarter turns."""
    top = torch.zeros(3, 4, 5, 5, dtype=torch.float32, device="cpu")
    bottom = torch.full_like(top, torch.inf)
    extent = torch.zeros(3, 4, 2, dtype=torch.int64, device="cpu")
    for item, low in enumerate((_TABLE, _STEP, _RING)):
        for turn in range(4):
            view = torch.rot90(extent.new_tensor(low), turn)
            rows, columns = view.shape
            material = view < _NO_MATERIAL
            bottom[item, turn, :rows, :columns] = torch.where(material, view * _CELL, torch.inf)
            top[item, turn, :rows, :columns] = torch.where(material, (3 + item) * _CELL, 0.0)
            extent[item, turn] = extent.new_tensor(view.shape)
    volume = top.new_tensor([0.04, 0.03, 0.02])
    return Catalogue.of_maps(top, bottom, extent, volume, unit, extent.float() * (_CELL / 2))


def difference(jobs: Jobs, setting: Setting, steps: int = 3) -> str:
    """Return the first kernel whose result differs from that of `eager`, "" for none.

    `steps` items are placed in a few bins. The state follows `eager`, so that one error does not hide later ones.
    """

    def call_both(job: str, *given: object) -> object:
        expected = getattr(eager, job)(*map(_copied, given))
        try:
            ours = jobs[job](*map(_copied, given))
            found = _difference(list(_tensors(ours)), list(_tensors(expected)), setting)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # A compiler, a driver or a kernel may raise anything.
            found = f": {self_tests.reason(error)}"
        if found:
            raise _Different(f"{job} of {setting.name}{found}")
        return expected

    try:
        _play(call_both, setting, steps, _legal_action)
    except _Different as different:
        return str(different)
    return ""


class _Different(Exception):
    """A kernel's result differs from that of `eager`."""


def _play(
    call: Callable[..., Any], setting: Setting, steps: int, choose: Callable[[PackingState, int], Tensor]
) -> Tensor:
    """Pack a few items by `call(job, *arguments)`.

    `any_legal` of the final state is returned. Every kernel is among the jobs.
    """
    judged = setting.bin
    catalogue = setting.catalogue
    k = setting.visible_items
    n = setting.num_envs
    bin_ = judged.dropped
    row = torch.arange(n, device=setting.device, dtype=torch.int64)
    item_id = (row[:, None] + torch.arange(k, device=setting.device, dtype=torch.int64)) % catalogue.num_items
    if k > 1:
        # An empty slot.
        item_id[0, -1] = -1
    state = PackingState.blank(n, k, steps, catalogue, judged)
    state = call("restart", state, row % 3 < 2, row + 7, item_id, catalogue, bin_)
    state = call("restart", state, row >= 0, row + 7, item_id, catalogue, bin_)
    for number in range(steps):
        stored = None
        if number:
            following = (row + number * k) % catalogue.num_items
            moved = call("advance", state, choose(state, number), following, catalogue, bin_)
            stored = StoredMaps(state.z_map, state.legal, moved.slot, moved.changed)
            placement = _last_placement(moved, state.num_packed.clamp_max(steps - 1))
            call("place", state.heightmap, placement, catalogue, bin_)
            if judged is not bin_:
                bears = call("bear", state.heightmap, state.bears, placement, catalogue, judged)
                moved = moved._replace(state=replace(moved.state, bears=bears))
            state = moved.state
        z_map, legal = call("drop_map", state.heightmap, state.item_id, catalogue, bin_)
        if stored is not None and not catalogue.flat:
            call("drop_map", state.heightmap, state.item_id, catalogue, bin_, stored)
        if judged is not bin_:
            legal = call("upheld", state.heightmap, state.bears, z_map, legal, state.item_id, catalogue, judged)
        call("pile_growth", state.heightmap, state.item_id, z_map, catalogue, bin_)
        state = replace(state, z_map=z_map, legal=legal)
    has_legal: Tensor = call("any_legal", state.legal)
    return has_legal


def _last_placement(moved: Moved, last: Tensor) -> Placement:
    """Return the placements in row `last` (N,) of each record, item −1 for none."""
    row = torch.arange(len(last), device=last.device, dtype=torch.int64)
    item, orientation, x, y = moved.state.placements[row, last].long().unbind(1)
    z = moved.state.placement_z[row, last]
    return Placement(torch.where(moved.legal, item, -1), orientation, x, y, z)


def _legal_action(state: PackingState, number: int) -> Tensor:
    """Return an action of each bin, (N,) int64.

    It is the legal action of another rank in each, and an illegal one in the last of several bins.
    """
    legal = state.legal.flatten(1)
    row = torch.arange(len(legal), device=legal.device, dtype=torch.int64)
    rank = (row * 3 + number) % legal.sum(1).clamp_min(1)
    action = ((legal.cumsum(1) == rank[:, None] + 1) & legal).int().argmax(1)
    if len(legal) == 1:
        return action
    illegal = (~legal).int().argmax(1)
    return torch.where(row == len(legal) - 1, illegal, action)


def _difference(came: list[tuple[str, Tensor]], expected: list[tuple[str, Tensor]], setting: Setting) -> str:
    if [name for name, _ in came] != [name for name, _ in expected]:
        return f": gives {len(came)} tensors, eager {len(expected)}"
    for (name, ours), (_, theirs) in zip(came, expected, strict=True):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return f": {name} is {shown(ours)}, of eager {shown(theirs)}"
        if theirs.is_floating_point():
            # NaN differs from all, itself too.
            wrong = ~torch.isclose(ours, theirs, rtol=1e-5, atol=setting.bin.tolerance / 2)
        else:
            wrong = ours != theirs
        allowed = setting.most_wrong * theirs.numel() if theirs.dtype == torch.bool else 0
        number = int(wrong.sum())
        if number > allowed:
            return f": {number} of {theirs.numel()} numbers of {name} are not those of eager"
    return ""


def _tensors(result: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a kernel's result, by name."""
    if isinstance(result, Tensor):
        yield "the result", result
    elif isinstance(result, Moved):
        yield from _tensors(result.state)
        yield "legal", result.legal
        yield "slot", result.slot
        yield "changed", result.changed
    elif isinstance(result, PackingState):
        for field in fields(PackingState):
            yield field.name, getattr(result, field.name)
    else:
        assert isinstance(result, Sequence)
        z_map, legal = result
        yield "z_map", z_map
        yield "legal", legal


def _copied(argument: object) -> object:
    """Return the argument with copies of the tensors that a kernel writes in place."""
    if not isinstance(argument, PackingState):
        return argument
    return replace(argument, placements=argument.placements.clone(), placement_z=argument.placement_z.clone())
