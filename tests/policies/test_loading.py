from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any, final

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential

from tests import forks
from tests.policies import checkpoints, hostile_files
from tests.policies.packing.packer_scenes import NARROW, narrow, solids_env
from torchrl_gpu import cli
from torchrl_gpu.cli import ros, serve_policy
from torchrl_gpu.cli.packing import protocols
from torchrl_gpu.policies import (
    Agent,
    AgentSpace,
    BCPolicy,
    InferencePolicy,
    PolicyWrapper,
    VectorScores,
    export_policy,
    load_policy,
    register,
)
from torchrl_gpu.policies.cloning import Cloned
from torchrl_gpu.policies.packing import HierarchicalPacker
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.registry import REGISTRY, import_classes
from torchrl_gpu.policies.spaces import greedy_module
from torchrl_gpu.system.archives import ENTRY


@pytest.mark.parametrize("kind", checkpoints.EVERY)
def test_a_loaded_policy_decides_as_the_agent_that_was_saved(tmp_path: Path, kind: str) -> None:
    path, agent = checkpoints.saved(tmp_path, kind)
    seen = checkpoints.observations(agent, 7)
    wanted = PolicyWrapper(agent, flat=True).eval()(TensorDict(dict(seen), [7]))["action"]
    before = torch.get_rng_state()
    policy = load_policy(path, "cpu")
    assert torch.equal(torch.get_rng_state(), before), "loading draws from nobody's generator"
    shown = TensorDict(dict(seen), [7])
    assert torch.equal(policy(shown)["action"], wanted)
    assert not policy.training
    assert not any(weight.requires_grad for weight in policy.parameters())
    assert policy.about["frames"] == 96
    assert wanted.unique(dim=0).shape[0] > 1, "these observations tell policies apart"


@pytest.mark.parametrize("kind", checkpoints.CLONES)
def test_a_loaded_clone_decides_as_the_one_that_was_saved(tmp_path: Path, kind: str) -> None:
    content, policy, space = checkpoints.cloned(kind)
    torch.save(content, tmp_path / "last.ckpt")
    seen = TensorDict(checkpoints.observations(Cloned(space, policy), 7), [7])
    wanted = policy.eval()(seen.clone())["action"].detach()
    before = torch.get_rng_state()
    loaded = load_policy(tmp_path / "last.ckpt", "cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(loaded(seen)["action"], wanted)
    assert loaded.space == space
    assert wanted.unique(dim=0).shape[0] > 1, "these observations tell policies apart"
    with pytest.raises(ValueError, match=r"env.*hierarchical packer"):
        load_policy(tmp_path / "last.ckpt", "cpu", env=solids_env(1))


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("alone", {"widths": [4, 3]}, r"widths .*2 observations, 6 .*\[4, 3\]"),
        ("alone", {"widths": None}, "widths .*2 observations.*None"),
        ("alone", {"observations": ["state", "state"]}, r"bc_policy: observations .*\['state', 'state'\]"),
        ("alone", {"code": "1"}, r"bc_policy .*action_dim, .*'obs_dim': 6"),
        ("alone", {"hidden": [16]}, r"weights: net.0.weight .*float32 \(16, 6\), .*\(8, 6\)"),
        ("plain", {"loss": "mse"}, r"weights: net.3.weight .*float32 \(3, 8\), .*\(6, 8\)"),
        ("plain", {"hidden": [10**9] * 3}, "bytes"),
        ("washes", {"observations": ["state"]}, r"agent_space .*'state': 6.* and 2 "),
    ],
)
def test_clone_with_a_wrong_description_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], said: str
) -> None:
    content, _, _ = checkpoints.cloned(kind)
    content["bc_policy"] |= changes
    torch.save(content, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=said):
        load_policy(tmp_path / "last.ckpt", "cpu")


def test_robots_are_read_and_written_where_the_environment_keeps_them(tmp_path: Path) -> None:
    path, agent = checkpoints.saved(tmp_path, "DDPG navigates")
    seen = checkpoints.observations(agent, 6)
    robots = TensorDict(seen, [6]).reshape(2, 3)
    policy = load_policy(path, "cpu")
    flat = policy(TensorDict({name: value.clone() for name, value in seen.items()}, [6]))["action"]
    grouped = policy(TensorDict({"robots": robots}, [2]))["robots", "action"]
    assert torch.equal(grouped.reshape(6, 2), flat)
    assert (grouped[~robots["active"][..., 0]] == 0).all(), "a robot that takes no part does nothing"


def test_one_vector_may_come_as_a_tensor(tmp_path: Path) -> None:
    path, agent = checkpoints.saved(tmp_path, "SAC washes")
    policy, seen = load_policy(path, "cpu"), checkpoints.observations(agent, 4)
    action = policy(seen["observation"])
    assert torch.equal(action, policy(TensorDict(seen, [4]))["action"])
    assert torch.equal(policy(seen["observation"][0]), action[0])
    with pytest.raises(ValueError, match=r"observation .*dtype float32"):
        policy(seen["observation"].double())
    with pytest.raises(ValueError, match=r"observation .*shape"):
        policy(seen["observation"][:, :5])


def test_several_entries_do_not_come_as_a_tensor(tmp_path: Path) -> None:
    path, _ = checkpoints.saved(tmp_path, "DQN packs")
    policy = load_policy(path, "cpu")
    with pytest.raises(ValueError, match=r"box_heightmap, .*TensorDict"):
        policy(torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"box_heightmap .*got none"):
        policy(TensorDict({}, [2]))


def plain(path: Path, **changes: Any) -> torch.nn.Sequential:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    content = {"model_state_dict": net.state_dict(), "obs_dim": 5, "action_dim": 3, "activation": "tanh"}
    torch.save(content | changes, path)
    return net


def test_a_plain_file_is_linear_layers(tmp_path: Path) -> None:
    net, seen = plain(tmp_path / "net.pt"), torch.randn(4, 5)
    policy = load_policy(tmp_path / "net.pt", "cpu")
    assert torch.equal(policy(seen), net(seen))
    net.insert(1, torch.nn.ReLU())
    plain(tmp_path / "relu.pt", activation="relu")
    wanted = net[3](net[0](seen).relu())
    assert torch.equal(load_policy(tmp_path / "relu.pt", "cpu")(seen), wanted)


@pytest.mark.parametrize(
    "settings",
    [{}, {"hidden": (8,)}, {"hidden": ()}, {"loss": "nll"}, {"layer_norm": True, "loss": "nll", "hidden": (5, 7, 9)}],
)
def test_the_weights_of_a_clone_say_what_it_is(tmp_path: Path, settings: dict[str, Any]) -> None:
    made = BCPolicy(48, 12, **settings)
    made.set_statistics(3 * torch.randn(50, 48) + 1, torch.rand(50, 12))
    content = {"model_state_dict": made.state_dict(), "obs_dim": 48, "action_dim": 12}
    torch.save(content, tmp_path / "net.pt")
    seen = torch.randn(4, 48)
    assert torch.equal(load_policy(tmp_path / "net.pt", "cpu")(seen), made(seen))
    torch.save(content | {"obs_dim": 40}, tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"observation_mean .*float32 \(40,\), .*float32 \(48,\)"):
        load_policy(tmp_path / "net.pt", "cpu")


@pytest.mark.parametrize(
    ("kind", "name", "form"),
    [
        ("DQN packs", "action_mask", [[50], "float32"]),
        ("DQN packs", "z_map", [[1, 2, 5, 6], "float32"]),
        ("SAC navigates", "active", [[0], "bool"]),
        ("SAC navigates", "observation", [[10**5, 10**5], "float32"]),
        ("SAC watches", "clip", [[4, 3, 16, 16], "float32"]),
    ],
)
def test_a_space_that_contradicts_itself_is_refused_when_it_is_loaded(
    tmp_path: Path, kind: str, name: str, form: Any
) -> None:
    agent, init_args = checkpoints.EVERY[kind]()
    content = checkpoints.content_of(agent, init_args)
    content["agent_space"]["observations"][name] = form
    torch.save(content, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=f"^policy {re.escape(str(tmp_path))}"):
        load_policy(tmp_path / "last.ckpt", "cpu")


@final
class OwnScores(VectorScores):
    """A network of one's own, with an argument that is a network."""

    def __init__(self, space: AgentSpace, inner: Any = None, width: int = 8) -> None:
        super().__init__(space, hidden=(width,))
        self.inner = None if inner is None else inner(space)


@final
class OwnAgent(Agent):
    discrete = True

    def __init__(self, space: AgentSpace, *, net: Any, hope: float = 0.5) -> None:
        super().__init__(space, gamma=0.9, n_steps=1, exploration=None, targets=None)
        self.net, self.hope = net(space), hope
        self.policy = TensorDictSequential(Entry("action_value", self.net), greedy_module(space))

    def _losses(self, batch: Any) -> Any:
        raise NotImplementedError

    def _target_pairs(self) -> list[Any]:
        return []

    @property
    def parameter_groups(self) -> dict[str, list[torch.Tensor]]:
        return {"value": list(self.net.parameters())}


def own(folder: Path) -> tuple[Path, OwnAgent]:
    space = AgentSpace("Shop", (), {"observation": ((6,), "float32")}, num_actions=5)
    inner = {"class_path": f"{__name__}.OwnScores", "init_args": {"width": 3}}
    named = {"class_path": f"{__name__}.OwnScores", "init_args": {"inner": inner, "width": 9}}
    made = OwnAgent(space, net=partial(OwnScores, inner=partial(OwnScores, width=3), width=9))
    settings = {"agent": {"class_path": f"{__name__}.OwnAgent", "init_args": {"net": named, "hope": 0.25}}}
    torch.save(checkpoints.content_of(made, settings), folder / "own.ckpt")
    return folder / "own.ckpt", made


def test_classes_of_ones_own_are_let_in_by_name(tmp_path: Path) -> None:
    path, agent = own(tmp_path)
    with pytest.raises(ValueError, match=r"agent .*ACIQN, .*--classes.*OwnAgent"):
        load_policy(path, "cpu")
    with pytest.raises(ValueError, match=r"net .*agents.*OwnScores"):
        load_policy(path, "cpu", classes=[OwnAgent])
    loaded = load_policy(path, "cpu", classes=[OwnAgent, OwnScores])
    seen = torch.randn(7, 6)
    wanted = PolicyWrapper(agent).eval()(TensorDict({"observation": seen}, [7]))["action"]
    assert torch.equal(loaded(seen), wanted)


def test_registered_classes_are_let_in_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY, "registered", [*REGISTRY.registered])
    assert register(OwnAgent) is OwnAgent
    register(OwnScores)
    assert load_policy(own(tmp_path)[0], "cpu").name == "OwnAgent"


@pytest.mark.parametrize("path", ["os.system", "antigravity.DQN", f"{__name__}.OwnScores", "DQN", "torchrl_gpu.DQN", 3])
def test_a_name_that_is_not_registered_is_never_imported(path: Any) -> None:
    with pytest.raises(ValueError, match=r"agent .*ACIQN, "):
        REGISTRY.build("agent", {"class_path": path}, Agent)
    assert "antigravity" not in sys.modules


def test_the_command_line_imports_classes_of_ones_own() -> None:
    assert import_classes("x", f"{__name__}.OwnAgent,{__name__}.OwnScores") == [OwnAgent, OwnScores]
    assert import_classes("x", None) == []
    for wrong in ("OwnAgent", "no.such.Thing", f"{__name__}.own", f"{__name__}.Nothing", "."):
        with pytest.raises(ValueError, match=r"x: --classes .*module\.Class.*"):
            import_classes("x", wrong)


def test_every_command_that_loads_a_policy_takes_classes(tmp_path: Path) -> None:
    path, _ = own(tmp_path)
    words = [str(path), "--classes", f"{__name__}.OwnAgent,{__name__}.OwnScores"]
    assert cli.main(["export", *words, "--format", "pt2", "--output", str(tmp_path / "own.pt2")], "torchrl-gpu") is None
    assert (tmp_path / "own.pt2").exists()
    for parser in (serve_policy.make_parser(), ros.make_parser(), protocols.make_protocol_parser()):
        assert "--classes" in parser.format_help()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"obs_dim": 6}, "obs_dim 6 .*action_dim 3 .*\\[5, 8, 3\\]"),
        ({"obs_dim": "5"}, "obs_dim must be a whole number"),
        ({"activation": "sine"}, "activation must be one of relu, tanh"),
        ({"model_state_dict": [1]}, "model_state_dict .* list"),
        ({"model_state_dict": {"norm": torch.ones(3)}}, "model_state_dict .*linear layers"),
        ({"model_state_dict": {"w": torch.ones(3, 5), "b": torch.ones(4)}}, "model_state_dict .*linear layers"),
    ],
)
def test_plain_file_with_a_wrong_description_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    plain(tmp_path / "net.pt", **changes)
    with pytest.raises(ValueError, match=said):
        load_policy(tmp_path / "net.pt", "cpu")


def test_the_packer_is_loaded_into_an_environment(tmp_path: Path) -> None:
    env, networks = solids_env(2), narrow()
    checkpoints.stir(networks.parameters(), 0.02)
    recorded = {
        "networks": {
            "class_path": "torchrl_gpu.policies.packing.PackerNetworks",
            "init_args": {"channels": list(NARROW)},
        }
    }
    content = {
        "state_dict": {f"networks.{name}": value for name, value in networks.state_dict().items()},
        ENTRY: {"config": {"model": {"init_args": recorded | {"shortlist": 3, "item_shortlist": 2}}}},
    }
    torch.save(content, tmp_path / "packer.ckpt")
    with pytest.raises(ValueError, match=r"hierarchical packer .*env=PackingEnv\(…\).*--config"):
        load_policy(tmp_path / "packer.ckpt", "cpu")
    policy = load_policy(tmp_path / "packer.ckpt", "cpu", env=env)
    shown = env.reset()
    wanted = HierarchicalPacker(env, networks, shortlist=3, item_shortlist=2)(shown.clone())["action"]
    assert torch.equal(policy(shown)["action"], wanted)


def test_weights_that_an_encoder_began_with_are_not_read_again(tmp_path: Path) -> None:
    agent, init_args = checkpoints.washer(video=True)
    init_args["encoder"] = init_args["encoder"] | {"pretrained": "/no/such/file.pt"}
    torch.save(checkpoints.content_of(agent, init_args), tmp_path / "last.ckpt")
    assert isinstance(load_policy(tmp_path / "last.ckpt", "cpu"), InferencePolicy)


def test_two_hundred_hostile_files_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert not forks.run(hostile_files.main, tmp_path, log=log), log.read_text()[-2000:]
    outcomes = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    first, *ends = outcomes
    assert len(ends) == sum(number for _, number in hostile_files.MAKERS)
    assert [each for each in ends if each["end"] != "refused"] == []
    form = re.compile(r"policy \S+: \S+ .*")
    assert [each for each in ends if not form.fullmatch(each["said"])] == []
    assert [each for each in ends if each["mib"] > first["mib"] + 300] == []
    assert not (tmp_path / "ran").exists(), "code in a file has run"


def test_in_keys_of_a_policy_hold_all_it_reads(tmp_path: Path) -> None:
    """A graph knew nothing of `active`.

    Actions of robots that take no part were 0 here, and up to 0.066 there.
    """
    path, agent = checkpoints.saved(tmp_path, "SAC navigates")
    policy, seen = load_policy(path, "cpu"), checkpoints.observations(agent, 8)
    assert 0 < seen["active"].sum() < 8
    whole = policy(TensorDict(dict(seen), [8]))["action"]
    assert torch.equal(policy(TensorDict({name: seen[name] for name in policy.in_keys}, [8]))["action"], whole)
    written = export_policy(policy, tmp_path / "policy.pt2", "pt2")
    got = torch.export.load(str(written)).module()(*(seen[name] for name in policy.in_keys))
    torch.testing.assert_close(got, whole)
    assert not whole[~seen["active"][:, 0]].any()
    present = policy(TensorDict({name: each for name, each in seen.items() if name != "active"}, [8]))["action"]
    assert torch.equal(
        present, policy(TensorDict(seen | {"active": torch.ones(8, 1, dtype=torch.bool)}, [8]))["action"]
    )
    assert present[~seen["active"][:, 0]].any(), "who says nothing of it takes part"
