"""Trained policies that come with the package, their files, and what is refused."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.items.factories import DATA, FactoryBoxes
from torchrl_gpu.envs.packing.protocols import PROTOCOLS, make_protocol, protocol_of
from torchrl_gpu.evaluation.packing.episodes import evaluate
from torchrl_gpu.policies import AgentSpace, InferencePolicy, PackingPolicy, PatchTables, RefinedTables, export_policy
from torchrl_gpu.policies.packing import pretrained
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues
from torchrl_gpu.policies.packing.pretrained import pretrained_for


@cache
def trained() -> PackingPolicy:
    env = make_protocol("rs", 4, device="cpu", seed=0, include=("z_map",))
    space = AgentSpace.of(env)
    policy = PackingPolicy(space, PatchTables(space, ["2x2", "1x4"]), {"protocol": "rs"})
    for seed in range(5):
        levels = torch.randint(0, 11, (4, 10, 10), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
        policy.tables.learn(levels, torch.randn(4), torch.ones(4, dtype=torch.bool), 0.5)
    return policy


@cache
def refined() -> PackingPolicy:
    plain = trained()
    torch.manual_seed(0)
    tables = RefinedTables(plain.space, plain.tables.plan.shapes, sides=(2, 5), candidates=100, width=16)
    tables.load_state_dict(plain.tables.state_dict(), strict=False)
    torch.nn.init.normal_(tables.network[-1].weight, std=0.1)
    return PackingPolicy(plain.space, tables, plain.about)


@pytest.mark.parametrize("make", [trained, refined])
def test_a_saved_policy_chooses_as_it_did(make: Callable[[], PackingPolicy], tmp_path: Path) -> None:
    policy = make()
    policy.save(tmp_path / "rs.safetensors")
    again = PackingPolicy.from_pretrained(tmp_path / "rs.safetensors", "cpu")
    assert again.about == {"protocol": "rs"}
    assert again.space == policy.space
    levels = torch.randint(0, 11, (16, 10, 10), dtype=torch.uint8)
    torch.testing.assert_close(again.tables.values(levels), policy.tables.values(levels), rtol=1e-3, atol=1e-3)
    env = make_protocol("rs", 8, device="cpu", seed=1, include=("z_map",))
    shown = env.reset()
    for _ in range(4):
        ours, theirs = policy(shown.clone()), again(shown.clone())
        assert bool(shown["action_mask"].gather(1, theirs["action"][:, None]).all())
        # Halves of a float differ in the last digits, so equal placements may change.
        value = ours["action_value"]
        of_theirs = value.gather(1, theirs["action"][:, None])
        torch.testing.assert_close(of_theirs, value.amax(1, keepdim=True), rtol=0, atol=2e-3)
        shown = env.step_and_maybe_reset(ours)[1]


def test_entries_may_come_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "rs.safetensors"
    trained().save(path)
    weight = PackingPolicy.from_pretrained(path, "cpu").tables.weight
    rewrite(path, lambda held, _: held.update({name: held[name].flip(0) for name in ("entry", "value")}))
    assert torch.equal(PackingPolicy.from_pretrained(path, "cpu").tables.weight, weight)


def test_the_same_tables_pack_another_bin(tmp_path: Path) -> None:
    trained().save(tmp_path / "rs.safetensors")
    env = PackingEnv(2, bin_size=(14.0, 12.0, 10.0), resolution=(14, 12), device="cpu", seed=0)
    policy = PackingPolicy.from_pretrained(tmp_path / "rs.safetensors", "cpu", space=AgentSpace.of(env))
    assert bool(env.step(policy(env.reset()))["next", "num_packed"].eq(1).all())


def test_tables_of_a_pallet_are_read_back(tmp_path: Path) -> None:
    env = PackingEnv(2, bin_size=(1.2, 0.8, 1.5), resolution=(24, 16), items=RandomBoxes(3, 9), device="cpu", seed=0)
    space = AgentSpace.of(env)
    PackingPolicy(space, PatchTables(space, ["2x2"], levels=15, pool=4)).save(tmp_path / "pallet.safetensors")
    again = PackingPolicy.from_pretrained(tmp_path / "pallet.safetensors", "cpu")
    assert (again.tables.pool, again.tables.seen, again.tables.plan.levels) == (4, (6, 4), 15)


def changed(**entries: Any) -> Callable[[dict[str, Any], dict[str, str]], None]:
    def change(held: dict[str, Any], plain: dict[str, str]) -> None:
        for name, value in entries.items():
            (held if isinstance(value, torch.Tensor) else plain)[name] = value

    return change


def rewrite(path: Path, change: Callable[..., None]) -> None:
    from safetensors import safe_open

    with safe_open(str(path), "pt") as file:
        plain = file.metadata()
    held = load_file(path)
    change(held, plain)
    save_file(held, str(path), plain)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"PackingPolicy: .*no file"):
        PackingPolicy.from_pretrained("nobody", "cpu")
    path = tmp_path / "cut.safetensors"
    trained().save(path)
    whole = path.read_bytes()
    for broken in (b"", whole[:50], whole[:-100], b"\xff" * 100):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="safetensors"):
            PackingPolicy.from_pretrained(path, "cpu")


@pytest.mark.parametrize("name", PackingPolicy.names())
def test_shipped_policy_is_small_described_and_better_than_rules(name: str) -> None:
    """A shipped policy is small, described, and better than any rule.

    On sequences of this test's own.
    """
    path = pretrained.FOLDER / f"{name}.safetensors"
    assert path.stat().st_size <= 8_000_000
    card = path.with_suffix(".md").read_text(encoding="utf-8")
    assert all(word in card for word in ("Protocol", "Command", "Licence", "Result"))
    policy = PackingPolicy.from_pretrained(name, "cpu")
    about = json.loads(json.dumps(policy.about))
    name = name.removesuffix("-refined")
    assert about["protocol" if name in PROTOCOLS else "setting"] == name
    options: dict[str, Any] = {}
    if name in DATA:
        if importlib.util.find_spec("packsim") is None:
            pytest.skip("wants the extra robobpp")
        rule = {"stability": "load_bearing", "margin": 0.03} if name == "repetitive" else {}
        options = {"items": FactoryBoxes(name, "train"), **rule}
    env = make_protocol(name, 12 if name in DATA else 48, device="cpu", seed=77, include=("z_map",), **options)
    least = {"rs": 0.48, "cut1": 0.66, "cut2": 0.64, "discrete125": 0.74, "free125": 0.84, "orders": 0.58}
    least |= {"repetitive": 0.58, "diverse": 0.62, "boards": 0.53}
    assert evaluate(env, policy).utilization.mean() > least[name]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_rules_of_an_environment_name_its_protocol(name: str) -> None:
    assert protocol_of(make_protocol(name, 2, device="cpu", seed=5)) == name
    changes: list[dict[str, Any]] = [{"order": "volume", "visible_items": 2}, {"bin_size": (10.0, 10.0, 12.0)}]
    changes += [{"items": RandomBoxes(2, 4)}, {"stability": "com"}]
    assert [protocol_of(make_protocol(name, 2, device="cpu", **each)) for each in changes] == [None] * 4


def test_a_shipped_policy_is_found_by_the_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    env = make_protocol("rs", 2, device="cpu", include=("z_map",))
    assert pretrained_for(env) == {}
    trained().save(tmp_path / "rs.safetensors")
    assert list(pretrained_for(env)) == ["pretrained"]
    assert pretrained_for(make_protocol("cut2", 2, device="cpu", include=("z_map",))) == {}
    assert pretrained_for(make_protocol("rs", 2, device="cpu", include=())) == {}
    assert PackingPolicy.names() == ["rs"]


# -- weights of placements in place of tables --


def weighted() -> PackingPolicy:
    space = AgentSpace.of(make_protocol("orders", 1, device="cpu", seed=0))
    weights = torch.randn(len(NAMES), generator=torch.Generator().manual_seed(0))
    return PackingPolicy(space, LinearPlacementValues(space, weights.tolist(), 30), {"setting": "orders"})


def test_saved_weights_choose_as_they_did(tmp_path: Path) -> None:
    policy, path = weighted(), tmp_path / "orders.safetensors"
    policy.save(path)
    again = PackingPolicy.from_pretrained(path, "cpu")
    assert (again.about, again.space, again.tables.candidates) == (policy.about, policy.space, 30)
    env = make_protocol("orders", 3, device="cpu", seed=1)
    shown = env.reset()
    for _ in range(4):
        ours, theirs = policy(shown.clone()), again(shown.clone())
        assert ours["action_value"].equal(theirs["action_value"])
        shown = env.step_and_maybe_reset(ours)[1]
        assert not shown["done"].any()


OF_TABLES: list[tuple[Any, str]] = [
    (changed(format="another"), "PackingPolicy.save"),
    (changed(more=torch.zeros(1)), "PackingPolicy.save"),
    (changed(entry=torch.tensor([-1], dtype=torch.int32)), "value must have"),
    (changed(entry=torch.tensor([2**30], dtype=torch.int32), value=torch.zeros(1).half()), "entry .*the tables"),
    (changed(value=torch.zeros(3)), "value must be"),
    (changed(other=torch.tensor([torch.nan])), "other must be finite"),
    (changed(patches="[[[["), "invalid JSON in patches"),
    (changed(patches='"2x2"'), "patches .*'2x2'"),
    (changed(patches='["9x9"]'), "at most 9 cells"),
    (changed(levels="-1"), "levels"),
    (changed(levels="9" * 5000), "invalid JSON in levels"),
    (changed(space='{"source": 1}'), "AgentSpace"),
]
OF_REFINED: list[tuple[Any, str]] = [
    (changed(sides="[1, 2, 3]"), r"sides .*\[1, 2, 3\]"),
    (changed(sides="[1, 9]"), "network.0.weight must have"),
    (changed(width="-1"), "width must be"),
    (changed(width="4000"), "network.0.weight must have"),
    (changed(candidates="0"), "candidates must be"),
    (changed(**{"network.4.bias": torch.tensor([torch.nan]).half()}), "network.4.bias must be finite"),
    (changed(**{"network.4.bias": torch.zeros(1)}), "network.4.bias must"),
    (changed(**{"network.9": torch.zeros(1)}), "network.9"),
    (changed(format=pretrained.FORMAT), "PackingPolicy.save"),
]
OF_WEIGHTS: list[tuple[Any, str]] = [
    (changed(more=torch.zeros(1)), "PackingPolicy.save"),
    (changed(more="1"), "PackingPolicy.save"),
    (changed(weight=torch.zeros(3)), "weight must have"),
    (changed(weight=torch.full((len(NAMES),), torch.nan)), "base must be a finite number"),
    (changed(names='["base"]'), "names .*base, top"),
    (changed(candidates="0"), "candidates must be at least 1"),
    (changed(candidates="[["), "invalid JSON in candidates"),
    (changed(about="3"), "about .*3"),
    (changed(space='{"source": 1}'), "AgentSpace"),
]


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        *((trained, *each) for each in OF_TABLES),
        *((refined, *each) for each in OF_REFINED),
        *((weighted, *each) for each in OF_WEIGHTS),
    ],
)
def test_files_that_are_refused(
    make: Callable[[], PackingPolicy], change: Callable[..., None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.safetensors"
    make().save(path)
    rewrite(path, change)
    with pytest.raises(ValueError, match=message):
        PackingPolicy.from_pretrained(path, "cpu")


def test_orders_are_known_by_the_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    weighted().save(tmp_path / "orders.safetensors")
    settings: list[dict[str, Any]] = [{}, {"items": RandomBoxes(15, 30)}, {"num_items": 7}]
    for each in settings:
        assert list(pretrained_for(make_protocol("orders", 2, device="cpu", **each))) == ["pretrained"]
    others: list[dict[str, Any]] = [{"visible_items": 2}, {"include": ()}, {"grid_step": 4}, {"stability": "none"}]
    for each in others:
        assert pretrained_for(make_protocol("orders", 2, device="cpu", **each)) == {}


@pytest.mark.parametrize("make", [trained, pytest.param(weighted, marks=pytest.mark.soak)])
def test_pretrained_policy_is_exported(make: Callable[[], PackingPolicy], tmp_path: Path) -> None:
    # For ONNX the policy becomes a program of torch first.
    policy = make()
    written = export_policy(InferencePolicy(policy, policy.space, "values"), tmp_path / "values.onnx")
    if isinstance(policy.tables, PatchTables):
        assert written.stat().st_size > 4 * policy.tables.plan.entries


def test_refined_tables_are_served_and_not_exported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"refined tables, .*packing kernels"):
        export_policy(InferencePolicy(refined(), refined().space, "values"), tmp_path / "values.onnx")
    assert not list(tmp_path.iterdir())
