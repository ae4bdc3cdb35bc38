"""Every command takes what a shipped config trains.

Or it refuses in one line that says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.envs.packing.items.test_factories import installed
from tests.training.forked_runs import NAMES, arguments, write_inputs
from tests.training.resuming import last
from tests.training.test_options import made, updates_of
from torchrl_gpu import cli
from torchrl_gpu.cli import loading, serve_policy
from torchrl_gpu.cli.parser import resolve_configs
from torchrl_gpu.palletizing.packer import Packer, Pallet
from torchrl_gpu.policies import PackingPolicy, load_policy
from torchrl_gpu.policies.export import manifest
from torchrl_gpu.policies.loading import wants_env
from torchrl_gpu.training.data.episodes import suite_of

assert installed
PACKS = [name for name in NAMES if "packing" in name or name == "bc.yaml"]
BY_VALUES = ["packing.yaml", "packing_refined.yaml", "packing_pallets.yaml"]
# One of each kind that is loaded alike; the others are tried in `make soak`.
FEW = ("packing.yaml", "packing_pallets.yaml", "packing_irregular.yaml", "packing_dqn.yaml", "navigation_dqn.yaml")


def each_of(names: list[str]) -> list[Any]:
    return [name if name in FEW else pytest.param(name, marks=pytest.mark.soak) for name in names]


Trained = Callable[[str], tuple[list[str], Path]]


@pytest.fixture(scope="module", autouse=True)
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Of a config the words of its command line, and a checkpoint."""

    @cache
    def of(name: str) -> tuple[list[str], Path]:
        folder = tmp_path_factory.mktemp("trained")
        run = made(name, folder, updates_of(name))
        run.trainer.fit(run.model, run.datamodule)
        return words_of(name, folder), last(folder)

    return of


def words_of(name: str, folder: Path) -> list[str]:
    given = [
        each for each in resolve_configs(arguments(name, folder)[1:]) if not each.startswith("--trainer.callbacks")
    ]
    return [*given, "--trainer.logger=false"]


@pytest.mark.parametrize("name", each_of(NAMES))
def test_evaluate_play_and_record(name: str, trained: Trained) -> None:
    words, checkpoint = trained(name)
    alone = [*words, "--model.env.num_envs=1", "--model.env.device=cpu"]
    run, _ = loading.load_run("evaluate", alone, str(checkpoint))
    model: Any = run.model
    suite = suite_of(model, "test", 1)
    assert model.policy_for(suite.env) is not None
    played = loading.load_policy(words, str(checkpoint), None, 3)
    assert (played.name, played.env.num_envs) == (model.learner_name, 3)


@pytest.mark.parametrize("name", each_of(NAMES))
def test_serve_policy_and_export(name: str, trained: Trained) -> None:
    words, checkpoint = trained(name)
    env = serve_policy.env_of(words, "cpu") if name in PACKS else None
    if wants_env(checkpoint):
        assert name == "packing_irregular.yaml"
        with pytest.raises(ValueError, match=r"hierarchical packer .*env="):
            load_policy(checkpoint, "cpu")
        policy = load_policy(checkpoint, "cpu", env=env)
    else:
        policy = load_policy(checkpoint, "cpu")
    assert policy.name
    if env is not None:
        assert env.num_envs == 1
        assert manifest.describe_environment(env)["env"]
        seen = env.reset()
        assert policy(seen)["action"].shape == (1,)


def test_serve_policy_refuses_an_environment_of_another_kind(trained: Trained) -> None:
    words, _ = trained("navigation_dqn.yaml")
    with pytest.raises(ValueError, match=r"--config .*packs"):
        serve_policy.env_of(words, "cpu")


@pytest.mark.parametrize("name", each_of(PACKS))
def test_pack_takes_policies_of_configs(name: str, trained: Trained) -> None:
    """Weights of placements fit any pallet.

    Tables are those of a bin of few cells, and networks those of their own bin.
    """
    _, checkpoint = trained(name)
    pallet = Pallet(1.2, 0.8, 1.5, cell=0.1)
    if name == "packing_pallets.yaml":
        assert isinstance(Packer(pallet, policy=str(checkpoint), device="cpu").learned, PackingPolicy)
        return
    if name == "packing.yaml":
        assert isinstance(Packer(pallet, policy=str(checkpoint), device="cpu").learned, PackingPolicy)
        return
    with pytest.raises(ValueError, match=str(checkpoint)) as raised:
        Packer(pallet, policy=str(checkpoint), device="cpu")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", each_of(BY_VALUES))
def test_warm_start_takes_policies_of_configs(name: str, trained: Trained, tmp_path: Path) -> None:
    _, checkpoint = trained(name)
    option = "begin" if name == "packing_pallets.yaml" else "warm_start"
    run = made(name, tmp_path, updates_of(name), f"--model.{option}={checkpoint}")
    run.trainer.fit(run.model, run.datamodule)
    first = PackingPolicy.from_pretrained(checkpoint, "cpu")
    model: Any = run.model
    if option == "begin":
        scale = first.tables.weight.double().abs().max()
        torch.testing.assert_close(model.unit, (first.tables.weight.double() / scale).abs().clamp_min(0.02))
    else:
        assert int((model.tables.weight != first.tables.weight).sum()) < model.tables.weight.numel() / 2


@pytest.mark.parametrize("name", each_of(BY_VALUES))
def test_tables_and_weights_are_those_of_the_run(name: str, trained: Trained) -> None:
    _, checkpoint = trained(name)
    ours, theirs = PackingPolicy.from_pretrained(checkpoint, "cpu"), load_policy(checkpoint, "cpu")
    for weight, other in zip(
        ours.tables.state_dict().values(), theirs.policy.tables.state_dict().values(), strict=True
    ):
        assert torch.equal(weight, other)


def test_evaluate_pallets_takes_policies_of_configs(installed: Path, trained: Trained, tmp_path: Path) -> None:
    _, checkpoint = trained("packing_pallets.yaml")
    out = tmp_path / "table.json"
    words = ["--protocol=boards", "--device=cpu", "--policy", str(checkpoint), "--cases=2", "--timed=0"]
    assert cli.main(["evaluate", "pallets", *words, f"--output={out}"], "torchrl-gpu") is None
    (row,) = json.loads(out.read_text(encoding="utf-8"))["policies"]
    assert 0 < row["utilization"] < 1


@pytest.mark.parametrize("name", each_of(NAMES))
def test_files_that_learned_no_values_are_refused_where_those_are_wanted(name: str, trained: Trained) -> None:
    if name in BY_VALUES:
        return
    with pytest.raises(ValueError, match=r"values of bins"):
        PackingPolicy.from_pretrained(trained(name)[1], "cpu")
