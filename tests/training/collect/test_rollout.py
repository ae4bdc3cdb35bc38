"""Rollouts and n-step returns.

By hand, against TorchRL's `MultiStep`, of one robot each, and in pieces.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase
from torchrl.data import MultiStep
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.envs.marine.settings import acted, homing_action
from tests.envs.packing.settings import assert_same
from tests.no_host_reads import NoHostReads
from tests.policies.packing.packer_scenes import solids_env
from tests.tolerances import assert_near
from tests.training.crossing_worlds import IDLE, marine_env
from tests.training.tiny import packing_env
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.policies import IQN, AgentSpace, NavigationQuantiles, PolicyWrapper
from torchrl_gpu.policies.packing import DeepestBottomLeft
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.training.collect.meter import EpisodeMeter
from torchrl_gpu.training.collect.returns import n_step, per_robot
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.packing.heightmap_codec import HeightmapCodec


def steps_of(reward: torch.Tensor, done: torch.Tensor) -> TensorDict:
    """Return steps (N, T) whose observation is 100·environment + time.

    In `next` it is half a step later.
    """
    num, length = reward.shape
    obs = (100.0 * torch.arange(num)[:, None] + torch.arange(length)).unsqueeze(-1)
    done = done.unsqueeze(-1)
    after = {"obs": obs + 0.5, "reward": reward.unsqueeze(-1), "done": done, "terminated": done.clone()}
    return TensorDict({"obs": obs, "action": obs[..., 0].long(), "next": after}, batch_size=[num, length])


def random_steps(num: int, length: int, seed: int, share_done: float = 0.25) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    reward = torch.rand(num, length, generator=generator)
    return steps_of(reward, torch.rand(num, length, generator=generator) < share_done)


def test_n_step_returns_by_hand() -> None:
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
    # The start of a transition does not change.
    assert out["obs"][0, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert out["action"][0].tolist() == [0, 1, 2, 3, 4]


def test_n_step_returns_of_one_step_are_the_steps() -> None:
    steps = random_steps(3, 5, seed=0)
    out = n_step(steps, 1, 0.9)
    assert (out["steps_to_next_obs"] == 1).all()
    assert (out.exclude("steps_to_next_obs") == steps).all()


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_n_step_returns_are_those_of_torchrl(n: int, gamma: float) -> None:
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
    # The number of the episode of each step.
    episode = done.long().cumsum(1) - done.long()
    out = n_step(steps, n, 0.9)
    first = torch.arange(out.shape[1]).expand(2, -1)
    last = first + out["steps_to_next_obs"].squeeze(-1) - 1
    assert torch.equal(episode.gather(1, last), episode[:, : out.shape[1]])
    full = out["steps_to_next_obs"].squeeze(-1) == n
    # A sum is shorter only where the episode ends.
    assert (full | done.gather(1, last)).all()
    assert torch.equal(out["next", "done"].squeeze(-1), done.gather(1, last))


def test_fewer_steps_than_n_give_nothing() -> None:
    assert n_step(random_steps(3, 2, seed=0), 4, 0.9).batch_size == (3, 0)


def rollout(n_steps: int = 3, seed: int = 3) -> tuple[Rollout, Policy]:
    env = packing_env(4, seed=seed)
    return Rollout(env, env.stored_keys, n_steps, 0.9), DeepestBottomLeft(env)


ROBOTS, KEPT = 4, [("robots", "observation"), ("robots", "active")]
# The first world has two robots less, whose lanes stay empty.
ROWS = [(0, 2, 2, 0, 6.0), (1, ROBOTS, 2, 3, 9.0)]


def robots_env(seed: int = 4) -> MarineNavEnv:
    """Three worlds that soon end: by arrivals, by collisions and by time."""
    rows = {"curriculum": ROWS, "robots": None, "cores": None, "obstacles": None, "min_distance": None}
    env = marine_env(3, **rows, pool=16, max_steps=20, seed=seed)
    env.assign_levels([0, 1, 1])
    return env


def under_way(env: MarineNavEnv) -> Policy:
    def policy(seen: TensorDictBase) -> TensorDictBase:
        active = seen["robots", "active"].squeeze(-1)
        return acted(env, seen, torch.where(active, homing_action(env, seen), IDLE))

    return policy


def robots_rollout(n_steps: int = 3, seed: int = 4) -> tuple[Rollout, Policy]:
    """Of each robot by itself, with a policy that draws nothing."""
    env = robots_env(seed)
    return Rollout(env, KEPT, n_steps, 0.9, group=("robots",)), under_way(env)


LANES: dict[Any, int] = {rollout: 4, robots_rollout: 3 * ROBOTS}


def transitions_of(make: Any, chunks: list[int], n_steps: int) -> TensorDictBase:
    made, policy = make(n_steps)
    parts = [made.collect(policy, steps)[0] for steps in chunks]
    return torch.cat([part.unflatten(0, (LANES[make], len(part) // LANES[make])) for part in parts if len(part)], 1)


@pytest.mark.parametrize(
    ("make", "n_steps", "chunks"),
    [
        *((rollout, 1, [1] * 20), (rollout, 3, [2, 1, 7, 10])),
        *((robots_rollout, 1, [2, 1, 7, 10]), (robots_rollout, 3, [1] * 20)),
    ],
)
def test_pieces_are_as_one_long_rollout(make: Any, n_steps: int, chunks: list[int]) -> None:
    whole, pieces = transitions_of(make, [20], n_steps), transitions_of(make, chunks, n_steps)
    assert whole["next", "done"].any()
    assert whole.shape == (LANES[make], 20 - n_steps + 1)
    assert_same(whole, pieces)


def test_rollout_keeps_states_and_true_ends_only() -> None:
    made, policy = rollout()
    transitions, steps = made.collect(policy, 5)
    assert steps.batch_size == (4, 5)
    assert transitions.batch_size == (4 * 3,)
    assert set(transitions.keys()) == {"box_heightmap", "item_id", "action", "next", "steps_to_next_obs"}
    # Metrics of an episode are no part of a transition.
    kept = {"box_heightmap", "item_id", "reward", "done", "terminated"}
    assert set(transitions["next"].keys()) == kept
    assert set(steps["next"].keys()) == {*kept, "utilization"}


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
        # A new episode starts empty, and the true end of the old one is kept.
        assert before[env, time].sum() == 0
        assert after[env, time].sum() > 0


# One step is fewer than the three that are pending later.
@pytest.mark.parametrize(("make", "before"), [(rollout, 0), (rollout, 4), (robots_rollout, 1), (robots_rollout, 4)])
def test_rollout_resumes_where_its_state_was_saved(tmp_path: Path, make: Any, before: int) -> None:
    made, policy = make(n_steps=4)
    if before:
        made.collect(policy, before)
    torch.save(made.state_dict(), tmp_path / "state.pt")
    wanted = [made.collect(policy, 6) for _ in range(2)]
    other, policy = make(n_steps=4, seed=99)
    other.collect(policy, 3)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for transitions, steps in wanted:
        ours = other.collect(policy, 6)
        assert_same(ours[0], transitions)
        assert_same(ours[1], steps)


def test_zeros_are_saved_with_their_sign() -> None:
    made, _ = robots_rollout()
    made.current["robots", "observation"].fill_(-0.0)
    saved: Any = made.state_dict()
    assert saved["current"]["robots"]["observation"].signbit().all()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        pytest.param(
            "current/item_id",
            lambda ids: ids + 10**9,
            r"current: item_id must be from -1 to 26; got 1\d{9}",
            id="an id seen",
        ),
        pytest.param(
            "current/legal_mask",
            lambda legal: legal.byte(),
            "current: legal_mask must be of dtype bool",
            id="a mask seen",
        ),
        pytest.param(
            "current/box_heightmap",
            lambda _: None,
            "current: box_heightmap must be a tensor; got none",
            id="no heights seen",
        ),
        pytest.param(
            "pending/item_id", lambda ids: ids - 10**9, "pending: item_id must be from -1 to 26; got -", id="an id"
        ),
        pytest.param(
            "pending/next/item_id",
            lambda ids: ids + 64,
            "pending: next/item_id must be from -1 to 26; got ",
            id="a later id",
        ),
        pytest.param(
            "pending/box_heightmap",
            lambda h: h[..., :4],
            r"box_heightmap must have shape \(4, 2, 5, 5\); got",
            id="heights",
        ),
        pytest.param(
            "pending/action", lambda a: a + 10**9, "pending: action must be from 0 to 49; got 1", id="an action"
        ),
        pytest.param(
            "pending/action",
            lambda a: a[:3],
            r"pending: action must be of \(4, fewer than 3\) transitions",
            id="other lanes",
        ),
        pytest.param(
            "pending/next/reward",
            lambda r: r * float("nan"),
            "pending: next/reward must be from -inf to inf; got n",
            id="a reward",
        ),
        pytest.param("pending", lambda _: 3, "pending: action must be of .* is None", id="nothing pending"),
        pytest.param("current", lambda _: None, "current: .*mapping of names to tensors.* None", id="nothing seen"),
        pytest.param(
            "env", lambda _: [], r"load_state_dict: .*mapping of names to tensors.* \[\]", id="no environment"
        ),
        pytest.param("env/num_packed", lambda n: n - 50, "num_packed must be from 0 to 100; got -", id="a count"),
    ],
)
def test_a_state_that_no_run_could_have_written(name: str, change: Any, message: str) -> None:
    made, policy = rollout()
    made.collect(policy, 4)
    state = copy.deepcopy(made.state_dict())
    *above, last = name.split("/")
    part: Any = state
    for key in above:
        part = part[key]
    part[last] = change(part[last])
    other, _ = rollout()
    before, current = other.env.state_dict(), other.current
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)  # type: ignore[arg-type]
    assert other.current is current
    assert other.pending is None
    assert all(torch.equal(value, before[key]) for key, value in other.env.state_dict().items())


def test_steps_of_robots_are_those_of_the_environment() -> None:
    env = robots_env()
    played = []
    after = []
    policy, seen = under_way(env), env.reset()
    for _ in range(60):
        stepped = env.step(policy(seen))
        played.append(stepped["robots"].clone())
        after.append(stepped["next", "robots"].clone())
        seen = env.maybe_reset(env.step_mdp(stepped))
    steps = torch.stack(played, 2).flatten(0, 1)  # (N·R, T)
    ends = torch.stack(after, 2).flatten(0, 1)  # (N·R, T)
    made, policy = robots_rollout(n_steps=1)
    transitions = made.collect(policy, 60)[0].unflatten(0, (3 * ROBOTS, 60))
    active = steps["active"].squeeze(-1)
    # Robots that take no part need no more than this.
    assert torch.equal(transitions["active"].squeeze(-1), active)
    for name in ("observation", "action"):
        assert torch.equal(transitions[name][active], steps[name][active])
    for name in ("observation", "reward", "done", "terminated"):
        assert torch.equal(transitions["next", name][active], ends[name][active])
    done = ends["done"].squeeze(-1)[active]
    terminated = ends["terminated"].squeeze(-1)[active]
    assert min(int((done & terminated).sum()), int((done & ~terminated).sum()), int((~active).sum())) > 5


def test_robots_by_hand() -> None:
    # One environment, two robots, three steps; robot r sees 10 r + t, and half more in `next`.
    seen = torch.tensor([[[0.0, 10], [1, 11], [2, 12]]]).unsqueeze(-1)  # (N, T, R, 1)
    steps = TensorDict(
        {"robots": {"obs": seen}, "next": {"robots": {"obs": seen + 0.5}, "done": seen[:, :, 0] > 5}}, [1, 3]
    )
    steps["robots"].batch_size = steps["next", "robots"].batch_size = [1, 3, 2]
    out = per_robot(steps, ("robots",))
    assert out.batch_size == (2, 3)
    assert out["obs"][..., 0].tolist() == [[0, 1, 2], [10, 11, 12]]
    assert out["next", "obs"][..., 0].tolist() == [[0.5, 1.5, 2.5], [10.5, 11.5, 12.5]]
    # What the world as a whole came to is no robot's.
    assert set(out["next"].keys()) == {"obs"}


def test_rollout_keeps_transitions_of_each_robot() -> None:
    made, policy = robots_rollout(n_steps=3)
    transitions, steps = made.collect(policy, 5)
    # Two steps of each robot are pending.
    assert transitions.batch_size == (3 * ROBOTS * 3,)
    assert made.collect(policy, 5)[0].batch_size == (3 * ROBOTS * 5,)
    assert set(transitions.keys()) == {"observation", "active", "action", "next", "steps_to_next_obs"}
    assert set(transitions["next"].keys()) == {"observation", "active", "reward", "done", "terminated"}
    assert transitions["next", "reward"].shape == transitions["active"].shape == (3 * ROBOTS * 3, 1)
    assert transitions["observation"].shape == (3 * ROBOTS * 3, 39)
    assert steps.batch_size == (3, 5)
    assert steps["next", "robots", "collided"].shape == (3, 5, ROBOTS, 1)
    assert steps["next", "done"].shape == steps["next", "success"].shape == (3, 5, 1)


def test_rollout_reads_nothing_back() -> None:
    env, (boxes, rule) = robots_env(), rollout()
    agent = IQN(AgentSpace.of(env), network=NavigationQuantiles, acting_taus=2)
    robots, policy = Rollout(env, KEPT, 3, 0.9, group=("robots",)), PolicyWrapper(agent)
    with NoHostReads(), set_exploration_type(ExplorationType.RANDOM):
        for _ in range(3):
            robots.collect(policy, 5)
            boxes.collect(rule, 5)


def solid_rollouts(n_steps: int, seed: int = 0) -> tuple[Rollout, Rollout, HeightmapCodec, DeepestBottomLeft]:
    """Return a plain rollout and one that packs.

    Their environments go the same way, by a policy that draws nothing.
    """
    plain = solids_env(seed=seed)
    packs = solids_env(seed=seed)
    store, arguments = HeightmapCodec(packs), (["box_heightmap", "item_id"], n_steps, 1.0)
    assert store.dtype == torch.uint8
    return Rollout(plain, *arguments), Rollout(packs, *arguments, store=store), store, DeepestBottomLeft(plain)


@pytest.mark.parametrize("n_steps", [4, 30])
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


@pytest.mark.parametrize("broken", [torch.inf, -torch.inf, torch.nan])
def test_nothing_of_the_next_episode_gets_into_a_return(broken: float) -> None:
    done = torch.tensor([[False, True, False, False]])[..., None]
    reward = torch.tensor([[1.0, 2.0, broken, 4.0]])[..., None]
    after = TensorDict({"reward": reward, "done": done}, [1, 4])
    made = n_step(TensorDict({"next": after}, [1, 4]), 3, 0.5)
    assert made["next", "reward"].flatten().tolist() == [2.0, 2.0]


CPU = torch.device("cpu")


def steps(done: list[int], utilization: list[float]) -> TensorDict:
    columns = {"done": torch.tensor(done).bool().unsqueeze(-1), "utilization": torch.tensor(utilization).unsqueeze(-1)}
    return TensorDict(columns, batch_size=[len(done)])


def test_means_by_hand() -> None:
    meter = EpisodeMeter(CPU, memory=0.75)
    # No episode finishes here.
    meter.count(steps([0, 0], [0.5, 0.9]))
    assert (meter.finished.item(), meter.recent["utilization"].item()) == (0, 0.0)
    # Nobody knows the mean yet.
    assert meter.outcomes["utilization"].isnan()
    # The first mean is taken without decay: (0.2 + 0.6) / 2.
    meter.count(steps([1, 0, 1], [0.2, 0.9, 0.6]))
    assert (meter.finished.item(), meter.recent["utilization"].item()) == (2, pytest.approx(0.4))
    assert torch.equal(meter.outcomes["utilization"], meter.recent["utilization"])
    # The mean is 0.75 · 0.4 + 0.25 · 0.8.
    meter.count(steps([0, 1], [0.9, 0.8]))
    assert (meter.finished.item(), meter.recent["utilization"].item()) == (3, pytest.approx(0.5))
    meter.count(steps([0], [0.1]))
    assert (meter.finished.item(), meter.recent["utilization"].item()) == (3, pytest.approx(0.5))


def worlds(done: list[list[int]], success: list[list[int]], collided: list[list[int]]) -> TensorDict:
    """Steps (N, T) of navigation, whose two names are told by yes or no."""
    columns = {"done": done, "success": success, "collided": collided}
    shaped = {name: torch.tensor(column).bool().unsqueeze(-1) for name, column in columns.items()}
    return TensorDict(shaped, batch_size=[len(done), len(done[0])])


def test_several_names_by_hand() -> None:
    meter = EpisodeMeter(CPU, ("success", "collided"), memory=0.5)
    assert list(meter.recent) == ["success", "collided"]
    # Three of four steps end an episode: one succeeds, two collide. What others tell on their way does not count.
    meter.count(worlds([[1, 0], [1, 1]], [[1, 1], [0, 0]], [[0, 1], [1, 1]]))
    assert meter.finished.item() == 3
    assert {name: value.item() for name, value in meter.recent.items()} == pytest.approx(
        {"success": 1 / 3, "collided": 2 / 3}
    )
    # The means go halfway to 1, and halfway to 0.
    meter.count(worlds([[0, 0], [0, 1]], [[1, 1], [0, 1]], [[1, 1], [1, 0]]))
    assert meter.finished.item() == 4
    assert {name: value.item() for name, value in meter.recent.items()} == pytest.approx(
        {"success": 2 / 3, "collided": 1 / 3}
    )


def test_without_names_it_counts() -> None:
    meter = EpisodeMeter(CPU, ())
    meter.count(steps([1, 0, 1], [0.1, 0.1, 0.1]))
    assert (meter.finished.item(), meter.recent) == (2, {})


NAMES = "utilization", "success"


def seen(done: list[int], utilization: list[float]) -> TensorDict:
    """Return steps with both names.

    A success is a bin that is more than half full.
    """
    made = steps(done, utilization)
    return made.set("success", made["utilization"] > 0.5)


def test_meter_resumes_where_it_was_saved() -> None:
    saved, loaded = EpisodeMeter(CPU, NAMES), EpisodeMeter(CPU, NAMES)
    saved.count(seen([1, 1], [0.5, 0.75]))
    state = saved.state_dict()
    assert set(state) == {"finished", "recent_utilization", "recent_success"}
    loaded.load_state_dict(state)
    for meter in (saved, loaded):
        meter.count(seen([1, 1], [0.1, 0.6]))
    assert loaded.finished == saved.finished == 4
    assert loaded.recent == saved.recent
    assert loaded.recent != EpisodeMeter(CPU, NAMES).recent


def test_counting_reads_nothing_back() -> None:
    meter, told = EpisodeMeter(CPU, NAMES), seen([1, 0], [0.5, 0.5])
    with NoHostReads():
        meter.count(told)
