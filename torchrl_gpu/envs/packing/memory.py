"""How much memory environments will take, known before any is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from torchrl_gpu.envs.packing.types import Bin, Catalogue

_COUNTERS = 512  # bytes of an environment's numbers and flags, and of what a step works out of them
_SORTING = 40  # bytes per item of an episode that is drawn whole, to be sorted


def bytes_per_env(
    bin_: Bin,
    catalogue: Catalogue,
    *,
    visible_items: int,
    num_items: int,
    include: Sequence[str],
    backend: str,
    judged: bool = False,
) -> int:
    """Most bytes that one environment takes at any time of a step, the restart of finished rows included.

    It is the peak of the loop `step, current = env.step_and_maybe_reset(policy(current))`, without what the policy
    takes. Three observations are held all the while: both of the step before, which `step` still names, and the
    present one; and the state. To these come, while a step is made, the next state and what the kernels work in; and
    while rows are restarted, the next observation, a fresh state, the one chosen from both, and what makes them.

    What does not grow with the number of environments is left out: the catalogue, a pool of episodes, and the chunks
    in which the eager kernels treat irregular items.

    Args:
        bin_: The bin.
        catalogue: The items; only shapes count.
        visible_items: K.
        num_items: T, the most items of an episode.
        include: Which of the large observations are returned.
        backend: Name of the kernels.
        judged: Whether placements are judged one by one, when they are made.
    """
    s = _Sizes.of(bin_, catalogue, visible_items)
    num_maps = sum(name in include for name in ("item_top", "item_bottom"))
    shown_maps, making_maps = 4 * s.footprint * num_maps, _maps(s, catalogue) if num_maps else 0
    heightmap, z_map, legal = 4 * s.cells, 4 * s.placements, s.placements
    shown_z, items = z_map if "z_map" in include else 0, 8 * visible_items + 16 * s.variants  # numbers and sizes
    observation = heightmap + items + legal + shown_z + shown_maps

    specs = 2 * shown_maps + 32 * s.variants  # TorchRL writes out the bounds even of what has none
    held = 3 * observation + (z_map - shown_z) + 20 * num_items + specs + _COUNTERS
    judging = 20 * s.footprint // s.variants if judged else 0  # one window: heights, bottoms, indices and contacts
    stepping = heightmap + items + max(_drop_map(backend, s, bin_, catalogue), z_map + legal + making_maps, judging)
    if backend in ("compiled", "triton"):  # they write each row once
        choosing = 0
    else:  # walls, their sum with the heights and two results; then fresh rows beside the old and the chosen ones
        choosing = max(3 * z_map + legal, 2 * (z_map + legal + heightmap))
    chosen = z_map + legal + heightmap + making_maps
    restarting = observation + items + max(choosing, chosen, _SORTING * num_items)
    return held + max(stepping, restarting)


@dataclass(frozen=True)
class _Sizes:
    """Elements of one environment."""

    cells: int  # X·Y
    variants: int  # J = K·O
    placements: int  # J·Gx·Gy
    strips: int  # J·Gx·Y, a map whose second axis still counts cells
    footprint: int  # J·P·Q

    @staticmethod
    def of(bin_: Bin, catalogue: Catalogue, visible_items: int) -> _Sizes:
        (cells_x, cells_y), (grid_x, grid_y), (p, q) = bin_.cells, bin_.grid, catalogue.footprint
        j = visible_items * catalogue.num_orientations
        return _Sizes(cells_x * cells_y, j, j * grid_x * grid_y, j * grid_x * cells_y, j * p * q)


def _maps(s: _Sizes, catalogue: Catalogue) -> int:
    """Peak of `Catalogue.maps`, its two results included; those of irregular items are gathered first."""
    return (10 if catalogue.flat else 16) * s.footprint + 16 * s.variants


def _drop_map(backend: str, s: _Sizes, bin_: Bin, catalogue: Catalogue) -> int:
    """Peak of the backend's kernel, its two maps included."""
    maps = 5 * s.placements
    if backend == "compiled":
        return maps
    if backend == "triton":  # windows along a row of the bin, or the bin split into phases: float32 and int16
        levels = min(catalogue.footprint[1], bin_.cells[1]).bit_length()
        phases = bin_.step**2 * bin_.grid[0] * bin_.grid[1]
        return maps + (4 * levels * s.cells if catalogue.flat else 7 * phases)
    return _eager_drop_map(s, bin_, catalogue)


# -- the temporaries of kernels.eager, function by function: every sum is that of the tensors alive there --


def _eager_drop_map(s: _Sizes, bin_: Bin, catalogue: Catalogue) -> int:
    layout = s.variants * (96 + 8 * sum(bin_.grid))
    wall = 4 * s.placements
    rest = _rest_boxes(s, bin_, catalogue) if catalogue.flat else _rest_solids(s, bin_, catalogue)
    judged = 9 * s.placements  # z, its sum with the height or the map without infinities, legal
    stands = 0 if bin_.stability == "none" else 5 * s.placements + _stands(s, bin_, catalogue)
    return layout + wall + max(rest, judged, stands)


def _rest_boxes(s: _Sizes, bin_: Bin, catalogue: Catalogue) -> int:
    """Two passes of `_window_max`: tables of windows, two maps picked from them and their maximum."""
    levels_x, levels_y = (min(p, c).bit_length() for p, c in zip(catalogue.footprint, bin_.cells, strict=True))
    along_x = 4 * s.cells * (levels_x + 3 * s.variants)
    along_y = 4 * s.strips * (levels_y + 4)
    return max(along_x, along_y)


def _rest_solids(s: _Sizes, bin_: Bin, catalogue: Catalogue) -> int:
    """A map, and for a coarse grid those along the far walls, whose bottoms are turned about all at once."""
    if bin_.step == 1:
        return 8 * s.placements
    turned = 4 * (s.cells + s.placements) + 8 * s.footprint + 16 * s.variants * max(catalogue.footprint)
    chosen = 12 * s.placements
    return 8 * s.variants * sum(bin_.grid) + max(turned, chosen)


def _stands(s: _Sizes, bin_: Bin, catalogue: Catalogue) -> int:
    """Windows, level, scratch and bottoms, and the counters of the rule with what its last lines work out."""
    rows, columns = catalogue.footprint
    windows = 4 * s.variants * s.cells if bin_.step == 1 else 4 * (s.strips + s.placements)
    bottoms = 0 if catalogue.flat else 4 * s.footprint
    count = 1 if rows * columns <= 127 else 2
    counters = count + {"corners": 10, "support": 31, "com": 41}[bin_.stability]
    making = 4 * s.placements + _maps(s, catalogue) * (not catalogue.flat)
    return windows + max(making, bottoms + (8 + counters) * s.placements)


# -- what there is --


def check_fits(
    num_envs: int, per_env: int, device: torch.device, budget: int | None = None, where: str = "PackingEnv"
) -> None:
    """Refuses more environments than there is memory for.

    Args:
        num_envs: N.
        per_env: Bytes of one, from `bytes_per_env`.
        device: Where they shall live.
        budget: Bytes to be had there; None asks `free_bytes`, and where that does not know all is allowed.
        where: The first part of the message.

    Raises:
        ValueError: They do not fit; the message says how many would.
    """
    budget = free_bytes(device) if budget is None else budget
    if budget is None or num_envs * per_env <= budget:
        return
    raise ValueError(
        f"{where}: want at most {budget // per_env:,} environments on {device}"
        f" ({_readable(budget)} free, {_readable(per_env)} each); got {num_envs:,}"
    )


def free_bytes(device: torch.device, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that tensors on a device can still take; None where that is not known.

    Args:
        device: On CUDA the driver's free memory counts and what torch's allocator holds unused; on a CPU the memory
            that the system says can be had without swapping.
        meminfo: The system's own account of its memory.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type != "cpu" or not meminfo.is_file():
        return None
    for line in meminfo.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(amount.split()[0])
    return None


def _readable(size: int) -> str:
    """Bytes with a unit: 512 B, 46.5 KiB, 35.2 GiB."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
