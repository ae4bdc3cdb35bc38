"""Agents behind an encoder of clips: against agents that are given the features."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, NoisyLinear

from tests.no_host_reads import NoHostReads
from torchrl_gpu.policies import (
    ACIQN,
    DDPG,
    DQN,
    SAC,
    Agent,
    AgentSpace,
    FromClips,
    PolicyWrapper,
    Rainbow,
    VectorActor,
    VectorCritic,
    VectorGaussian,
    VectorScores,
)
from torchrl_gpu.policies.encoders.from_clips import ClipDecoder, random_shift

SHAPE = (4, 3, 6, 5)
SEEN = {"clip": (SHAPE, "uint8"), "speed": ((2,), "float32"), "frame_at": ((3,), "int64")}
CONTINUOUS = AgentSpace("Somewhere", (), SEEN, low=(0.0, 0.0), high=(1.0, 1.0))
DISCRETE = AgentSpace("Somewhere", (), SEEN, num_actions=3)


class Mean(nn.Module):
    """Features from the means of pixels, by a layer."""

    def __init__(self, shape: tuple[int, ...], width: int = 7) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1], width)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer((clip.float() / 255).mean((-1, -2)).flatten(-2)))


class Quantiles(nn.Module):
    in_keys: ClassVar = ["features"]

    def __init__(self, space: AgentSpace) -> None:
        super().__init__()
        self.net = MLP(7 + 2 + 1, 1, num_cells=[8])

    def forward(self, features: torch.Tensor, action: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
        known = torch.cat([features, action], -1)[..., None, :].expand(*taus.shape, -1)
        return self.net(torch.cat([known, taus[..., None]], -1))[..., 0]


class NoisyAtoms(nn.Module):
    in_keys: ClassVar = ["features"]
    num_atoms = 5

    def __init__(self, space: AgentSpace) -> None:
        super().__init__()
        self.layer = NoisyLinear(7, 3 * self.num_atoms)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features).unflatten(-1, (3, self.num_atoms))


AGENTS: dict[str, Any] = {
    "SAC": (CONTINUOUS, partial(SAC, actor=VectorGaussian, critic=VectorCritic, target_entropy=-2.0)),
    "ACIQN": (CONTINUOUS, partial(ACIQN, actor=VectorActor, critic=Quantiles)),
    "Rainbow": (DISCRETE, partial(Rainbow, network=NoisyAtoms, n_steps=1)),
    "DQN": (DISCRETE, partial(DQN, network=VectorScores, n_steps=1)),
}


def made(name: str, shift: int = 0, **options: Any) -> FromClips:
    torch.manual_seed(3)
    space, agent = AGENTS[name]
    return FromClips(space, encoder=Mean, agent=agent, shift=shift, **options)


def transitions(name: str, number: int = 9) -> TensorDict:
    torch.manual_seed(4)

    def state() -> dict[str, Any]:
        return {"clip": torch.randint(256, (number, *SHAPE), dtype=torch.uint8), "speed": torch.rand(number, 2)}

    action = torch.rand(number, 2) if AGENTS[name][0] is CONTINUOUS else torch.randint(3, (number,))
    done = torch.rand(number, 1) < 0.3
    after = {**state(), "reward": torch.randn(number, 1), "done": done, "terminated": done}
    return TensorDict({**state(), "action": action, "next": after}, batch_size=[number])


@pytest.mark.parametrize("name", AGENTS)
def test_losses_are_those_of_the_agent_on_features(name: str) -> None:
    agent, batch = made(name), transitions(name)
    torch.manual_seed(5)
    losses = agent.losses(batch)
    given = transitions(name).exclude("clip")
    with torch.no_grad():
        whole = transitions(name)
        given["features"] = agent.encoder(whole["clip"])
        given["next", "features"] = agent.encoder(whole["next", "clip"])
    torch.manual_seed(5)
    expected = agent.agent.losses(given)
    assert losses.keys() == expected.keys()
    for key, loss in losses.items():
        assert torch.equal(loss, expected[key]), key
    assert torch.equal(batch["td_error"], given["td_error"])
    assert {"features"}.isdisjoint([*batch.keys(), *batch["next"].keys()])


@pytest.mark.parametrize("name", AGENTS)
def test_the_encoder_learns_from_the_first_loss_alone(name: str) -> None:
    agent = made(name)
    losses = agent.losses(transitions(name))
    first, *others = losses.values()
    for loss in others:
        loss.backward(retain_graph=True)
        assert all(weight.grad is None or not weight.grad.any() for weight in agent.encoder.parameters())
    first.backward()
    assert all(weight.grad.any() for weight in agent.encoder.parameters())
    groups = agent.parameter_groups
    weights = {id(weight) for weight in next(iter(groups.values()))}
    assert {id(weight) for weight in agent.encoder.parameters()} <= weights
    every = [id(weight) for weight in chain.from_iterable(groups.values())]
    assert len(every) == len(set(every))


def test_error_of_drawn_clips_by_hand() -> None:
    torch.manual_seed(0)
    decoder, features = ClipDecoder(7, SHAPE, hidden=5), torch.rand(2, 7)
    clips = torch.randint(256, (2, *SHAPE), dtype=torch.uint8)
    drawn, expected = decoder.net(features).view(2, 4, 3, 3, 2), 0.0
    for b, t, c, y, x in torch.cartesian_prod(*map(torch.arange, drawn.shape)).tolist():
        pixels = clips[b, t, c, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].double() / 255
        # There are eight frames.
        expected += (drawn[b, t, c, y, x].item() - pixels.mean().item()) ** 2 / (2 * 4)
    assert decoder.missing(features, clips).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", AGENTS)
def test_an_encoder_learns_to_keep_what_clips_show(name: str) -> None:
    plain, agent = made(name), made(name, reconstruction=3.0)
    plain.load_state_dict({key: value for key, value in agent.state_dict().items() if "decoder" not in key})
    batch, without = transitions(name), transitions(name)
    torch.manual_seed(5)
    losses = agent.losses(batch)
    torch.manual_seed(5)
    others = plain.losses(without)
    assert agent.decoder is not None
    missing = agent.decoder.missing(agent.encoder(batch["clip"]), batch["clip"])
    assert losses["reconstruction"].item() == pytest.approx(3 * missing.item())
    assert {key: loss.item() for key, loss in losses.items() if key != "reconstruction"} == {
        key: loss.item() for key, loss in others.items()
    }
    assert torch.equal(batch["td_error"], without["td_error"])
    assert list(losses) == list(agent.parameter_groups)
    weights = list(chain.from_iterable(agent.parameter_groups.values()))
    assert len(weights) == len(set(weights)) == sum(each.requires_grad for each in agent.parameters())
    losses["reconstruction"].backward()
    assert {key.split(".")[0] for key, each in agent.named_parameters() if each.grad is not None} == {
        "encoder",
        "decoder",
    }


@pytest.mark.parametrize("name", AGENTS)
def test_agent_from_clips_acts_as_the_agent_on_features(name: str) -> None:
    agent, seen = made(name), transitions(name).exclude("next", "action")
    policy = PolicyWrapper(agent).eval()
    out = policy(seen.clone())
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        expected = agent.agent.policy(seen.clone().set("features", agent.encoder(seen["clip"])))
    assert torch.equal(out["action"], expected["action"])
    assert {"features"}.isdisjoint(out.keys())
    assert set(policy.state_dict()) >= {"policy.encoder.layer.weight"}
    shaped = policy(seen[:8].clone().reshape(2, 4))
    assert torch.allclose(shaped["action"].reshape(8, -1), out["action"][:8].reshape(8, -1), atol=1e-6)
    assert agent.name == f"{name} (Mean)"


def test_agent_from_clips_reads_nothing_back() -> None:
    agent, batch = made("SAC", shift=2), transitions("SAC")
    with NoHostReads():
        losses = agent.losses(batch)
        torch.stack(list(losses.values())).sum().backward()
        PolicyWrapper(agent)(batch.exclude("next"))


def test_agent_from_clips_refuses_other_observations() -> None:
    agent = AGENTS["SAC"][1]
    plain = AgentSpace("Somewhere", (), {"speed": ((2,), "float32")}, low=(0.0,), high=(1.0,))
    with pytest.raises(ValueError, match=r"FromClips: Somewhere .*clips \(T, C, H, W\) uint8.*speed"):
        FromClips(plain, encoder=Mean, agent=agent)
    floats = AgentSpace("Somewhere", (), {"clip": (SHAPE, "float32")}, low=(0.0,), high=(1.0,))
    with pytest.raises(ValueError, match=r"clip of Somewhere .*float32 \(4, 3, 6, 5\)"):
        FromClips(floats, encoder=Mean, agent=agent)
    for shift in (-1, 5):
        with pytest.raises(ValueError, match=rf"FromClips: shift .*(least 0|most 4); got {shift}"):
            FromClips(CONTINUOUS, encoder=Mean, agent=agent, shift=shift)
    with pytest.raises(ValueError, match=r"FromClips: .*DDPG.*encoder"):
        FromClips(CONTINUOUS, encoder=Mean, agent=partial(DDPG, actor=VectorActor, critic=VectorCritic))
    with pytest.raises(ValueError, match=r"encoder .*\(…, D\), not \(…, 4, 3, 6, 5\)"):
        FromClips(CONTINUOUS, encoder=lambda shape: nn.Identity(), agent=agent)


def test_a_clip_is_shifted_as_a_whole_within_bounds() -> None:
    torch.manual_seed(0)
    size, most = 9, 3
    place = torch.arange(size)
    # Each pixel says where it came from.
    grid = (place[:, None] * size + place).to(torch.uint8)
    clips = grid.expand(200, 2, 3, size, size).contiguous()
    out = random_shift(clips, most)
    assert out.dtype == torch.uint8
    assert (out == out[:, :1, :1]).all()
    seen = set()
    for each in out[:, 0, 0].long():
        middle = int(each[size // 2, size // 2])
        down, right = middle // size - size // 2, middle % size - size // 2
        expected = grid[(place + down).clamp(0, size - 1)][:, (place + right).clamp(0, size - 1)]
        assert torch.equal(each, expected.long())
        seen.add((down, right))
    moves = set(chain.from_iterable(seen))
    assert moves == set(range(-most, most + 1))
    assert len(seen) > 40
    assert random_shift(clips, 0) is clips


def test_all_that_agents_are_asked_for_is_the_agents_behind_the_encoder() -> None:
    # These are made of the others.
    own = {"losses", "loss", "parameters_to_train"}
    asked = {
        name
        for name, value in vars(Agent).items()
        if name[0] != "_" and (callable(value) or isinstance(value, property))
    }
    assert asked - own <= vars(FromClips).keys()

    class Told(DQN):
        """Notes what it is asked for."""

        def __getattribute__(self, name: str) -> Any:
            if name in ("anneal", "reset_targets", "update_targets", "targets_update_every_step", "batch_keys"):
                told.append(name)
            return super().__getattribute__(name)

    told: list[str] = []
    agent = FromClips(DISCRETE, encoder=Mean, agent=partial(Told, network=VectorScores, n_steps=1))
    agent.anneal(3)
    agent.reset_targets()
    agent.update_targets(1)
    assert agent.targets_update_every_step
    assert told == ["anneal", "reset_targets", "update_targets", "targets_update_every_step"]
    assert ("next", "clip") in agent.batch_keys
    assert "features" not in str(agent.batch_keys)
