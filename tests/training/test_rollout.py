"""Rollouts and n-step returns: by hand, against TorchRL's `MultiStep`, and in pieces as in one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase
from torchrl.data import MultiStep

from tests.envs.packing.settings import assert_same
from tests.no_host_reads import NoHostReads
from tests.policies.packing.packer_scenes import solids_env
from tests.tolerances import assert_near
from tests.training.tiny import packing_env
from torchrl_gpu.policies.packing import DeepestBottomLeft
from torchrl_gpu.training.pile_store import PileStore
from torchrl_gpu.training.rollout import Rollout, n_step


def steps_of(reward: torch.Tensor, done: torch.Tensor) -> TensorDict:
    """Steps (N, T) whose observation is 100·environment + time, in `next` half a step later."""
    num, length = reward.shape
    obs = (100.0 * torch.arange(num)[:, None] + torch.arange(length)).unsqueeze(-1)
    done = done.unsqueeze(-1)
    after = {"obs": obs + 0.5, "reward": reward.unsqueeze(-1), "done": done, "terminated": done.clone()}
    return TensorDict({"obs": obs, "action": obs[..., 0].long(), "next": after}, batch_size=[num, length])


def random_steps(num: int, length: int, seed: int, share_done: float = 0.25) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    reward = torch.rand(num, length, generator=generator)
    return steps_of(reward, torch.rand(num, length, generator=generator) < share_done)


def test_by_hand() -> None:
    # One environment, gamma 1/2, n = 3. Episode A is steps 0, 1, 2 (done at 2), episode B is steps 3, 4, 5, 6, ….
    #   t = 0: 1 + 2/2 + 4/4 = 3, ends in step 2, m = 3
    #   t = 1: 2 + 4/2       = 4, ends in step 2 (done), m = 2
    #   t = 2: 4                , ends in step 2 (done), m = 1
    #   t = 3: 8 + 16/2 + 32/4 = 24, ends in step 5, m = 3
    #   t = 4: 16 + 32/2 + 64/4 = 48, ends in step 6, m = 3
    reward = torch.tensor([[1.0, 2, 4, 8, 16, 32, 64]])
    done = torch.tensor([[False, False, True, False, False, False, False]])
    out = n_step(steps_of(reward, done), 3, 0.5)
    assert out.batch_size == (1, 5)
    assert out["next", "reward"][0, :, 0].tolist() == [3, 4, 4, 24, 48]
    assert out["steps_to_next_obs"][0, :, 0].tolist() == [3, 2, 1, 3, 3]
    assert out["next", "obs"][0, :, 0].tolist() == [2.5, 2.5, 2.5, 5.5, 6.5]
    assert out["next", "done"][0, :, 0].tolist() == [True, True, True, False, False]
    assert out["next", "terminated"][0, :, 0].tolist() == [True, True, True, False, False]
    assert out["obs"][0, :, 0].tolist() == [0, 1, 2, 3, 4]  # where a transition starts is left alone
    assert out["action"][0].tolist() == [0, 1, 2, 3, 4]


def test_one_step_is_the_steps_themselves() -> None:
    steps = random_steps(3, 5, seed=0)
    out = n_step(steps, 1, 0.9)
    assert (out["steps_to_next_obs"] == 1).all()
    assert (out.exclude("steps_to_next_obs") == steps).all()


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_against_torchrl(n: int, gamma: float) -> None:
    # MultiStep also ends a transition at the last step of its data, and leaves `done` that of the first step: both
    # agree on reward, length and next observation of the transitions that n_step gives.
    steps = random_steps(6, 30, seed=n)
    ours, theirs = n_step(steps, n, gamma), MultiStep(gamma, n)(steps.clone())[:, : 30 - n + 1]
    assert_near(ours["next", "reward"], theirs["next", "reward"])
    assert torch.equal(ours["steps_to_next_obs"].squeeze(-1), theirs["steps_to_next_obs"])
    assert torch.equal(ours["next", "obs"], theirs["next", "obs"])


@given(st.integers(0, 10_000), st.integers(1, 5), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_no_transition_crosses_an_episode(seed: int, n: int, share_done: float) -> None:
    steps = random_steps(2, 12, seed, share_done)
    done = steps["next", "done"].squeeze(-1)
    episode = done.long().cumsum(1) - done.long()  # of each step
    out = n_step(steps, n, 0.9)
    first = torch.arange(out.shape[1]).expand(2, -1)
    last = first + out["steps_to_next_obs"].squeeze(-1) - 1
    assert torch.equal(episode.gather(1, last), episode[:, : out.shape[1]])
    full = out["steps_to_next_obs"].squeeze(-1) == n
    assert (full | done.gather(1, last)).all()  # shorter only where the episode ends
    assert torch.equal(out["next", "done"].squeeze(-1), done.gather(1, last))


def test_fewer_steps_than_n_give_nothing() -> None:
    assert n_step(random_steps(3, 2, seed=0), 4, 0.9).batch_size == (3, 0)


# -- rollouts --


def rollout(n_steps: int = 3) -> tuple[Rollout, DeepestBottomLeft]:
    env = packing_env(4)
    return Rollout(env, env.stored_keys, n_steps, 0.9), DeepestBottomLeft(env)


def transitions_of(chunks: list[int], n_steps: int) -> TensorDictBase:
    """(N, T) transitions of a run in chunks of so many steps."""
    made, policy = rollout(n_steps)
    parts = [made.collect(policy, steps)[0] for steps in chunks]
    return torch.cat([part.unflatten(0, (4, len(part) // 4)) for part in parts if len(part)], 1)


@pytest.mark.parametrize("chunks", [[6] * 5, [1] * 30, [2, 1, 7, 20]], ids=str)
@pytest.mark.parametrize("n_steps", [1, 3, 5])
def test_pieces_are_as_one_long_rollout(chunks: list[int], n_steps: int) -> None:
    whole, pieces = transitions_of([30], n_steps), transitions_of(chunks, n_steps)
    assert whole["next", "done"].any()
    assert whole.shape == pieces.shape == (4, 30 - n_steps + 1)
    assert (whole == pieces).all()


def test_what_is_kept_and_what_is_not() -> None:
    made, policy = rollout()
    transitions, steps = made.collect(policy, 5)
    assert steps.batch_size == (4, 5)
    assert transitions.batch_size == (4 * 3,)
    assert set(transitions.keys()) == {"box_heightmap", "item_id", "action", "next", "steps_to_next_obs"}
    kept = {"box_heightmap", "item_id", "reward", "done", "terminated", "utilization"}
    assert set(transitions["next"].keys()) == kept


def test_a_transition_is_what_the_environment_did() -> None:
    made, policy = rollout(n_steps=1)
    steps, _ = made.collect(policy, 12)
    steps = steps.unflatten(0, (4, 12))
    done = steps["next", "done"].squeeze(-1)
    after, before = steps["next", "box_heightmap"][:, :-1], steps["box_heightmap"][:, 1:]
    assert done.any()
    for env, time in (~done[:, :-1]).nonzero().tolist():
        assert torch.equal(after[env, time], before[env, time])
    for env, time in done[:, :-1].nonzero().tolist():
        assert before[env, time].sum() == 0  # a new episode starts empty
        assert after[env, time].sum() > 0  # and the true end is what is kept


@pytest.mark.parametrize("before", [1, 4])
def test_it_goes_on_where_its_state_was_saved(before: int) -> None:
    made, policy = rollout(n_steps=4)
    made.collect(policy, before)  # one step is fewer than the three that are pending later
    state = made.state_dict()
    wanted = [made.collect(policy, 6)[0] for _ in range(2)]
    other = Rollout(packing_env(4, seed=99), ["box_heightmap", "item_id"], 4, 0.9)
    other.collect(policy, 3)
    other.load_state_dict(state)
    for chunk in wanted:
        assert (other.collect(policy, 6)[0] == chunk).all()


def test_a_state_can_be_saved_as_plain_tensors(tmp_path: Path) -> None:
    made, policy = rollout()
    made.collect(policy, 4)
    torch.save(made.state_dict(), tmp_path / "state.pt")
    wanted, _ = made.collect(policy, 5)
    other, _ = rollout()
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert (other.collect(policy, 5)[0] == wanted).all()


# -- packed heightmaps --


def solid_rollouts(n_steps: int, seed: int = 0) -> tuple[Rollout, Rollout, PileStore, DeepestBottomLeft]:
    """One as it is and one that packs, of environments that go the same way; a policy that draws nothing."""
    plain, packs = (solids_env(seed=seed) for _ in range(2))
    store, arguments = PileStore(packs), (["box_heightmap", "item_id"], n_steps, 1.0)
    assert store.dtype == torch.uint8
    return Rollout(plain, *arguments), Rollout(packs, *arguments, store=store), store, DeepestBottomLeft(plain)


@pytest.mark.parametrize("n_steps", [1, 4, 30])
def test_transitions_of_packed_steps_are_packed_transitions(n_steps: int) -> None:
    plain, packs, store, policy = solid_rollouts(n_steps)
    made = 0
    for steps in (3, 1, 6, 25):
        wanted, raw = plain.collect(policy, steps)
        came, seen = packs.collect(policy, steps)
        assert_same(came, store.packed(wanted))
        assert_same(seen, raw)
        made += len(came)
    assert made > 10


def test_pending_heightmaps_take_a_quarter_of_a_checkpoint(tmp_path: Path) -> None:
    plain, packs, _, policy = solid_rollouts(30)
    for name, rollout in (("plain", plain), ("packs", packs)):
        rollout.collect(policy, 29)
        torch.save(rollout.state_dict()["pending"], tmp_path / name)
    heightmaps = 2 * plain.pending["box_heightmap"].nbytes
    saved = (tmp_path / "plain").stat().st_size - (tmp_path / "packs").stat().st_size
    assert saved == pytest.approx(0.75 * heightmaps, rel=0.01)


@pytest.mark.parametrize("saved_by", ["the same", "one without a store"])
def test_packed_steps_go_on_where_they_were_saved(saved_by: str) -> None:
    plain, packs, _, policy = solid_rollouts(6)
    for rollout in (plain, packs):
        rollout.collect(policy, 4)
    state = (packs if saved_by == "the same" else plain).state_dict()
    _, other, _, _ = solid_rollouts(6, seed=5)
    other.collect(policy, 2)
    other.load_state_dict(state)
    for _ in range(3):
        assert_same(other.collect(policy, 4)[0], packs.collect(policy, 4)[0])


def test_nothing_is_read_back() -> None:
    made, policy = rollout()
    with NoHostReads():
        for _ in range(4):
            made.collect(policy, 5)
