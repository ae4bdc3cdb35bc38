"""Environments observed as clips.

A shift at the sink is what it is by video, and any other environment plays the same as before.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from examples.packing_from_pixels import SeenBins
from tests.evaluation.counting_env import CountingEnv
from tests.no_host_reads import NoHostReads
from tests.training.tiny import trainer
from torchrl_gpu.envs import DishwashingEnv, FromPixels, MarineNavEnv, PackingEnv
from torchrl_gpu.envs.viewable import Decision, Overlaid, Overlay
from torchrl_gpu.policies import DQN, ClipEncoder, EpsilonGreedy, VectorScores
from torchrl_gpu.training import ClipReplay, Episodes, OffPolicy

BINS: dict[str, Any] = {"bin_size": (5.0, 5.0, 5.0), "resolution": 5, "device": "cpu", "seed": 0}
CLIPS = ("clip", "frame", "frame_at")


def sink(**changes: object) -> DishwashingEnv:
    return DishwashingEnv(5, **{"max_steps": 7, "device": "cpu", "seed": 2, "frame_size": (16, 24), **changes})


def played(env: Any, steps: int) -> list[TensorDict]:
    torch.manual_seed(0)
    current, out = env.reset(), []
    for _ in range(steps):
        stepped, current = env.step_and_maybe_reset(current.set("action", env.action_spec.rand()))
        out.append(stepped)
    return out


def test_a_shift_seen_so_is_the_shift_by_video() -> None:
    of_state = FromPixels(sink(), clip_length=3, frame_size=(16, 24))
    by_video = sink(observe_as="video", clip_length=3)
    for one, other in zip(played(of_state, 20), played(by_video, 20), strict=True):
        for a, b in ((one, other), (one["next"], other["next"])):
            assert all(torch.equal(a[key], b[key]) for key in CLIPS)
        assert torch.equal(one["next", "reward"], other["next", "reward"])
    assert set(CLIPS[1:]) <= set(of_state.stored_keys)


def test_the_environment_goes_on_as_before() -> None:
    plain, seen = SeenBins(3, **BINS), FromPixels(SeenBins(3, **BINS), 2, (20, 20))
    for one, other in zip(played(plain, 12), played(seen, 12), strict=True):
        assert (one.exclude("next") == other.exclude("next", *CLIPS)).all()
        assert (one["next"] == other["next"].exclude(*CLIPS)).all()
    check_env_specs(FromPixels(SeenBins(3, **BINS), 2, (20, 20)))
    assert seen.outcomes == plain.outcomes
    assert seen.space_extras == plain.space_extras


def test_an_age_that_cannot_be_is_refused() -> None:
    env = FromPixels(sink(), 3, (16, 24))
    with pytest.raises(ValueError, match=r"FromPixels.load_state_dict: age .*0 to"):
        env.load_state_dict(env.state_dict() | {"age": env.state_dict()["age"] - 100})


def test_another_one_like_it() -> None:
    env = FromPixels(sink(), 3, (16, 24))
    other = env.like(2, seed=9, clip_length=5)
    assert (other.num_envs, other.clip_length, other.frame_size) == (2, 5, (16, 24))
    assert other.env.max_steps == 7
    assert other.seed == other.env.seed == 9
    env.renumber(40)
    assert env.env.first_env == 40


def test_nothing_is_read_by_the_host() -> None:
    env = FromPixels(SeenBins(3, **BINS), 2, (20, 20))
    current = env.reset()
    action = env.action_spec.rand()
    with NoHostReads():
        env.step_and_maybe_reset(current.set("action", action))


def test_what_it_cannot_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"FromPixels: env .*groups.* M "):
        FromPixels(type("M", (MarineNavEnv,), {"pictures": None, "metrics": None})(2, device="cpu"))
    with pytest.raises(ValueError, match=r"env .*`pictures`.* PackingEnv"):
        FromPixels(PackingEnv(2, **BINS))
    with pytest.raises(ValueError, match=r"FromPixels: env .*clip; DishwashingEnv "):
        FromPixels(sink(observe_as="video"))
    monkeypatch.delattr(CountingEnv, "pictures")
    with pytest.raises(ValueError, match=r"env .*`pictures`.* CountingEnv"):
        FromPixels(CountingEnv(2))
    for size in ((16,), (16, 0)):
        with pytest.raises(ValueError, match="frame_size"):
            FromPixels(sink(), frame_size=size)


def test_packing_is_learnt_from_pixels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = partial(VectorScores, observations=["features"])
    made = OffPolicy(
        FromPixels(SeenBins(4, **BINS), 2, (16, 16)),
        partial(DQN, network=network, exploration=EpsilonGreedy(frames=100)),
        encoder=ClipEncoder(num_features=8),
        shift=0,
        replay=partial(ClipReplay, capacity=60),
        batch_size=8,
        warmup_frames=16,
        updates_per_step=1,
    )
    before = made.agent.encoder.stem.weight.clone()
    trainer(tmp_path, 5).fit(made, Episodes(steps_per_epoch=5, num_val_episodes=2, pictures=False))
    assert not torch.equal(made.agent.encoder.stem.weight, before)
    batch = made.replay.sample()
    made.env.restore(batch, made.replay)
    legal = batch["action_mask"].gather(1, batch["action"][:, None])
    assert legal.all()


@pytest.mark.parametrize(
    "change",
    [lambda drawn: drawn.float(), lambda drawn: drawn[..., :1], lambda drawn: drawn[:, 1:], lambda drawn: drawn[:2]],
    ids=["dtype", "colours", "height", "rows"],
)
def test_pictures_of_another_form_are_refused(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = FromPixels(sink(), 3, (16, 24))
    drawn = env.env.pictures  # type: ignore[attr-defined]
    monkeypatch.setattr(env.env, "pictures", lambda *given: change(torch.as_tensor(drawn(*given))))
    with pytest.raises(ValueError, match="DishwashingEnv: pictures"):
        env.reset()


def test_the_page_shows_what_a_policy_sees_of_it() -> None:
    env = FromPixels(sink(), 3, (16, 24))
    assert isinstance(env, Overlaid)
    assert env.overlays == {"seen": Overlay("What the policy sees", "env")}
    played(env, 4)
    for index in (0, 3):
        clip = env.observation(index)["clip"][0]
        # Frames of 16×24 pixels, below each other.
        shown = env.overlay("seen", index, 48, 48, None)
        for frame, top in zip(clip, (0, 16, 32), strict=True):
            assert torch.equal(shown[top : top + 16, 12:36].permute(2, 0, 1), frame)
    assert not torch.equal(env.overlay("seen", 0, 48, 48, None), env.overlay("seen", 3, 48, 48, None))


def test_what_the_environment_overlays_stays() -> None:
    class Overlaying(DishwashingEnv):
        @property
        def overlays(self) -> dict[str, Overlay]:
            return {"foam": Overlay("Foam", "action")}

        def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> torch.Tensor:
            assert decision is not None
            return torch.full((height, width, 3), index, dtype=torch.uint8)

    env = FromPixels(Overlaying(5, max_steps=7, device="cpu", seed=2), 3, (16, 24))
    assert list(env.overlays) == ["seen", "foam"]
    assert (env.overlay("foam", 4, 6, 5, Decision(torch.zeros(2), None)) == 4).all()
