"""An action of v2 in C++ on a CPU, dynamics and sensors in one pass.

The kernel is `native/sailing.h`.
"""

from __future__ import annotations

import math
from ctypes import byref, c_double, c_int64, c_void_p

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.marine.dynamics import DRAG, MAX_SPEED, TURN, Unicycle
from torchrl_gpu.envs.marine.levels import Sizes
from torchrl_gpu.envs.marine.sensors import ABOVE_ZERO, reaches
from torchrl_gpu.envs.marine.types import CORE_RADIUS, DT, FAR, HEADING, SUBSTEPS, After, Craft
from torchrl_gpu.system import arguments
from torchrl_gpu.system.threads import kernel_threads

# Members of `struct Sea` that are counts, and those that are numbers.
_COUNTS = native.of_type(c_int64, "envs robots cores obstacles lagged threads")
_NUMBERS = native.of_type(c_double, "dt max_speed turn core_square radius reach robot_reach sight far above_zero")


class _Sea(native.Arguments):
    """`struct Sea` of sailing.h."""

    _fields_ = (
        *_COUNTS,
        *_NUMBERS,
        *native.of_type(c_double * (SUBSTEPS + 1), "kept less_cos sin"),
        *native.of_type(c_void_p, "motion cos_heading sin_heading action active scene"),
        *native.of_type(c_void_p, "moved energy observation mask clearance touches"),
    )


_CPU = torch.device("cpu")

# Powers of the drag, and sines and cosines of the turn, after each substep: the same for all robots.
_KEPT = tuple((1 - DRAG * DT) ** k for k in range(SUBSTEPS + 1))
_LESS_COS = tuple(1 - math.cos(TURN * DT * k) for k in range(SUBSTEPS + 1))
_SIN = tuple(math.sin(TURN * DT * k) for k in range(SUBSTEPS + 1))
SERIES = {"kept": _KEPT, "less_cos": _LESS_COS, "sin": _SIN}


def sail(
    model: Unicycle, motion: Tensor, action: Tensor, scene: Tensor, active: Tensor, sizes: Sizes, craft: Craft
) -> After:
    """Return the state after an action.

    It equals that of `Unicycle.move` and `see_v2` up to rounding. Motion is (8, R, N), action (R, N) int64, scene
    (2R + 3C + 3M, N), and `active` (R, N) bool.

    Raises:
        ValueError: A tensor has another dtype, shape or device.
    """
    robots, cores, obstacles = sizes
    envs = motion.shape[-1]
    dtype = model.kept.dtype
    scene_rows = 2 * robots + 3 * cores + 3 * obstacles
    where = "MarineNavEnv"
    given = {}
    given["motion"] = arguments.tensor(where, "motion", motion, dtype, (8, robots, envs), _CPU)
    given["action"] = arguments.tensor(where, "action", action, torch.int64, (robots, envs), _CPU)
    given["active"] = arguments.tensor(where, "active", active, torch.bool, (robots, envs), _CPU)
    given["scene"] = arguments.tensor(where, "scene", scene, dtype, (scene_rows, envs), _CPU)
    given["cos_heading"] = motion[HEADING].cos()
    given["sin_heading"] = motion[HEADING].sin()

    out = {
        "moved": native.output(8, robots, envs, dtype=dtype),
        "energy": native.output(robots, envs, dtype=dtype),
        "clearance": native.output(robots, envs, dtype=dtype),
        "touches": native.output(robots, envs, dtype=torch.bool),
    }
    out["observation"] = native.output(envs, robots, craft.observation_size, dtype=dtype)
    out["mask"] = native.output(envs, robots, craft.num_seen, dtype=dtype)

    reach, robot_reach = reaches(craft)
    counts = {"envs": envs, "robots": robots, "cores": cores, "obstacles": obstacles, "lagged": model.lagged}
    lengths = {"radius": craft.radius, "reach": reach, "robot_reach": robot_reach, "sight": craft.sight, "far": FAR}
    rates = {"dt": DT, "max_speed": MAX_SPEED, "turn": TURN, "core_square": CORE_RADIUS**2, "above_zero": ABOVE_ZERO}
    sea = _Sea.of(given | out, threads=kernel_threads(), **counts, **lengths, **rates, **SERIES)
    native.library().sail(byref(sea), c_int64(dtype.itemsize))
    return After(
        motion=out["moved"],
        energy=out["energy"],
        observation=out["observation"],
        object_mask=out["mask"],
        clearance=out["clearance"],
        touches=out["touches"],
        turn=None,
    )
