"""An action of v2 in C++ on a CPU, dynamics and sensors in one pass; `native/sailing.h` is the kernel."""

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


class _Sea(native.Arguments):
    """`struct Sea` of sailing.h."""

    _fields_ = (
        *native.of_type(c_int64, "envs robots cores obstacles lagged threads"),
        *native.of_type(c_double, "dt max_speed turn core_square radius reach robot_reach sight far above_zero"),
        *native.of_type(c_double * (SUBSTEPS + 1), "kept less_cos sin"),
        *native.of_type(c_void_p, "motion cos_heading sin_heading action active scene"),
        *native.of_type(c_void_p, "moved energy observation mask clearance touches"),
    )


_CPU = torch.device("cpu")
_SERIES = {
    "kept": tuple((1 - DRAG * DT) ** k for k in range(SUBSTEPS + 1)),
    "less_cos": tuple(1 - math.cos(TURN * DT * k) for k in range(SUBSTEPS + 1)),
    "sin": tuple(math.sin(TURN * DT * k) for k in range(SUBSTEPS + 1)),
}


def sail(
    model: Unicycle, motion: Tensor, action: Tensor, scene: Tensor, active: Tensor, sizes: Sizes, craft: Craft
) -> After:
    """State after an action, as `Unicycle.move` and `see_v2` give it but for what is rounded.

    Motion is (8, R, N), action (R, N) int64, scene (2R + 3C + 3M, N), and `active` (R, N) bool.

    Raises:
        ValueError: One of them is something else.
    """
    (robots, cores, obstacles), envs, dtype = sizes, motion.shape[-1], model.kept.dtype
    forms = {
        "motion": (motion, dtype, (8, robots, envs)),
        "action": (action, torch.int64, (robots, envs)),
        "active": (active, torch.bool, (robots, envs)),
        "scene": (scene, dtype, (2 * robots + 3 * cores + 3 * obstacles, envs)),
    }
    given = {name: arguments.tensor("MarineNavEnv", name, *form, _CPU) for name, form in forms.items()}
    given |= {"cos_heading": motion[HEADING].cos(), "sin_heading": motion[HEADING].sin()}
    out = {
        "moved": native.output(8, robots, envs, dtype=dtype),
        "energy": native.output(robots, envs, dtype=dtype),
        "observation": native.output(envs, robots, craft.observation_size, dtype=dtype),
        "mask": native.output(envs, robots, craft.num_seen, dtype=dtype),
        "clearance": native.output(robots, envs, dtype=dtype),
        "touches": native.output(robots, envs, dtype=torch.bool),
    }
    reach, robot_reach = reaches(craft)
    counts = {"envs": envs, "robots": robots, "cores": cores, "obstacles": obstacles, "lagged": model.lagged}
    lengths = {"radius": craft.radius, "reach": reach, "robot_reach": robot_reach, "sight": craft.sight, "far": FAR}
    rates = {"dt": DT, "max_speed": MAX_SPEED, "turn": TURN, "core_square": CORE_RADIUS**2, "above_zero": ABOVE_ZERO}
    sea = _Sea.of(given | out, threads=kernel_threads(), **counts, **lengths, **rates, **_SERIES)
    native.library().sail(byref(sea), c_int64(dtype.itemsize))
    seen = out["observation"], out["mask"], out["clearance"], out["touches"]
    return After(out["moved"], out["energy"], *seen, None)
