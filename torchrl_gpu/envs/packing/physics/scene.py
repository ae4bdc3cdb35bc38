"""MuJoCo model of a planned packing.

A bin or a pallet, and a body of convex parts for each item. MuJoCo is an extra: what is imported
here of it are types.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose, quaternion
from torchrl_gpu.system.extras import load_mujoco

if TYPE_CHECKING:
    import mujoco

# Three numbers, metres.
Vector: TypeAlias = Sequence[float] | np.ndarray

TIMESTEP_S = 0.004
FRICTION = 0.5
# kg/m³, of items whose mass is not known.
DENSITY = 500.0
WALL_M = 0.2
# Height of a pallet above the floor: what falls off it is displaced.
PALLET_M = 0.15
# A contact gives way by hundredths of a millimetre under the weight of a bin, and comes to rest in a few steps.
CONTACT_TIME_S = 0.01
CONTACT_DAMPING = 1.0
CONTACT_IMPEDANCE = (0.95, 0.99, 0.001, 0.5, 2.0)
# Address space for contacts, not memory: only what they fill is touched.
ARENA_BYTES = 256 << 20


def model_of(
    plan: PackingPlan, *, friction: float = FRICTION, num_fixed: int = 0, parked: bool = False
) -> mujoco.MjModel:
    """Return the `MjModel` of a packing.

    Item i is body i + 1, whose origin is the item's centre of mass.

    Args:
        plan: The packing.
        friction: Coulomb's coefficient between any two things.
        num_fixed: Items that are fixed in space, the first ones.
        parked: Whether every item waits asleep next to the bin, apart from all others, until its position is set.
    """
    mj = load_mujoco()
    spec = mj.MjSpec()
    _set_options(mj, spec, friction, parked)
    if plan.walls:
        _add_bin(mj, spec.worldbody, plan.bin_size)
    else:
        _add_pallet(mj, spec.worldbody, plan.bin_size)
    # Number of each solid with meshes, by its id.
    meshes: dict[int, int] = {}
    for i, (solid, pose) in enumerate(zip(plan.solids, plan.poses, strict=True)):
        where = centre_of(solid, pose)
        if parked:
            where = where - _parking(plan, i)
        body = spec.worldbody.add_body(pos=where, quat=quaternion(pose.rotation))
        if i >= num_fixed:
            body.add_freejoint()
        if parked:
            body.sleep = mj.mjtSleepPolicy.mjSLEEP_INIT
        _add_parts(mj, spec, body, solid, meshes)
    return _with_true_mass(mj, spec.compile(), plan, num_fixed)


def centre_of(solid: Solid, pose: Pose) -> np.ndarray:
    """Return the centre of mass of a posed solid, metres from the bin's lower corner."""
    return pose.rotation @ solid.centre + pose.position


def _parking(plan: PackingPlan, index: int) -> np.ndarray:
    """Return the offset of parked item `index` from its plan, metres, (3,).

    It is farther from everything than any item is long.
    """
    longest = max(float(np.ptp(solid.vertices, axis=0).max()) for solid in plan.solids)
    apart = longest + max(plan.bin_size) + WALL_M
    return np.array([2.0 * (index + 1) * apart, 0.0, 0.0])


def _set_options(mj: ModuleType, spec: mujoco.MjSpec, friction: float, parked: bool) -> None:
    option = spec.option
    option.timestep = TIMESTEP_S
    option.integrator = mj.mjtIntegrator.mjINT_IMPLICITFAST
    option.solver = mj.mjtSolver.mjSOL_NEWTON
    option.jacobian = mj.mjtJacobian.mjJAC_SPARSE
    # Items would creep along the facets of a pyramid.
    option.cone = mj.mjtCone.mjCONE_ELLIPTIC
    option.iterations = 100
    option.disableflags |= mj.mjtDisableBit.mjDSBL_AUTORESET
    if parked:
        option.enableflags |= mj.mjtEnableBit.mjENBL_SLEEP
        # What has entered stays awake.
        option.sleep_tolerance = 0.0
    spec.memory = ARENA_BYTES
    spec.compiler.usethread = False
    geom = spec.default.geom
    geom.solref = (CONTACT_TIME_S, CONTACT_DAMPING)
    geom.solimp = CONTACT_IMPEDANCE
    geom.condim = 3
    geom.friction = (friction, 0.0, 0.0)
    geom.density = DENSITY


def _add_bin(mj: ModuleType, world: mujoco.MjsBody, size: tuple[float, float, float]) -> None:
    """Add an infinite floor at height 0, and walls as high as the bin."""
    length, width, height = size
    world.add_geom(type=mj.mjtGeom.mjGEOM_PLANE, size=(length, width, 0.1))
    half = WALL_M / 2
    for x in (-half, length + half):
        _add_box(mj, world, (x, width / 2, height / 2), (half, width / 2 + WALL_M, height / 2))
    for y in (-half, width + half):
        _add_box(mj, world, (length / 2, y, height / 2), (length / 2, half, height / 2))


def _add_pallet(mj: ModuleType, world: mujoco.MjsBody, size: tuple[float, float, float]) -> None:
    """Add a slab of the bin's length and width, and an infinite floor below it.

    Its top is at height 0.
    """
    length, width, _ = size
    world.add_geom(type=mj.mjtGeom.mjGEOM_PLANE, pos=(0, 0, -PALLET_M), size=(length, width, 0.1))
    half = PALLET_M / 2
    _add_box(mj, world, (length / 2, width / 2, -half), (length / 2, width / 2, half))


def _add_box(mj: ModuleType, body: mujoco.MjsBody, middle: Vector, half: Vector) -> None:
    body.add_geom(type=mj.mjtGeom.mjGEOM_BOX, pos=middle, size=half)


def _add_parts(mj: ModuleType, spec: mujoco.MjSpec, body: mujoco.MjsBody, solid: Solid, meshes: dict[int, int]) -> None:
    """Add the parts of a solid: boxes, and meshes, which equal items share."""
    parts = [part for part in solid.parts if has_volume(part)]
    if not parts:
        raise ValueError(f"physics: solid {solid.name!r} has no part with a volume, so it cannot be simulated")
    others = []
    for part in parts:
        sides = box_sides(part)
        if sides is None:
            others.append(part)
            continue
        middle = (part.min(0) + part.max(0)) / 2
        _add_box(mj, body, middle - solid.centre, sides / 2)
    for i, part in enumerate(others):
        name = f"part-{meshes.setdefault(id(solid), len(meshes))}-{i}"
        if spec.mesh(name) is None:
            # MuJoCo finds the convex hull.
            vertices = (part - solid.centre).ravel()
            spec.add_mesh(name=name, uservert=vertices, inertia=mj.mjtMeshInertia.mjMESH_INERTIA_CONVEX)
        body.add_geom(type=mj.mjtGeom.mjGEOM_MESH, meshname=name)


def has_volume(part: np.ndarray) -> bool:
    """Return whether points (V, 3) do not all lie in one plane."""
    if len(part) <= 3:
        return False
    thinnest = np.linalg.svd(part - part.mean(0), compute_uv=False)[-1]
    return bool(thinnest > 1e-9)


def box_sides(part: np.ndarray) -> np.ndarray | None:
    """Return the sides (3,) of a convex part (V, 3) that is a box along its axes.

    None for any other.
    """
    if len(part) != 8:
        return None
    low = part.min(0)
    high = part.max(0)
    upper = part > (low + high) / 2
    exact = np.abs(part - np.where(upper, high, low)) <= 1e-6 * (high - low)
    corners = {tuple(corner) for corner in upper.tolist()}
    return high - low if exact.all() and len(corners) == 8 else None


def _with_true_mass(mj: ModuleType, model: mujoco.MjModel, plan: PackingPlan, num_fixed: int) -> mujoco.MjModel:
    """Set masses and centres to those of the solids.

    MuJoCo adds up the parts, and counts overlaps twice.
    """
    for i in range(num_fixed, len(plan.solids)):
        body = i + 1
        mass = DENSITY * plan.solids[i].volume if plan.masses is None else plan.masses[i]
        model.body_inertia[body] *= mass / model.body_mass[body]
        model.body_mass[body] = mass
        model.body_ipos[body] = 0.0
    mj.mj_setConst(model, mj.MjData(model))
    return model
