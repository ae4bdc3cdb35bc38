"""The model of MuJoCo is the plan.

Boxes are boxes, other parts are their hulls, and masses are those of the solids.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.envs.packing.physics.stacks import BIN, plan_of_boxes, prism, turned
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.physics.scene import DENSITY, box_sides, centre_of, has_volume, model_of
from torchrl_gpu.envs.packing.plan import PackingPlan
from torchrl_gpu.system.extras import load_mujoco

mujoco = pytest.importorskip("mujoco")

CORNERS = Solid.of_box("box", np.array([0.1, 0.2, 0.3])).parts[0]


def test_a_box_is_told_from_other_parts() -> None:
    assert box_sides(CORNERS) == pytest.approx([0.1, 0.2, 0.3])
    assert box_sides(CORNERS[::-1] - 0.05) == pytest.approx([0.1, 0.2, 0.3])
    assert box_sides(CORNERS[:7]) is None
    # There are eight points, but a corner comes twice.
    assert box_sides(np.concatenate([CORNERS[:7], CORNERS[:1]])) is None
    # It is a box, turned by 45°.
    assert box_sides(prism(4, 0.1, 0.2).parts[0]) is None
    assert box_sides(CORNERS + 0.01 * np.eye(8, 3)) is None


def test_flat_parts_have_no_volume() -> None:
    assert has_volume(CORNERS)
    # One face.
    assert not has_volume(CORNERS[:4])
    assert not has_volume(CORNERS[:3])


def test_bodies_stand_where_they_are_planned() -> None:
    can, box = prism(12, 0.03, 0.1), Solid.of_box("box", np.array([0.1, 0.05, 0.02]))
    poses = (
        turned(can, 90, 0, 0, (0.1, 0.1, 0.0)),
        turned(box, 0, 90, 0, (0.2, 0.2, 0.0)),
        turned(can, 0, 0, 30, (0.3, 0.3, 0.0)),
    )
    plan = PackingPlan((can, box, can), poses, BIN)
    model = model_of(plan)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    for body, (solid, pose) in enumerate(zip(plan.solids, plan.poses, strict=True), start=1):
        assert data.xpos[body] == pytest.approx(centre_of(solid, pose))
        assert data.xmat[body].reshape(3, 3) == pytest.approx(pose.rotation)
        # The centre of mass.
        assert data.xipos[body] == pytest.approx(data.xpos[body])
        assert model.body_mass[body] == pytest.approx(DENSITY * solid.volume)
    # Equal items share it.
    assert model.nmesh == 1


def test_overlapping_parts_weigh_once() -> None:
    box = Solid.of_box("box", np.array([0.1, 0.05, 0.02]))
    twice = Solid("twice", box.parts * 2, box.vertices, box.faces, box.centre, box.volume)
    models = [model_of(PackingPlan((solid,), (turned(solid, 0, 0, 0, (0, 0, 0)),), BIN)) for solid in (box, twice)]
    assert models[0].body_mass == pytest.approx(models[1].body_mass)
    inertias = [np.sort(model.body_inertia[1]) for model in models]
    assert inertias[0] == pytest.approx(inertias[1])


def test_fixed_items_have_no_joints() -> None:
    plan = plan_of_boxes(((0, 0, 0), (0.1, 0.1, 0.1)), ((0, 0, 0.1), (0.1, 0.1, 0.1)))
    assert model_of(plan).njnt == 2
    assert model_of(plan, num_fixed=1).njnt == 1


def test_a_solid_without_volume_is_refused() -> None:
    flat = Solid("leaf", (CORNERS[:4],), CORNERS, np.zeros((0, 3), dtype=np.int64), CORNERS[0], 1e-6)
    with pytest.raises(ValueError, match=r"'leaf'.* volume"):
        model_of(PackingPlan((flat,), (turned(flat, 0, 0, 0, (0, 0, 0)),), BIN))


def test_without_mujoco_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ModuleNotFoundError, match=r"\[physics\]") as caught:
        load_mujoco()
    assert "\n" not in str(caught.value)
