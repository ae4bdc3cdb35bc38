"""MuJoCo model of a planned packing: a bin or a pallet, and a body of convex parts for each item."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose, quaternion
from torchrl_gpu.system.extras import load_mujoco

TIMESTEP_S = 0.004
FRICTION = 0.5
DENSITY = 500.0  # kg/m³, of items whose mass is not known
WALL_M = 0.2
PALLET_M = 0.15  # height of a pallet above the floor: what falls off it is displaced
# A contact gives way by hundredths of a millimetre under the weight of a bin, and comes to rest in a few steps.
CONTACT_TIME_S, CONTACT_DAMPING = 0.01, 1.0
CONTACT_IMPEDANCE = (0.95, 0.99, 0.001, 0.5, 2.0)
ARENA_BYTES = 256 << 20  # address space for contacts, not memory: only what they fill is touched


def model_of(plan: PackingPlan, *, friction: float = FRICTION, num_fixed: int = 0, parked: bool = False) -> Any:
    """The `MjModel` of a packing. Item i is body i + 1.

    The origin of the body is the item's centre of mass.

    The first `num_fixed` items are fixed in space. With `parked` every item waits asleep beside the bin, apart from all
    others, until its position is set. `friction` is Coulomb's coefficient between any two things.
    """
    mj = load_mujoco()
    spec = mj.MjSpec()
    _set_options(mj, spec, friction, parked)
    (_add_bin if plan.walls else _add_pallet)(mj, spec.worldbody, plan.bin_size)
    meshes: dict[int, int] = {}  # number of each solid with meshes, by its id
    for i, (solid, pose) in enumerate(zip(plan.solids, plan.poses, strict=True)):
        where = centre_of(solid, pose) - (_parking(plan, i) if parked else 0.0)
        body = spec.worldbody.add_body(pos=where, quat=quaternion(pose.rotation))
        if i >= num_fixed:
            body.add_freejoint()
        if parked:
            body.sleep = mj.mjtSleepPolicy.mjSLEEP_INIT
        _add_parts(mj, spec, body, solid, meshes)
    return _with_true_mass(mj, spec.compile(), plan, num_fixed)


def centre_of(solid: Solid, pose: Pose) -> np.ndarray:
    """Centre of mass of a posed solid, metres from the bin's lower corner.

    Float64 (3,).
    """
    return pose.rotation @ solid.centre + pose.position


def _parking(plan: PackingPlan, index: int) -> np.ndarray:
    """Offset of parked item `index` from its plan, metres (3,): farther from everything than any item is long."""
    longest = max(float(np.ptp(solid.vertices, axis=0).max()) for solid in plan.solids)
    return np.array([2.0 * (index + 1) * (longest + max(plan.bin_size) + WALL_M), 0.0, 0.0])


def _set_options(mj: Any, spec: Any, friction: float, parked: bool) -> None:
    option = spec.option
    option.timestep = TIMESTEP_S
    option.integrator = mj.mjtIntegrator.mjINT_IMPLICITFAST
    option.solver = mj.mjtSolver.mjSOL_NEWTON
    option.jacobian = mj.mjtJacobian.mjJAC_SPARSE
    option.cone = mj.mjtCone.mjCONE_ELLIPTIC  # items creep along the facets of a pyramid
    option.iterations = 100
    option.disableflags |= mj.mjtDisableBit.mjDSBL_AUTORESET
    if parked:
        option.enableflags |= mj.mjtEnableBit.mjENBL_SLEEP
        option.sleep_tolerance = 0.0  # what has entered stays awake
    spec.memory = ARENA_BYTES
    spec.compiler.usethread = False
    geom = spec.default.geom
    geom.solref, geom.solimp = (CONTACT_TIME_S, CONTACT_DAMPING), CONTACT_IMPEDANCE
    geom.condim, geom.friction, geom.density = 3, (friction, 0.0, 0.0), DENSITY


def _add_bin(mj: Any, world: Any, size: tuple[float, float, float]) -> None:
    """Adds an infinite floor at height 0, and walls as high as the bin."""
    length, width, height = size
    world.add_geom(type=mj.mjtGeom.mjGEOM_PLANE, size=(length, width, 0.1))
    half = WALL_M / 2
    for x in (-half, length + half):
        _add_box(mj, world, (x, width / 2, height / 2), (half, width / 2 + WALL_M, height / 2))
    for y in (-half, width + half):
        _add_box(mj, world, (length / 2, y, height / 2), (length / 2, half, height / 2))


def _add_pallet(mj: Any, world: Any, size: tuple[float, float, float]) -> None:
    """Adds a slab of the bin's length and width with its top at height 0, and an infinite floor below it."""
    length, width, _ = size
    world.add_geom(type=mj.mjtGeom.mjGEOM_PLANE, pos=(0, 0, -PALLET_M), size=(length, width, 0.1))
    half = PALLET_M / 2
    _add_box(mj, world, (length / 2, width / 2, -half), (length / 2, width / 2, half))


def _add_box(mj: Any, body: Any, middle: Any, half: Any) -> None:
    body.add_geom(type=mj.mjtGeom.mjGEOM_BOX, pos=middle, size=half)


def _add_parts(mj: Any, spec: Any, body: Any, solid: Solid, meshes: dict[int, int]) -> None:
    """Adds the parts of a solid: boxes, and the others as meshes, which equal items share."""
    parts = [part for part in solid.parts if has_volume(part)]
    if not parts:
        raise ValueError(f"physics: want solids with a part that has volume; got {solid.name!r} without")
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
        if spec.mesh(name) is None:  # MuJoCo finds the convex hull
            vertices = (part - solid.centre).ravel()
            spec.add_mesh(name=name, uservert=vertices, inertia=mj.mjtMeshInertia.mjMESH_INERTIA_CONVEX)
        body.add_geom(type=mj.mjtGeom.mjGEOM_MESH, meshname=name)


def has_volume(part: np.ndarray) -> bool:
    """True where the points (V, 3) do not all lie in one plane."""
    return len(part) > 3 and bool(np.linalg.svd(part - part.mean(0), compute_uv=False)[-1] > 1e-9)


def box_sides(part: np.ndarray) -> np.ndarray | None:
    """Sides (3,) of a convex part (V, 3) that is a box along the axes of its frame.

    None for any other.
    """
    low, high = part.min(0), part.max(0)
    if len(part) != 8:
        return None
    upper = part > (low + high) / 2
    exact = np.abs(part - np.where(upper, high, low)) <= 1e-6 * (high - low)
    corners = {tuple(corner) for corner in upper.tolist()}
    return high - low if exact.all() and len(corners) == 8 else None


def _with_true_mass(mj: Any, model: Any, plan: PackingPlan, num_fixed: int) -> Any:
    """Sets masses and centres to those of the solids: MuJoCo adds up the parts, and counts overlaps twice."""
    for i in range(num_fixed, len(plan.solids)):
        body = i + 1
        mass = DENSITY * plan.solids[i].volume if plan.masses is None else plan.masses[i]
        model.body_inertia[body] *= mass / model.body_mass[body]
        model.body_mass[body] = mass
        model.body_ipos[body] = 0.0
    mj.mj_setConst(model, mj.MjData(model))
    return model
