"""The contract of every environment.

Specs, restarts, seeds, states, TorchRL's own tools, and no read of the device.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.envs import ActionMask, Compose, EnvCreator, InitTracker, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs

from tests.envs.driving import DISHES, MARINE, PACKING, SOME, assert_same_runs, at_random, made, play
from tests.envs.packing.settings import assert_same
from tests.no_host_reads import NoHostReads
from torchrl_gpu.envs.viewable import viewable

ONE_OF_EACH = ["packing/bpp10", "marine/v2", "dishes/state"]
# Settings of the sea that differ from these in numbers alone take the same path.
SEAS = [f"marine/{name}" for name in ("v2, one robot", "v2, as released", "v3, discrete", "v3, curriculum")]
SEAS.append("marine/v3, as released")


@pytest.mark.parametrize("name", [*PACKING, *SEAS, "marine/v2", "marine/v3, one robot", *DISHES])
def test_specs_hold(name: str) -> None:
    check_env_specs(made(name), seed=0)


# -- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_a_partial_reset_leaves_the_other_rows_as_they_are(name: str) -> None:
    # No other axis is as long.
    env = made(name, 11, **({"num_items": 30} if name.startswith("packing") else {}))
    _, current = play(env, 3)
    before, mask = env.state_dict(), torch.arange(11) % 2 == 0
    after = env.reset(current.clone().set("_reset", mask[:, None]))
    state = env.state_dict()
    for entry in set(before) - {"seed"}:
        rows = list(state[entry].shape).index(11)
        kept = state[entry].movedim(rows, 0)[~mask]
        was = before[entry].movedim(rows, 0)[~mask]
        assert torch.equal(kept, was), entry
    keys = [*env.observation_spec.keys(True, True)]
    assert_same(after.select(*keys)[~mask], current.select(*keys)[~mask])
    assert (before["step_count"][mask] > 0).any()
    assert not state["step_count"][mask].any()
    for entry in {"heightmap", "volume", "num_packed", "energy", "score"} & set(state):
        assert not state[entry].movedim(list(state[entry].shape).index(11), 0)[mask].any(), entry
    assert not after["done"].any()


@pytest.mark.parametrize("name", SOME)
def test_the_terminal_observation_stays_in_next_and_the_root_begins_anew(name: str) -> None:
    env = made(name, 6)
    keys, ended = [*env.observation_spec.keys(True, True)], 0
    for step, following in pairwise(play(env, 30)[0]):
        done = step["next", "done"][:, 0]
        assert_same(step["next"].select(*keys)[~done], following.select(*keys)[~done])
        assert not following["done"].any()
        if "episode_step" in keys:
            assert (step["next", "episode_step"][done] > 0).all()
            assert (following["episode_step"][done] == 0).all()
        ended += int(done.sum())
    assert ended > 5


@pytest.mark.parametrize("name", SOME)
def test_looking_changes_nothing_and_shows_the_step(name: str) -> None:
    env = made(name, 4)
    _, current = play(env, 4)
    before, drawn = env.state_dict(), torch.get_rng_state()
    view = viewable(env)
    view.metrics()
    view.pictures([0, 3], 64, 48)
    seen = env.observation(2)
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(value, before[entry]) for entry, value in env.state_dict().items())
    assert seen.batch_size == (1,)
    for key in set(env.observation_spec.keys(True, True)) - set(env.cleared_keys):
        assert torch.equal(seen[key], current[key][2:3]), key


# -- seeds and states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_a_seed_decides_the_run_and_torchs_generator_nothing(name: str) -> None:
    def run(env: Any) -> list[object]:
        # These count on over all seeds.
        return [step.exclude("frame_at", ("next", "frame_at")) for step in play(env, 6)[0]]

    env, drawn = made(name, seed=4), torch.get_rng_state()
    first = run(env)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert_same_runs(first, run(made(name, seed=4)))
    env.set_seed(4)
    assert_same_runs(first, run(env))
    env.set_seed(5)
    other = run(env)
    assert_same_runs(other, run(made(name, seed=5)))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def test_without_a_seed_torchs_own_decides() -> None:
    seeds = []
    for manual in (0, 0, 1):
        torch.manual_seed(manual)
        seeds.append(made("packing/bpp10", seed=None).seed)
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize("name", SOME)
def test_an_environment_plays_the_same_among_any_number_of_others(name: str) -> None:
    many, few = made(name, 8), made(name, 3, first_env=4)
    act = at_random(many)
    ours = many.reset()
    theirs = few.reset()
    (key,) = many.action_keys
    for _ in range(12):
        action = act(ours)[key]
        step, ours = many.step_and_maybe_reset(ours)
        other, theirs = few.step_and_maybe_reset(theirs.set(key, action[4:7]))
        # These are rows in the batch.
        for entry in set(other.keys(True, True)) - {"frame_at", ("next", "frame_at")}:
            assert torch.allclose(step[entry][4:7].double(), other[entry].double(), atol=1e-4), entry


@pytest.mark.parametrize("name", SOME)
def test_a_restored_environment_goes_on_bit_by_bit(name: str, device: torch.device, tmp_path: Path) -> None:
    env = made(name, seed=0, device=device)
    other = made(name, seed=99, device=device)
    _, current = play(env, 4)
    saved, start = env.state_dict(), current.clone()
    copy = {entry: value.clone() for entry, value in saved.items()}
    expected = play(env, 12, seed=1, start=current)[0]
    assert all(torch.equal(saved[entry], copy[entry]) for entry in saved)
    play(other, 3)
    torch.save(saved, tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu"))
    assert_same_runs(expected, play(other, 12, seed=1, start=start)[0])
    assert other.seed == env.seed
    assert any(step["next", "done"].any() for step in expected)
    with pytest.raises(ValueError, match=rf"^{type(env).__name__}.load_state_dict: \w+ .*shape"):
        made(name, 4, device=device).load_state_dict(saved)


# -- TorchRL's own tools ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_rollouts(name: str) -> None:
    env = made(name, 4)
    data = env.rollout(40, at_random(env), break_when_any_done=False)
    over = data["next", "done"][:, :-1, 0]
    assert (data.batch_size, bool(over.sum() >= 4)) == ((4, 40), True)
    for key in env.observation_spec.keys(True, True):
        assert torch.equal(data[key][:, 1:][~over], data["next", key][:, :-1][~over]), key
    first = made(name, 4).rollout(100, at_random(env))
    assert first["next", "done"][:, -1].any()
    assert not first["next", "done"][:, :-1].any()
    if name.startswith("marine"):
        # A robot does not stop its world.
        assert first["next", "robots", "done"][:, :-1].any()


def test_a_rollout_without_a_policy_wants_an_action_mask() -> None:
    # As the docs say: most actions are not legal, and ActionMask draws from those that are.
    bare, masked = made("packing/bpp10", 16), TransformedEnv(made("packing/bpp10", 16), ActionMask())
    assert bare.rollout(20).shape == (16, 1)
    assert masked.rollout(20, break_when_any_done=False)["next", "num_packed"].max() > 5


@pytest.mark.parametrize("name", ONE_OF_EACH)
# TorchRL's own warning.
@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")
def test_collectors(name: str) -> None:
    from torchrl.collectors import Collector

    env = made(name, 4)

    def act(tensordict: TensorDictBase) -> TensorDictBase:
        # The same draw in every step, since a collector tries its policy first.
        return at_random(env)(tensordict)

    options: dict[str, Any] = {"frames_per_batch": 40, "total_frames": 80, "auto_register_policy_transforms": False}
    collector = Collector(env, act, **options)
    batches = [batch.exclude("collector") for batch in collector]
    collector.shutdown()
    assert [batch.batch_size for batch in batches] == [(4, 10), (4, 10)]
    expected = made(name, 4).rollout(20, act, break_when_any_done=False)
    assert_same(torch.cat(batches, 1).select(*expected.keys(True, True)), expected)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_transforms(name: str) -> None:
    group = ("robots",) if name.startswith("marine") else ()
    sums = RewardSum(in_keys=[(*group, "reward")], out_keys=[(*group, "episode_reward")])
    env = TransformedEnv(made(name, 4), Compose(InitTracker(), sums, StepCounter(step_count_key="steps")))
    check_env_specs(env, seed=0)
    data = env.rollout(20, at_random(env), break_when_any_done=False)
    fresh = torch.cat([torch.ones(4, 1, 1, dtype=torch.bool), data["next", "done"][:, :-1]], 1)
    assert torch.equal(data["is_init"], fresh)
    reward = data["next", *group, "reward"]
    total = torch.zeros(())
    steps = torch.zeros(4, 1, dtype=torch.int64)
    for t in range(20):
        kept = ~fresh[:, t]
        total = reward[:, t] + total * (kept[..., None] if group else kept)
        steps = 1 + steps * kept
        assert torch.allclose(data["next", *group, "episode_reward"][:, t], total, atol=1e-3)
        assert torch.equal(data["next", "steps"][:, t], steps)


@pytest.mark.parametrize("name", ["packing/three visible", "packing/irregular, on its corners", "marine/v2"])
def test_serial_environments(name: str) -> None:
    env = SerialEnv(2, functools.partial(made, name, 2))
    check_env_specs(env, seed=0)
    env.set_seed(3, static_seed=False)
    together = env.rollout(6, at_random(env), break_when_any_done=False)
    assert together.batch_size == (2, 2, 6)
    seed = 3
    for row in together:
        single = made(name, 2)
        following, (key,) = single.set_seed(seed), single.action_keys
        actions = iter(row[key].unbind(1))
        alone = single.rollout(6, lambda tensordict: tensordict.set(key, next(actions)), break_when_any_done=False)  # noqa: B023
        assert_same(row.select(*alone.keys(True, True)), alone)
        seed = following


def test_a_creator_keeps_each_environments_own_state() -> None:
    # It builds a first environment and hands what of its state is no tensor, which is nothing, to every other one.
    creator = EnvCreator(lambda: made("packing/bpp10", seed=None))
    first, second = creator(), creator()
    assert first.seed != second.seed
    assert not torch.equal(first.reset()["item_id"], second.reset()["item_id"])


# -- no reads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*sorted({*PACKING} - {"packing/cut anew"}), *SEAS, "dishes/state", "dishes/video"])
def test_steps_with_resets_read_nothing(name: str) -> None:
    env = made(name, 2, **({"backend": "eager", "num_items": 6} if name in PACKING else {}))
    act = at_random(env)
    current = env.reset()
    done = []
    with NoHostReads():
        for turn in range(10):
            if turn == 4:
                env.set_frames(2_500_000)
            step, current = env.step_and_maybe_reset(act(current))
            done.append(step["next", "done"])
    assert torch.cat(done).sum() >= 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*PACKING, *MARINE])
def test_a_gpu_never_waits(name: str) -> None:
    env = made(name, 64, device="cuda")
    act, ended = at_random(env), torch.zeros((), dtype=torch.int64, device="cuda")
    # First calls load what they need.
    _, current = play(env, 20)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            step, current = env.step_and_maybe_reset(act(current))
            ended += step["next", "done"].sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert ended > 64
