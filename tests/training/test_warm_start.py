"""A network that begins with another one's weights: which layers are taken, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import tiny
from torchrl_gpu.policies import IQN, AgentSpace, BCPolicy, ClonedChoice, PlacementQuantiles, PlacementScores
from torchrl_gpu.training.warm_start import take_network

LAYERS = 14  # tensors of a network with one block


def cloned(path: Path, **changes: Any) -> nn.Module:
    torch.manual_seed(11)
    space = AgentSpace.of(tiny.packing_env())
    network = PlacementScores(space, **{"channels": 4, "blocks": 1, **changes})
    nn.init.normal_(network.advantage.weight)
    learner = nn.ModuleDict({"learner": ClonedChoice(space, network)})
    torch.save({"state_dict": learner.state_dict(), "global_step": 5}, path)
    return network


def test_a_q_learner_begins_with_all_of_it(tmp_path: Path) -> None:
    network, agent = cloned(tmp_path / "bc.ckpt"), tiny.dqn(tiny.packing_env())
    assert len(take_network(agent.policy, str(tmp_path / "bc.ckpt"))) == LAYERS
    ours = {name.rpartition("module.0.module.")[2]: value for name, value in agent.policy.named_parameters()}
    assert all(torch.equal(ours[name], value) for name, value in network.named_parameters())
    agent.reset_targets()
    assert all(torch.equal(online, target) for online, target in agent._target_pairs())


def test_a_learner_with_one_more_layer_begins_with_the_others(tmp_path: Path) -> None:
    network = cloned(tmp_path / "bc.ckpt")
    make = partial(PlacementQuantiles, channels=4, blocks=1)
    agent = IQN(AgentSpace.of(tiny.packing_env()), network=make)
    taken = take_network(agent.policy, str(tmp_path / "bc.ckpt"))
    assert len(taken) == LAYERS
    assert not [name for name in taken if "taus" in name]  # of what returns vary by, cloning knows nothing
    stem = next(value for name, value in agent.policy.named_parameters() if name.endswith("stem.weight"))
    assert torch.equal(stem, network.stem.weight)  # type: ignore[arg-type]


def test_a_run_of_a_q_learner_gives_its_online_network(tmp_path: Path) -> None:
    agent = tiny.dqn(tiny.packing_env())
    with torch.no_grad():
        for online, target in agent._target_pairs():
            online.add_(1)
            target.zero_()
    torch.save({"state_dict": nn.ModuleDict({"agent": agent}).state_dict()}, tmp_path / "dqn.ckpt")
    other = tiny.dqn(tiny.packing_env())
    take_network(other.policy, str(tmp_path / "dqn.ckpt"))
    pairs = zip(agent.policy.parameters(), other.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_vectors_bring_their_statistics(tmp_path: Path) -> None:
    policy, other = BCPolicy(3, 2), BCPolicy(3, 2)
    policy.set_statistics(torch.randn(9, 3), torch.randn(9, 2))
    torch.save({"model_state_dict": policy.state_dict(), "obs_dim": 3}, tmp_path / "bc.pt")
    take_network(other, str(tmp_path / "bc.pt"))
    assert torch.equal(other(torch.ones(1, 3)), policy(torch.ones(1, 3)))


def test_another_shape_is_refused_and_nothing_is_taken(tmp_path: Path) -> None:
    cloned(tmp_path / "wide.ckpt", channels=6)
    agent = tiny.dqn(tiny.packing_env())
    before = [value.clone() for value in agent.policy.parameters()]
    wanted = r"wide.ckpt: want .*stem.weight of shape \(4, 15, 3, 3\); got \(6, 15, 3, 3\)"
    with pytest.raises(ValueError, match=wanted):
        take_network(agent.policy, str(tmp_path / "wide.ckpt"))
    assert all(torch.equal(a, b) for a, b in zip(before, agent.policy.parameters(), strict=True))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"state_dict": {"other.mu": torch.zeros(1)}}, "want layers such as .*; got other.mu"),
        ({"weights": {}}, "want a checkpoint with a state_dict; got none in it"),
        ({"state_dict": {"learner.network.stem.bias": torch.full((4,), torch.nan)}}, "want finite weights"),
        ({"state_dict": {"learner.network.stem.bias": torch.zeros(4, device="meta")}}, "want layers such as"),
        ({"state_dict": {f"{i}.a": torch.zeros(0) for i in range(10_001)}}, "at most 10,000 tensors; got 10,001"),
        (nn.Linear(1, 1), "want tensors and plain values only; got a pickle"),
    ],
)
def test_what_is_no_such_network(content: object, says: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=says):
        take_network(tiny.dqn(tiny.packing_env()).policy, str(tmp_path / "a.ckpt"))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"warm_start nobody.ckpt: want an existing file"):
        take_network(nn.Linear(1, 1), "nobody.ckpt")


def test_a_run_begins_with_it_and_a_resumed_one_does_not(tmp_path: Path) -> None:
    network = cloned(tmp_path / "bc.ckpt")
    module = tiny.module(warm_start=str(tmp_path / "bc.ckpt"), updates_per_step=1)
    seen: dict[str, torch.Tensor] = {}
    played = module._play

    def watched() -> None:
        seen.setdefault("stem", module.agent.policy.module[0].module.stem.weight.detach().clone())
        targets = dict(module.agent.objective.target_value_network_params.flatten_keys().items())
        seen.setdefault("target", next(v.clone() for k, v in targets.items() if k.endswith("stem.weight")))
        played()

    module._play = watched  # type: ignore[method-assign]
    trainer = tiny.trainer(tmp_path / "run", max_steps=2)
    trainer.fit(module, tiny.data())
    assert torch.equal(seen["stem"], network.stem.weight)  # type: ignore[arg-type]
    assert torch.equal(seen["target"], network.stem.weight)  # type: ignore[arg-type]
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    (tmp_path / "bc.ckpt").unlink()  # a run that goes on does without
    again = tiny.module(warm_start=str(tmp_path / "bc.ckpt"), updates_per_step=1)
    tiny.trainer(tmp_path / "again", max_steps=3).fit(again, tiny.data(), ckpt_path=str(tmp_path / "run.ckpt"))
