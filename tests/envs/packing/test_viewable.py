"""Views of a bin are true of it, and looking changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.tiny import packing_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing import viewer
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.plan import plan_of
from torchrl_gpu.envs.viewable import Decision, Overlaid, Spatial, viewable
from torchrl_gpu.policies.packing import RandomLegal

REWARDS = [{"reward": "utilization"}, {"reward": "objective"}, {"reward": "objective", "stability_judge": "com"}]


@pytest.mark.parametrize("changes", REWARDS, ids=str)
def test_the_return_is_the_sum_of_the_rewards(changes: dict[str, object]) -> None:
    env = packing_env(6, **changes)
    view = viewable(env)
    policy = RandomLegal(env)
    total = torch.zeros(6)
    current, ended = env.reset(), 0
    torch.manual_seed(0)
    for _ in range(40):
        stepped, current = env.step_and_maybe_reset(policy(current))
        done = stepped["next", "done"][:, 0]
        total = torch.where(done, 0.0, total + stepped["next", "reward"][:, 0])
        ended += int(done.sum())
        metrics = view.metrics()
        torch.testing.assert_close(metrics["return"], total, atol=1e-5, rtol=0)
        assert torch.equal(metrics["step"], current["episode_step"][:, 0])
        torch.testing.assert_close(metrics["utilization"], current["utilization"][:, 0])
        assert int(metrics["episode"].sum()) == 6 + ended
    assert ended > 6


def packed(steps: int, **changes: object) -> PackingEnv:
    env = packing_env(3, **changes)
    policy, current = RandomLegal(env), env.reset()
    for _ in range(steps):
        _, current = env.step_and_maybe_reset(policy(current))
    return env


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"resolution": 40, "items": ProceduralSolids(num_objects=6, min_size=1.0, max_size=2.0, seed=1), "include": ()},
    ],
    ids=["boxes", "solids"],
)
def test_pictures_are_the_viewer_s_while_bins_fill(changes: dict[str, object]) -> None:
    torch.manual_seed(1)
    env = packing_env(3, num_items=6, **changes)
    view = viewable(env)
    policy = RandomLegal(env)
    current = env.reset()
    for _ in range(8):
        drawn = view.pictures([0, 2], 80, 60)
        assert drawn.dtype == np.uint8
        np.testing.assert_array_equal(drawn, viewer.render(env, [0, 2], width=80, height=60).numpy())
        _, current = env.step_and_maybe_reset(policy(current))
    assert len(np.unique(drawn[0].reshape(-1, 3), axis=0)) > 20


# -- overlays --


@pytest.mark.parametrize(
    "changes", [{}, {"visible_items": 3, "grid_step": 2, "orientations": "axis"}], ids=["one", "several"]
)
def test_overlays_show_what_the_step_does_and_change_nothing(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = packing_env(3, **changes)
    view = viewable(env)
    policy = RandomLegal(env)
    current = env.reset()
    assert isinstance(view, Overlaid)
    told: list[object] = []
    for name in ("draw_mask", "draw_action", "draw_values"):
        monkeypatch.setattr(f"torchrl_gpu.envs.packing.viewable.{name}", lambda *given: told.append(given))
    torch.manual_seed(2)
    checked = 0
    for _ in range(12):
        before, random = env.state_dict(), torch.get_rng_state()
        action = policy(current.clone())["action"]
        torch.set_rng_state(random)
        values = torch.rand(env.num_actions, generator=torch.Generator().manual_seed(0))
        for name in view.overlays:
            view.overlay(name, 1, 64, 48, Decision(action[1], values))
        assert all(torch.equal(before[key], value) for key, value in env.state_dict().items())
        (pile, ways, most, *_), (_, placing, *_), (_, best, *_) = told
        told.clear()
        legal = current["legal_mask"][1]
        place = torch.unravel_index(action[1], env.action_shape)
        slot = int(place[0])
        turn = int(place[1])
        np.testing.assert_array_equal(ways, legal.sum((0, 1)).numpy())
        assert most == int((current["item_id"][1] >= 0).sum()) * env.num_orientations
        shown = torch.where(legal[slot], values.view(env.action_shape)[slot], -torch.inf).amax(0)
        np.testing.assert_array_equal(best, shown.numpy())
        assert pile.utilization == pytest.approx(float(current["utilization"][1]))
        packed = int(current["num_packed"][1])
        stepped, current = env.step_and_maybe_reset(policy(current))
        if not stepped["next", "done"][1]:
            assert env.placements[1, packed].tolist() == [placing.item, placing.orientation, *placing.corner]
            assert float(env.placement_z[1, packed]) == pytest.approx(placing.z)
            assert placing.orientation == turn
            checked += 1
    assert checked > 3


def test_where_nothing_is_legal_nothing_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    env = packing_env(1)
    env.reset()
    env.state.legal = torch.zeros_like(env.state.legal)
    drawn = [
        viewable(env).overlay(name, 0, 64, 48, Decision(torch.tensor(3), torch.zeros(env.num_actions)))
        for name in ("mask", "action", "q")
    ]
    assert {picture.shape for picture in drawn} == {(48, 64, 3)}
    placed: list[object] = []
    monkeypatch.setattr(
        "torchrl_gpu.envs.packing.viewable.draw_action", lambda pile, placing, *size: placed.append(placing)
    )
    viewable(env).overlay("action", 0, 64, 48, Decision(torch.tensor(3), None))
    assert placed == [None]


def test_shapes_are_around_what_is_packed() -> None:
    env = packed(6, items=ProceduralSolids(8), resolution=20, num_items=12, orientations="cube")
    view, before = viewable(env), env.state_dict()
    assert isinstance(view, Spatial)
    found = 0
    for row in range(3):
        outline, *solids = view.shapes(row)
        assert (outline.kind, tuple(outline.size), tuple(outline.center)) == ("outline", (5, 5, 5), (2.5, 2.5, 2.5))
        plan = plan_of(env, row)
        assert len(solids) == len(plan.poses)
        found += len(solids)
        for shape, solid, pose in zip(solids, plan.solids, plan.poses, strict=True):
            points = solid.vertices @ pose.rotation.T + pose.position
            # In the frame of the shape, if it is turned alike.
            inside = (points - shape.center) @ pose.rotation
            np.testing.assert_allclose(inside.max(0), np.array(shape.size) / 2, atol=1e-9)
            np.testing.assert_allclose(inside.min(0), -np.array(shape.size) / 2, atol=1e-9)
            np.testing.assert_allclose(shape.quaternion, pose.quaternion)
            assert all(0 <= part <= 1 for part in shape.color)
    assert found > 3
    assert all(torch.equal(value, env.state_dict()[key]) for key, value in before.items())
