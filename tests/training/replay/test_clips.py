"""Replay of clips against one that keeps every clip as it was played."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Unbounded

from tests.no_host_reads import NoHostReads
from torchrl_gpu.envs import DishwashingEnv, clips
from torchrl_gpu.envs.episodic import Advanced, EpisodicEnv
from torchrl_gpu.training import ClipReplay, DeviceReplay, Rollout
from torchrl_gpu.training.replay.clips import FrameStore
from torchrl_gpu.training.replay.files import replay_state, restore_replay

T = 4
CPU = torch.device("cpu")


class NumberedEnv(EpisodicEnv):
    """Episodes of random lengths, short ones among them.

    Each picture shows environment, episode and step.
    """

    def __init__(self, num_envs: int = 3, odds: float = 0.2, seed: int | None = 0, device: str = "cpu") -> None:
        self.odds = odds
        super().__init__(
            num_envs,
            observations=clips.clip_specs(T, 1, 2),
            action=Bounded(0.0, 1.0, (1,)),
            outcomes={"length": Unbounded((1,))},
            max_steps=9,
            device=device,
            seed=seed,
        )

    @property
    def stored_keys(self) -> list[str]:
        return list(clips.STORED_KEYS)

    def restore(self, tensordict: Any, replay: Any = None) -> Any:
        return clips.restore_clips("NumberedEnv.restore", tensordict, replay, T)

    def begin(self) -> dict[str, Tensor]:
        shown = self._state["shown"] + 1 if "shown" in self._state else torch.zeros_like(self._env_index)
        told = self._state["episode"] + 1 if "shown" in self._state else torch.zeros_like(self._env_index)
        return {"clip": clips.first_clip(self._picture(told, torch.zeros_like(shown)), T), "shown": shown, "told": told}

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        picture = self._picture(state["told"], self._state["step_count"])
        after = {"clip": clips.next_clip(state["clip"], picture), "shown": state["shown"] + 1, "told": state["told"]}
        ends = self.uniform()[:] < self.odds
        return Advanced(after, action[:, 0], ends, {"length": self._state["step_count"].float()})

    def observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return clips.clip_observations(state["clip"], state["shown"], self._state["step_count"])

    def _picture(self, told: Tensor, step: Tensor) -> Tensor:
        words = torch.stack([self._env_index, told, step], 1).to(torch.uint8)  # (N, 3)
        return words[:, :, None, None].expand(-1, -1, 1, 2).contiguous()


def policy(state: Any) -> Any:
    return state.set("action", torch.rand(*state.batch_size, 1))


class Played:
    """A rollout into a replay, and every transition with its clips.

    In the order in which they were added.
    """

    def __init__(self, capacity: int = 40, n_steps: int = 1, **options: Any) -> None:
        torch.manual_seed(0)
        self.env, self.capacity = NumberedEnv(**options.pop("env", {})), capacity
        self.replay = ClipReplay(16, CPU, capacity=capacity, **options)
        self.rollout = Rollout(self.env, self.env.stored_keys, n_steps, 0.9, store=self.replay.codec_for(self.env))
        self.twin = NumberedEnv(seed=self.env.seed)
        self.naive = Rollout(self.twin, ["clip", *clips.STORED_KEYS], n_steps, 0.9)
        self.kept: list[TensorDict] = []

    def play(self, steps: int) -> None:
        state = torch.get_rng_state()
        transitions, _ = self.rollout.collect(policy, steps)
        torch.set_rng_state(state)
        whole, _ = self.naive.collect(policy, steps)
        assert {"frame"}.isdisjoint([*transitions.keys(), *transitions["next"].keys()])
        if len(transitions):
            self.replay.extend(transitions)
            self.kept = [*self.kept, *whole.unbind(0)][-self.capacity :]

    def drawable(self) -> dict[tuple[int, int], TensorDict]:
        return {tuple(each["frame_at"][:2].tolist()): each for each in self.kept}


@pytest.mark.parametrize(("n_steps", "prioritized"), [(1, False), (3, True)])
def test_clips_are_those_that_were_played(n_steps: int, prioritized: bool) -> None:
    played, drawn = Played(n_steps=n_steps, prioritized=prioritized), set()
    steps = torch.randint(1, 6, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    for count in steps:
        played.play(count)
        if not len(played.replay):
            continue
        known = played.drawable()
        for _ in range(3):
            batch = played.replay.sample()
            for part in (batch, batch["next"]):
                played.env.restore(part, played.replay)
            for row in batch.unbind(0):
                place = tuple(row["frame_at"][:2].tolist())
                # A KeyError would mean that the frame was overwritten.
                true = known[place]
                for a, b in ((row, true), (row["next"], true["next"])):
                    assert torch.equal(a["clip"], b["clip"])
                assert torch.equal(row["action"], true["action"])
                assert torch.equal(row["next", "reward"], true["next", "reward"])
                drawn.add(place)
    assert len(drawn) > 75


def test_clips_cross_no_episode_and_no_environment() -> None:
    played = Played()
    for _ in range(12):
        played.play(3)
        batch = played.env.restore(played.replay.sample(), played.replay)
        env, episode, step = batch["clip"][..., 0, 0].unbind(-1)
        assert (env == env[:, -1:]).all()
        assert (episode == episode[:, -1:]).all()
        back = torch.arange(T - 1, -1, -1)
        assert torch.equal(step.long(), (step[:, -1:].long() - back).clamp_min(0))


def test_transitions_that_have_lost_frames_are_never_drawn() -> None:
    # Episodes are so short that there are far more frames than room.
    played = Played(env={"odds": 0.7})
    twin = NumberedEnv(odds=0.7)
    played.twin, played.naive = twin, Rollout(twin, ["clip", *clips.STORED_KEYS], 1, 0.9)
    for _ in range(30):
        played.play(2)
    left_out = (played.replay.sampler.priority == 0).sum()
    assert 0 < left_out < 30
    known = played.drawable()
    for _ in range(30):
        batch = played.env.restore(played.replay.sample(), played.replay)
        for row in batch.unbind(0):
            assert torch.equal(row["clip"], known[tuple(row["frame_at"][:2].tolist())]["clip"])


def test_memory_is_a_share_of_stacked_clips() -> None:
    env, length = DishwashingEnv(4, observe_as="video", device="cpu", seed=0, clip_length=8), 8
    replay = ClipReplay(32, CPU, capacity=8_000)
    store = replay.codec_for(env)
    rollout = Rollout(env, env.stored_keys, 1, 0.9, store=store)
    replay.extend(rollout.collect(lambda state: state.set("action", env.action_spec.rand()), 5)[0])
    one = store.num_bytes + replay.storage[:].bytes() * 8_000 // len(replay)
    stacked = 8_000 * length * 3 * 64 * 64
    assert one / stacked < 1.05 / length


@pytest.mark.parametrize("storage", ["device", "host"])
def test_a_restored_replay_goes_on_as_the_other(storage: Any) -> None:
    played = Played(prioritized=True, storage=storage)
    for count in (1, 5, 4, 6, 3, 6):
        played.play(count)
    other = ClipReplay(16, CPU, capacity=40, prioritized=True, storage=storage)
    rollout = Rollout(NumberedEnv(), played.env.stored_keys, 1, 0.9, store=other.codec_for(played.env))
    state = torch.load(saved(replay_state(played.replay)), weights_only=True)
    restore_replay(other, state, entries=rollout.transition_entries())
    rollout.load_state_dict(played.rollout.state_dict())
    for step in range(8):
        made = []
        for run, replay in ((played.rollout, played.replay), (rollout, other)):
            torch.manual_seed(step)
            replay.extend(run.collect(policy, 3)[0])
            made.append(run.env.restore(replay.sample(), replay))
        assert torch.equal(made[0]["clip"], made[1]["clip"])
        assert (made[0] == made[1]).all()


def saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_without_its_frames_a_rollout_draws_no_clip_of_before() -> None:
    played = Played(n_steps=3)
    for _ in range(6):
        played.play(3)
    other = ClipReplay(16, CPU, capacity=40)
    rollout = Rollout(NumberedEnv(), played.env.stored_keys, 3, 0.9, store=other.codec_for(played.env))
    rollout.load_state_dict(played.rollout.state_dict())
    newest = rollout.current["frame_at"][:, 1].clone()
    for _ in range(4):
        other.extend(rollout.collect(policy, 3)[0])
    batch = other.sample()
    row, number, earlier = batch["frame_at"].unbind(1)
    assert (number - earlier >= newest[row]).all()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("frames", torch.zeros(3, 9, 3, 1, 3, dtype=torch.uint8), "frames"),
        ("frames", torch.zeros(3, 9, 3, 1, 2), "frames"),
        ("newest", torch.tensor([1, 2, 10**9]), "newest"),
        ("newest", torch.tensor([1, 2, -2]), "newest"),
        ("first", torch.tensor([1, 2, -1]), "first"),
        ("first", None, "entries"),
    ],
)
def test_frames_of_a_stranger_are_looked_at(name: str, value: Any, message: str) -> None:
    played = Played()
    played.play(3)
    state = replay_state(played.replay)
    frames = dict(state["extra"]["frames"])
    frames |= {name: value} if value is not None else {}
    if value is None:
        del frames[name]
    other = Played()
    with pytest.raises(ValueError, match=message):
        restore_replay(other.replay, state | {"extra": {"frames": frames}}, entries=other.rollout.transition_entries())
    assert len(other.replay) == 0


def test_frame_store_holds_what_its_ring_holds() -> None:
    store = FrameStore(1, 4, torch.Size((3, 4, 4)), torch.device("cpu"))
    ring = {
        "frames": torch.zeros(1, 4, 3, 4, 4, dtype=torch.uint8),
        "newest": torch.tensor([5]),
        "first": torch.tensor([0]),
    }
    store.load_state_dict(ring)
    # Columns: environment, number, pictures before.
    shown = torch.tensor([[0, 1, 0], [0, 2, 0], [0, 3, 2], [0, 4, 2], [0, 5, 1]])
    # pictures 2 to 5 are there: 1 is overwritten, as is what 3 begins with; what follows 5 has not come
    assert store.has(shown, shown + torch.tensor([0, 1, 0])).tolist() == [False, True, False, True, False]
    # Frames from before the first of a lane are not restored either.
    store.load_state_dict(ring | {"first": torch.tensor([3])})
    assert store.has(shown, shown + torch.tensor([0, 1, 0])).tolist() == [False, False, False, False, False]


def test_places_of_a_stranger_are_looked_at() -> None:
    played = Played()
    played.play(3)
    state = replay_state(played.replay)
    for column, value in ((0, 3), (0, -1), (1, -1), (2, -1), (2, 10**6)):
        rows = state["transitions"]["frame_at"].clone()
        rows[0, column] = value
        broken = {**state, "transitions": {**state["transitions"], "frame_at": rows}}
        other = Played()
        with pytest.raises(ValueError, match="frame_at"):
            restore_replay(other.replay, broken, entries=other.rollout.transition_entries())


def test_a_row_that_there_is_not_stands_for_the_nearest() -> None:
    played = Played()
    played.play(4)
    inside, outside = torch.tensor([[0, 2, 2], [2, 2, 2]]), torch.tensor([[-5, 2, 2], [99, 2, 2]])
    assert torch.equal(played.replay.clips(outside, T), played.replay.clips(inside, T))


def test_frames_that_do_not_fit_are_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrl_gpu.training.replay.clips.place", lambda *given: CPU)
    store = FrameStore(2, 5, torch.Size((3, 4, 4)), torch.device("meta"))
    assert store.staged
    assert store.pictures.device == CPU
    replay = ClipReplay(4, CPU, storage="host")
    replay.codec_for(NumberedEnv())
    assert replay.num_bytes == 0


def test_environment_and_replay_must_fit() -> None:
    env = DishwashingEnv(2, device="cpu")
    with pytest.raises(ValueError, match=r"ClipReplay: .*clips"):
        ClipReplay(4, CPU).codec_for(env)
    env = DishwashingEnv(2, observe_as="video", device="cpu")
    with pytest.raises(ValueError, match=r"DeviceReplay: .*torchrl_gpu.training.ClipReplay"):
        DeviceReplay(4, CPU).codec_for(env)
    with pytest.raises(ValueError, match=r"DishwashingEnv.restore: .*replay.*ClipReplay"):
        env.restore(env.reset(), DeviceReplay(4, CPU))


def test_the_host_never_waits() -> None:
    played = Played(prioritized=True)
    played.play(6)
    with NoHostReads():
        transitions, _ = played.rollout.collect(policy, 3)
        played.replay.extend(transitions)
        batch = played.replay.sample()
        played.env.restore(batch, played.replay)
        played.replay.update_priority(batch["index"], torch.rand(16))
