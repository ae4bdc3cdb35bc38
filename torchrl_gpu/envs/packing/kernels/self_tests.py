"""Self-tests of kernel backends: every kernel is compared with that of `eager` while a few bins are packed.

A backend is tested on small bins of every kind before "auto" takes it on a device. Triton compiles kernels for the
constants of a bin, so it is also tested in the bin of an environment when that is made; then each kernel runs once in
this process at the environment's size, so that no step compiles anything.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
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
Jobs = dict[str, Callable[..., Any]]
_NEEDS_NO_TEST = ("eager", "reference")  # the others are compared with the first
_COMPILED_FOR_SETTINGS = ("triton",)
_HERE = Path(__file__).parent
_ENVS = 3  # of the self-test in an environment's bin
_MOST_ITEMS = 12  # of an environment's catalogue, evenly from first to last
_CELL = 0.125  # metres, a power of two: heights and their sums are exact


class Setting(NamedTuple):
    """Bin, catalogue and batch sizes that a backend may compile its kernels for."""

    name: str  # for messages
    bin: Bin
    catalogue: Catalogue  # the items, on the device
    visible_items: int  # K
    num_envs: int  # N
    most_wrong: float = 0.0  # share of placements whose stability may differ from that of `eager`

    @property
    def device(self) -> torch.device:
        """Device of the catalogue, on which the kernels run."""
        return self.catalogue.extent.device


def device_failure(backend: str, device: torch.device, module: str) -> str:
    """Failure of a backend's self-test on a device, in one line.

    "" where it passes. `module` defines its kernels.
    """
    if backend in _NEEDS_NO_TEST:
        return ""
    name = f"the packing kernels {backend!r} on {device}"
    arguments, depends_on = (module, str(device)), versions(module, device)
    forks = backend == "compiled"
    return SelfTest(name, f"{__name__}:run_every_kind", arguments, depends_on, forks).failure()


def setting_failure(backend: str, setting: Setting, module: str) -> str:
    """Failure of a backend's self-test in an environment's bin, in one line.

    "" where it passes or needs none.
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
    depends_on = versions(module, setting.device) | {"setting": _constants(setting._replace(num_envs=_ENVS))}
    return SelfTest(name, f"{__name__}:run_setting", (module, str(setting.device), str(path)), depends_on)


def launch_failure(backend: str, setting: Setting, module: str) -> str:
    """Failure of a backend's kernels in this process, called as an environment will.

    "" where they run.

    Raises:
        RuntimeError: They have left the device unusable for this process.
        torch.OutOfMemoryError: The environment does not fit on the device.
    """
    device = setting.device
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"  # takes seconds, compiles nothing
    if backend not in _COMPILED_FOR_SETTINGS or interpreted:
        return ""
    key = module, str(device), _constants(setting)
    if key in _LAUNCHED:
        return _LAUNCHED[key]
    jobs = _jobs(module)
    try:
        legal = _play(
            lambda job, *arguments: jobs[job](*arguments), setting, 2, lambda state, _: torch.zeros_like(state.key)
        )
        legal.sum().item()  # synchronises, so that a failure on the device is raised here
        _LAUNCHED[key] = ""
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # anything that a compiler, a driver or a kernel raises
        _LAUNCHED[key] = failure = self_tests.reason(error)
        try:
            self_tests.usable(str(device))
        except self_tests.Unavailable:  # an illegal access leaves a process no way back to the device
            _setting_test(backend, setting, module, Path()).keep(failure)
            raise RuntimeError(
                f"packing kernels: want a backend that leaves {device} usable; got {backend!r}: {failure}; the next"
                " run takes another one, or this one with backend='eager'"
            ) from error
    return _LAUNCHED[key]


_LAUNCHED: dict[tuple[str, str, str], str] = {}


def _constants(setting: Setting) -> str:
    """The constants that kernels may be compiled for, as a key."""
    c = setting.catalogue
    maps = None if c.bottom is None else tuple(c.bottom.shape[-2:])
    parts = setting.bin, c.bounds, c.least, c.unit, maps, c.centre_16ths is None, *setting[3:5]
    return repr((*parts, c.num_items if c.num_items < 2 else c.num_items % 16 == 0))


def versions(module: str, device: torch.device) -> dict[str, str]:
    """Versions of sources, packages, compiler and device that the result of a backend's self-test depends on."""
    own = Path(importlib.import_module(module).__file__ or __file__)
    rules = _HERE.parent / "stability"
    sources = {*_HERE.rglob("*.py"), *rules.rglob("*.py"), _HERE.parent / "types.py", _HERE.parent / "geometry.py", own}
    contents = b"".join(path.read_bytes() for path in sorted(sources))
    found = triton_kernels.versions(module, contents, device)
    if device.type == "cpu":
        # its name contains a hash of its sources, compiler and processor
        found["library"] = "" if native.problem() else Path(native.library()._name).name
    return found


# -- in the subprocess ------------------------------------------------------------------------------------------------


def run_every_kind(module: str, device: str) -> str:
    """First wrong kernel of a backend on boxes, in small and wide bins, and solids, by every rule; "" for none."""
    there = self_tests.usable(device)
    return _first_difference(module, (setting for rule in STABILITY_RULES for setting in settings(rule, there)))


def run_setting(module: str, device: str, path: str) -> str:
    """First wrong kernel of a backend in a setting that `save` has written.

    "" for none.
    """
    return _first_difference(module, iter([load(path, self_tests.usable(device))]))


def _first_difference(module: str, tested: Iterator[Setting]) -> str:
    jobs = _jobs(module)
    try:
        return next(filter(None, (difference(jobs, setting) for setting in tested)), "")
    except torch.OutOfMemoryError as error:
        raise self_tests.Unavailable(f"the device's memory is full: {self_tests.reason(error)}") from error


def _jobs(module: str) -> Jobs:
    backend = importlib.import_module(module)
    return {job: getattr(backend, job) for job in JOBS}


def save(setting: Setting, path: str) -> None:
    """Saves a setting with at most `_MOST_ITEMS` of its items, since a catalogue may take most of the memory."""
    c = setting.catalogue
    rows = torch.linspace(0, c.num_items - 1, min(c.num_items, _MOST_ITEMS), dtype=torch.float32, device=setting.device)
    tensors = {field.name: each for field in fields(c) if isinstance(each := getattr(c, field.name), Tensor)}
    few = replace(c, **{name: value[rows.long()] for name, value in tensors.items()})  # type: ignore[arg-type]
    torch.save(setting._replace(catalogue=few), path)


def load(path: str, device: torch.device) -> Setting:
    """Loads a setting that `save` has written."""
    with torch.serialization.safe_globals([Setting, Bin, Catalogue]):
        setting: Setting = torch.load(path, weights_only=True, map_location=device)
    return setting


def settings(rule: str, device: torch.device) -> Iterator[Setting]:
    """Small settings for every kind of kernel: boxes in small and wide bins, solids with heights counted or not."""
    for name, cells, step, catalogue in (
        ("boxes", (9, 8), 1, _boxes()),
        ("boxes in a wide bin", (18, 7), 2, _boxes()),
        ("solids", (9, 8), 2, _solids(None)),
        ("solids of whole heights", (9, 8), 2, _solids(_CELL)),
    ):
        bin_ = Bin((cells[0] * _CELL, cells[1] * _CELL, 12 * _CELL), cells, step, rule, _CELL, 10)
        if bin_.rule.tracks_bearing and not catalogue.flat:
            continue
        there = catalogue.to(device)
        if bin_.rule.reads_centre:
            there = balanced(there, bin_)
        yield Setting(f"{name}, rule {rule}", bin_, there, 2, 5)


def _boxes() -> Catalogue:
    """Four boxes in two orientations.

    One of them is too large for a small bin.
    """
    sides = torch.tensor([[1, 1, 2], [3, 2, 1], [4, 5, 2], [10, 3, 1]], dtype=torch.float64, device="cpu")
    metres = torch.tensor([1, 1, _CELL], dtype=torch.float64, device="cpu")
    return Catalogue.of_boxes(torch.stack([sides, sides[:, [1, 0, 2]]], 1) * metres, sides.prod(1) * _CELL**3)


def _solids(unit: float | None) -> Catalogue:
    """Three solids with overhangs in four quarter turns: a table, a step, and one with a hole."""
    top = torch.zeros(3, 4, 5, 5, dtype=torch.float32, device="cpu")
    bottom = torch.full_like(top, torch.inf)
    extent = torch.zeros(3, 4, 2, dtype=torch.int64, device="cpu")
    solids = (  # cells of nothing below the material; 9 marks no material
        [[0, 2, 2, 0], [2, 2, 2, 2], [0, 2, 2, 0]],
        [[0, 0], [1, 1], [2, 2], [2, 0], [1, 0]],
        [[0, 0, 0], [0, 9, 0], [0, 0, 0]],
    )
    for item, low in enumerate(solids):
        for turn in range(4):
            view = torch.rot90(extent.new_tensor(low), turn)
            rows, columns = view.shape
            material = view < 9
            bottom[item, turn, :rows, :columns] = torch.where(material, view * _CELL, torch.inf)
            top[item, turn, :rows, :columns] = torch.where(material, (3 + item) * _CELL, 0.0)
            extent[item, turn] = extent.new_tensor(view.shape)
    volume = top.new_tensor([0.04, 0.03, 0.02])
    return Catalogue.of_maps(top, bottom, extent, volume, unit, extent.float() * (_CELL / 2))


def difference(jobs: Jobs, setting: Setting, steps: int = 3) -> str:
    """First kernel whose result differs from that of `eager` while `steps` items are placed in a few bins; "" for none.

    The state follows `eager`, so that one error does not hide later ones.
    """

    def both(job: str, *arguments: Any) -> Any:
        expected = getattr(eager, job)(*map(_copied, arguments))
        try:
            came = jobs[job](*map(_copied, arguments))
            found = _difference(list(_tensors(came)), list(_tensors(expected)), setting)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # anything that a compiler, a driver or a kernel raises
            found = f": {self_tests.reason(error)}"
        if found:
            raise _Different(f"{job} of {setting.name}{found}")
        return expected

    try:
        _play(both, setting, steps, _legal_action)
    except _Different as different:
        return str(different)
    return ""


class _Different(Exception):
    """A kernel's result differs from that of `eager`."""


def _play(
    call: Callable[..., Any], setting: Setting, steps: int, choose: Callable[[PackingState, int], Tensor]
) -> Tensor:
    """Packs a few items by `call(job, *arguments)`, every kernel among them.

    `any_legal` of the final state.
    """
    _, judged, catalogue, k, n, _ = setting
    bin_ = judged.dropped
    row = torch.arange(n, device=setting.device, dtype=torch.int64)
    item_id = (row[:, None] + torch.arange(k, device=setting.device, dtype=torch.int64)) % catalogue.num_items
    item_id[0, -1] = -1 if k > 1 else item_id[0, -1]  # an empty slot
    state = PackingState.blank(n, k, steps, catalogue, judged)
    state = call("restart", state, row % 3 < 2, row + 7, item_id, catalogue, bin_)
    state = call("restart", state, row >= 0, row + 7, item_id, catalogue, bin_)
    for number in range(steps):
        stored = None
        if number:
            following = (row + number * k) % catalogue.num_items
            moved = call("advance", state, choose(state, number), following, catalogue, bin_)
            stored = StoredMaps(state.z_map, state.legal, moved.slot, moved.changed)
            last = state.num_packed.clamp_max(steps - 1)
            made, z = moved.state.placements[row, last].long(), moved.state.placement_z[row, last]
            placement = Placement(torch.where(moved.legal, made[:, 0], -1), made[:, 1], made[:, 2], made[:, 3], z)
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
    going: Tensor = call("any_legal", state.legal)
    return going


def _legal_action(state: PackingState, number: int) -> Tensor:
    """Actions (N,) int64: in each bin the legal action of another rank.

    An illegal one in the last of several bins.
    """
    legal = state.legal.flatten(1)
    row = torch.arange(len(legal), device=legal.device, dtype=torch.int64)
    rank = (row * 3 + number) % legal.sum(1).clamp_min(1)
    action = ((legal.cumsum(1) == rank[:, None] + 1) & legal).int().argmax(1)
    return torch.where(row == len(legal) - 1, (~legal).int().argmax(1), action) if len(legal) > 1 else action


def _difference(came: list[tuple[str, Tensor]], expected: list[tuple[str, Tensor]], setting: Setting) -> str:
    if [name for name, _ in came] != [name for name, _ in expected]:
        return f": gives {len(came)} tensors, eager {len(expected)}"
    for (name, ours), (_, theirs) in zip(came, expected, strict=True):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return f": {name} is {shown(ours)}, of eager {shown(theirs)}"
        if theirs.is_floating_point():  # NaN differs
            wrong = ~torch.isclose(ours, theirs, rtol=1e-5, atol=setting.bin.tolerance / 2)
        else:
            wrong = ours != theirs
        allowed = setting.most_wrong * theirs.numel() if theirs.dtype == torch.bool else 0
        if (number := int(wrong.sum())) > allowed:
            return f": {number} of {theirs.numel()} numbers of {name} are not those of eager"
    return ""


def _tensors(result: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a kernel's result, by name."""
    if isinstance(result, Tensor):
        yield "the result", result
    elif isinstance(result, Moved):
        yield from _tensors(result.state)
        yield from (("legal", result.legal), ("slot", result.slot), ("changed", result.changed))
    elif isinstance(result, PackingState):
        yield from ((field.name, getattr(result, field.name)) for field in fields(PackingState))
    else:
        yield from zip(("z_map", "legal"), result, strict=True)


def _copied(argument: Any) -> Any:
    """The argument with copies of the tensors that a kernel writes in place."""
    if not isinstance(argument, PackingState):
        return argument
    return replace(argument, placements=argument.placements.clone(), placement_z=argument.placement_z.clone())
