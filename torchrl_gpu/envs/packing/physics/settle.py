"""Stability of a planned packing: displacement of its items in simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.physics.scene import FRICTION, model_of
from torchrl_gpu.envs.packing.physics.simulate import distances, move_in, run
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose
from torchrl_gpu.system.cores import usable_cores
from torchrl_gpu.system.extras import load_mujoco

if TYPE_CHECKING:
    import mujoco

MOST_MOVED_M = 0.02
MOST_TURNED = math.pi / 6

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Settled:
    """Final displacement of the I items of a packing from their plans.

    Attributes:
        moved: Metres between the centres of mass, (I,) float64.
        turned: Radians, 0 to π, (I,) float64.
        stable: Whether an item moved by less than 2 cm and turned by less than π/6, (I,) bool. Huang et al., RA-L 8(1),
            2023.
        seconds: Physical time that was simulated.
    """

    moved: np.ndarray
    turned: np.ndarray
    stable: np.ndarray
    seconds: float

    @property
    def share(self) -> float:
        """Share of stable placements, S, which is 1 for an empty bin."""
        return float(self.stable.mean()) if len(self.stable) else 1.0


def settle(
    solids: Sequence[Solid],
    poses: Sequence[Pose],
    bin_size: Sequence[float],
    walls: bool = True,
    masses: Sequence[float] | None = None,
    *,
    sequential: bool = True,
    seconds: float = 1.0,
    friction: float = FRICTION,
) -> Settled:
    """Simulate a planned packing in MuJoCo.

    Args:
        solids: Shape of each item.
        poses: Planned pose of each item, in the order of packing.
        bin_size: Length, width and height, metres.
        walls: Whether walls as high as the bin stand around it, or it is a pallet, off which items can fall.
        masses: Of each item, kilograms; None for one density of all.
        sequential: Each placement is tested by itself, in order: all before it start again from their plans, free to
            move, and it ends where it comes to rest. Else all items are released at once, and tested when all are at
            rest: faster, but blind to what falls until later items hold it.
        seconds: Longest physical time of one simulation, of all items or of each placement; it ends at rest.
        friction: Coulomb's coefficient between any two things.

    Returns:
        The same bits for the same plan on the same machine.

    Raises:
        ModuleNotFoundError: MuJoCo is not installed.
        ValueError: There are not as many solids or masses as poses, or a number is out of range.
    """
    length, width, height = bin_size
    weighed = None if masses is None else tuple(masses)
    plan = PackingPlan(tuple(solids), tuple(poses), (length, width, height), walls, weighed)
    _check(plan, seconds, friction)
    model = model_of(plan, friction=friction, parked=sequential)
    data = load_mujoco().MjData(model)
    if sequential:
        return _one_by_one(model, data, plan, seconds)
    passed = run(model, data, seconds)
    moved, turned = distances(data, plan, range(len(plan.poses)))
    return verdict(moved, turned, passed)


def settle_cases(
    plans: Iterable[PackingPlan],
    *,
    workers: int | None = None,
    progress: bool = False,
    sequential: bool = True,
    seconds: float = 1.0,
    friction: float = FRICTION,
) -> list[Settled]:
    """Simulate many packings with `settle`, in parallel threads.

    Args:
        plans: The packings.
        workers: Threads, which share no lock while MuJoCo runs; None takes one for each processor.
        progress: Whether to draw a bar.
        sequential, seconds, friction: As for `settle`.
    """

    def one(plan: PackingPlan) -> Settled:
        return settle(*plan, sequential=sequential, seconds=seconds, friction=friction)

    return in_threads(one, list(plans), workers, progress)


def in_threads(
    function: Callable[[PackingPlan], T], plans: Sequence[PackingPlan], workers: int | None, progress: bool
) -> list[T]:
    """Return the results of a function for each plan, in order, from worker threads."""
    from rich.progress import track

    with ThreadPoolExecutor(workers or usable_cores()) as pool:
        results = pool.map(function, plans)
        return list(track(results, "settling", total=len(plans), disable=not progress))


def verdict(moved: np.ndarray, turned: np.ndarray, seconds: float) -> Settled:
    """Return the stability that follows from distances to the plan.

    Args:
        moved: Metres, (I,).
        turned: Radians, (I,).
        seconds: Physical time that was simulated.
    """
    stable = (moved < MOST_MOVED_M) & (turned < MOST_TURNED)
    return Settled(moved, turned, stable, seconds)


def _check(plan: PackingPlan, seconds: float, friction: float) -> None:
    number = len(plan.poses)
    if len(plan.solids) != number:
        raise ValueError(f"settle: there are {len(plan.solids)} solids for {number} poses; give one for each")
    masses = plan.masses
    if masses is not None:
        if len(masses) != number:
            raise ValueError(f"settle: there are {len(masses)} masses for {number} poses; give one for each")
        if not all(0 < mass < math.inf for mass in masses):
            raise ValueError(f"settle: masses must be positive kilograms, not {masses}")
    if not min(plan.bin_size) > 0:
        raise ValueError(f"settle: bin_size must be three positive lengths in metres, not {plan.bin_size}")
    if not seconds > 0:
        raise ValueError(f"settle: seconds must be positive, not {seconds}")
    if not friction >= 0:
        raise ValueError(f"settle: friction must be at least 0, not {friction}")


def _one_by_one(model: mujoco.MjModel, data: mujoco.MjData, plan: PackingPlan, seconds: float) -> Settled:
    moved = np.zeros(len(plan.poses))
    turned = np.zeros(len(plan.poses))
    passed = 0.0
    for i in range(len(plan.poses)):
        move_in(data, plan, i + 1)
        passed += run(model, data, seconds, slice(i + 1, i + 2))
        shift, turn = distances(data, plan, range(i, i + 1))
        moved[i] = shift[0]
        turned[i] = turn[0]
    return verdict(moved, turned, passed)
