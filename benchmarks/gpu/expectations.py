"""Lower bounds of kernel times on a GPU.

They come from bytes and operations of a shipped config, at published rates.

A bound, not a measurement: nothing here was run on a GPU. `python -m benchmarks.gpu.expectations` writes
`results/kernels_bounds.json`; a report of a GPU prints its times over these. Bytes are what a kernel is given and
writes, each element once, as if its caches were perfect. Operations are additions with a maximum (`add-max`, irregular
items) or maxima and comparisons (boxes), of items of the catalogue's mean size; all other instructions are left out.
Whichever takes longer is the bound. Where the bytes of a batch fit the cache of the second level, whose rate is not
published, they bound nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.chips import DEVICES, MAXIMA_PER_CLOCK, Device
from benchmarks.gpu.steps import CONFIGS, environment
from benchmarks.result_types import JsonObject
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.kernels.triton.boxes import MOST_CELLS_X
from torchrl_gpu.envs.packing.kernels.triton.solids import pairs_on
from torchrl_gpu.envs.packing.kernels.triton.undersides import fit_bytes
from torchrl_gpu.evaluation.reports import write_json

# Bytes of a number of each type.
_FLOAT = 4
_LONG = 8
_INT = 4
_FLAG = 1
# Bytes of a placement: its height and its legality.
_MAP = _FLOAT + _FLAG
# Bytes of an item in an orientation: extent and height.
_VARIANT = 2 * _LONG + _FLOAT


class Work(NamedTuple):
    """The least work of a kernel in one step of one environment.

    Attributes:
        num_bytes: Read and written.
        operations: Add-max of irregular items, maxima and comparisons of boxes.
    """

    num_bytes: float
    operations: float = 0.0


class Bound(NamedTuple):
    """The least time of a kernel in one step of all environments of a config.

    Attributes:
        seconds: At published rates.
        limit: "bytes", "operations", or "" where neither bounds it.
        work: Of one environment.
    """

    seconds: float
    limit: str
    work: Work


def work(env: PackingEnv) -> dict[str, Work]:
    """Return the work of a step of one environment of a batch, by kernel.

    Its placement is legal, and `restart_kernel` restarts no episode. Of irregular items whose maps are kept, only the
    one newly shown is worked out.
    """
    cells = env.bin.cells[0] * env.bin.cells[1]
    slots, orientations = env.visible_items, env.num_orientations
    placements = slots * orientations * env.bin.grid[0] * env.bin.grid[1]
    moved, row = _rows(env)
    written = placements * _MAP
    found = {
        "advance_kernel": Work(2 * cells * _FLOAT + moved),
        "restart_kernel": Work(2 * cells * _FLOAT + 2 * written + row),
    }
    # The items that are shown differ; an environment reads its own.
    items = slots * (_LONG + orientations * _VARIANT)
    if env.catalogue.flat:
        windows = min(env.catalogue.footprint[1], env.bin.cells[1]).bit_length()
        wide = env.bin.cells[0] > MOST_CELLS_X
        # At least one level of the windows is read.
        read = cells * _FLOAT * (2 if wide and _judged(env) else 1)
        name = "drop_wide_boxes_kernel" if wide else "drop_boxes_kernel"
        if wide:
            found["windows_kernel"] = Work(cells * _FLOAT * (1 + windows), cells * (windows - 1))
        found[name] = Work(items + read + written, slots * _box_operations(env, wide))
    else:
        split = env.bin.step**2 * env.bin.grid[0] * env.bin.grid[1]
        counted = env.catalogue.unit is not None
        in_bytes = counted and fit_bytes(env.catalogue, env.bin)
        # Heights, counts, and maxima of blocks.
        copies = _FLOAT * (env.bin.step > 1) + _INT * counted + _INT * in_bytes
        if copies:
            found["split_kernel"] = Work(cells * _FLOAT + split * copies)
        kept = written - written / slots if env._keeps_maps else 0.0
        new = 1 if env._keeps_maps else slots
        area = float(env.catalogue.extent.prod(-1).sum(-1).float().mean())
        read = cells * (_INT if counted else _FLOAT)
        # Maxima of blocks, of the phases in which placements begin: on the grid, or flush along an axis.
        if in_bytes:
            read += cells * _INT * min(4 / env.bin.step**2, 1)
        read += new * area * (_FLAG if in_bytes else _FLOAT)
        found["drop_solids_kernel"] = Work(items + read + kept + written, new * _solid_operations(env))
    return found


def _rows(env: PackingEnv) -> tuple[float, float]:
    """Return the bytes of an environment's own values in an action and in a restart."""
    slots = env.visible_items
    # Position, packed and steps, volume, stable: all are read and written.
    counters = 2 * (3 * _LONG + _FLOAT + _FLAG)
    # The last terms are following, changed, items and slots.
    action = 2 * _LONG + _MAP + _FLAG + 4 * _LONG + 3 * slots * _LONG
    placed = 4 * _INT + _FLOAT + 2 * _LONG + 2 * _FLOAT
    maps = 0.0
    if not env.catalogue.flat:
        maps = 2 * _FLOAT * float(env.catalogue.extent.prod(-1).float().mean())
    return counters + action + placed + maps, counters + 4 * _LONG + _FLAG + 2 * slots * _LONG


def _judged(env: PackingEnv) -> bool:
    return env.bin.stability != "none"


def _fitting(env: PackingEnv, axis: int) -> Tensor:
    """Placements along an axis where each item in each orientation fits, (M, O)."""
    extent = env.catalogue.extent[..., axis]
    return grid_positions(extent, env.bin.cells[axis], env.bin.step)[1].sum(-1).float()


def _box_operations(env: PackingEnv, wide: bool) -> float:
    """Count the operations of one item's maps in all orientations.

    They are maxima, and comparisons of its footprints where a rule needs them.
    """
    p, q = env.catalogue.extent.float().unbind(-1)
    along_x, along_y = _fitting(env, 0), _fitting(env, 1)
    fits = (along_x > 0) & (along_y > 0)
    per_line = 2 * 2 * env.bin.cells[0] if wide else env.bin.cells[0] * q
    operations = torch.where(fits, along_y * per_line, 0.0)
    if _judged(env):
        operations = operations + along_x * along_y * p * q
    return float(operations.sum(-1).mean())


def _solid_operations(env: PackingEnv) -> float:
    """Count the operations of one item's maps in all orientations.

    They are add-max, and comparisons of its footprints where a rule needs them.
    """
    cells = env.catalogue.extent.prod(-1).float()
    passes = 2 if _judged(env) else 1
    return float((passes * cells * _fitting(env, 0) * _fitting(env, 1)).sum(-1).mean())


def bound(kernel: str, config: str, device: Device, num_envs: int | None = None) -> Bound:
    """Return the least time of a kernel in a step of a shipped config on a device.

    The default is the config's number of environments.
    """
    env = environment(config)
    of_kernel = work(env)[kernel]
    num_bytes = (num_envs or env.num_envs) * of_kernel.num_bytes
    by_operations = operations_seconds(kernel, config, device, num_envs)
    by_bytes = num_bytes / device.bandwidth if num_bytes > device.cache_bytes else 0.0
    seconds = max(by_bytes, by_operations)
    limit = ""
    if seconds:
        limit = "bytes" if by_bytes == seconds else "operations"
    return Bound(seconds, limit, of_kernel)


def operations_seconds(kernel: str, config: str, device: Device, num_envs: int | None = None) -> float:
    """Time of a kernel's operations alone."""
    env = environment(config)
    counted = kernel == "drop_solids_kernel" and env.catalogue.unit is not None
    pairs = counted and pairs_on(*divmod(device.capability, 10))
    operations = (num_envs or env.num_envs) * work(env)[kernel].operations
    return operations / device.operations(MAXIMA_PER_CLOCK * (2 if pairs else 1))


def section() -> JsonObject:
    """List bytes and operations of an environment by config and kernel.

    Bounds of its batch follow, by device.
    """
    columns = {"config": "config", "kernel": "kernel", "bytes": "bytes", "operations": "operations"}
    rows = []
    for config in CONFIGS:
        env = environment(config)
        for kernel, of_kernel in work(env).items():
            row = {"config": f"{config}, {env.num_envs}", "kernel": kernel.removesuffix("_kernel")}
            row |= {"bytes": f"{of_kernel.num_bytes:,.0f}"}
            row |= {"operations": f"{of_kernel.operations:,.0f}" if of_kernel.operations else "–"}
            for name, device in DEVICES.items():
                least = bound(kernel, config, device)
                row[name] = f"{least.seconds * 1e6:.3g} {least.limit}" if least.limit else "–"
            rows.append(row)
    return {"title": "bounds", "columns": columns | {name: f"{name}, µs" for name in DEVICES}, "rows": rows}


def main() -> int:
    """Write the JSON of the table in the documentation."""
    path = Path(__file__).parents[1] / "results" / "kernels_bounds.json"
    write_json(path, {"benchmark": "gpu.expectations", "sections": [section()]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
