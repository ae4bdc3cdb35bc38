"""Probabilities of the next item.

The network compared with a plain loop, its fit, its files.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, RandomBoxes
from torchrl_gpu.envs.packing.items.cutting import CutSequences
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.policies.packing.planners import next_items
from torchrl_gpu.policies.packing.planners.next_items import (
    NextItems,
    learn_next_items,
    next_item_loss,
    pretrained_next_items,
    sequences_cut,
)


def environment(order: str = "layers", **changes: Any) -> PackingEnv:
    settings = {"items": CutBoxes(1, 3, order, pool=None), "bin_size": (5.0, 5.0, 5.0), "resolution": 5}
    return PackingEnv(4, device="cpu", seed=3, include=("z_map", "packed_items"), **settings | changes)


def network(env: PackingEnv, ages: int = 4, width: int = 16) -> NextItems:
    torch.manual_seed(0)
    return NextItems.of(env, ages, width)


def test_scores_are_those_of_a_plain_loop() -> None:
    env = environment("stack")
    made = network(env)
    rows = sequences_cut(env, 1, 0, 6)
    before = torch.arange(rows.shape[1]) < torch.tensor([0, 1, 2, 5, 6, 7])[:, None]
    packed = torch.where(before, rows, -1)
    item = torch.tensor([0, 3, -1, 7, 26, 9])
    scores = made(packed, item)
    assert scores.shape == (6, 27)
    for row in range(6):
        came = [each for each in packed[row].tolist() if each >= 0]
        latest = ([item[row].item(), *came[::-1]] + [-1] * 4)[:4]
        hidden = sum(made.recent.weight[age * 28 + each + 1] for age, each in enumerate(latest))
        sums = torch.zeros(4)
        for each in [*came, item[row].item()]:
            if each >= 0:
                p, q, h = env.item_sizes[each, 0, :3].tolist()
                sums += torch.tensor([1 / 16, p * q * h / 125, p * q / 50, h / 40]).half().float()
        wanted = made.layers(hidden + made.sums.weight @ sums)
        torch.testing.assert_close(scores[row], wanted, rtol=1e-4, atol=1e-4)


class Seen(nn.Module):
    """Stands in for an embedding, and keeps what it was asked for."""

    def forward(self, numbers: Tensor) -> Tensor:
        self.numbers = numbers
        return torch.zeros(len(numbers), 16)


def test_bases_and_the_open_level_are_those_of_the_boxes_as_they_were_cut() -> None:
    env = environment()
    cut, made = env.item_sequences, network(env)
    assert isinstance(cut, CutSequences)
    boxes = Seen()
    level = Seen()
    area = Seen()
    made.boxes = boxes
    made.level = level
    made.open_area = area
    key = cut.begin(7, torch.arange(20), torch.zeros(20, dtype=torch.int64))
    pieces, rows = cut.cut(key), cut.rows(key)
    for bottom, size, row in zip(pieces.corner[..., 2], pieces.size, rows, strict=True):
        for number in range(1, int((row >= 0).sum())):
            made(torch.where(torch.arange(len(row)) < number - 1, row, -1)[None], row[number - 1 : number])
            follows = bottom[number]
            assert level.numbers.item() == follows
            to_come = (torch.arange(len(row)) >= number) & (bottom == follows)
            assert area.numbers.item() == (size[:, :2].prod(1) * to_come).sum()
            above = bottom[:number] + size[:number, 2] - follows
            kind = 1 + (row[:number] * 6 + above) * 2 + (bottom[:number] == follows)
            assert torch.equal(boxes.numbers[0, :number], torch.where(above >= 0, kind, 0))
            assert not boxes.numbers[0, number:].any()


def test_boxes_that_fit_no_layers_are_scored_too() -> None:
    made = network(environment())
    packed = torch.randint(-1, 27, (64, 40), generator=torch.Generator().manual_seed(0))
    assert bool(made(packed, packed[:, 0]).isfinite().all())


def test_the_loss_is_of_the_item_behind_the_one_that_is_drawn() -> None:
    env = environment()
    made = network(env)
    rows = sequences_cut(env, 1, 0, 3)
    number = (rows >= 0).sum(1)
    # The first item, and the last but one.
    places = torch.stack([torch.zeros(3), (number - 2).float()])
    for at, draws in zip(places.long(), (torch.zeros(3), torch.full((3,), 0.999)), strict=True):
        wanted = []
        for row, last in enumerate(at.tolist()):
            before = torch.where(torch.arange(rows.shape[1]) < last, rows[row], -1)
            scores = made(before[None], rows[row, last : last + 1]).log_softmax(1)
            wanted.append(-scores[0, rows[row, last + 1]])
        torch.testing.assert_close(next_item_loss(made, rows, draws), torch.stack(wanted).mean())


@pytest.mark.parametrize("order", ["layers", "stack"])
def test_next_items_learns_more_than_frequencies(order: str) -> None:
    env = environment(order)
    made = network(env, ages=6, width=64)
    losses = learn_next_items(made, env, 300, batch=512, lr=3e-3)
    # It has learned from none of these sequences.
    rows = sequences_cut(env, 99, 0, 4096)
    draws = torch.rand(4096, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        found = next_item_loss(made, rows, draws).item()
    following = rows[:, 1:][rows[:, 1:] >= 0]
    shares = torch.bincount(following, minlength=27).double() / len(following)
    entropy = -(shares * shares.clamp_min(1e-12).log()).sum().item()
    assert found < entropy - 0.1
    assert len(losses) == 3
    assert abs(losses[-1] - found) < 0.1


def test_the_same_seed_gives_the_same_network() -> None:
    env = environment()
    first, second = network(env), network(env)
    assert learn_next_items(first, env, 3, batch=64) == learn_next_items(second, env, 3, batch=64)
    for each, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(each, other)
    third = network(env)
    learn_next_items(third, env, 3, batch=64, seed=1)
    assert not torch.equal(third.recent.weight, first.recent.weight)


def test_packed_items_are_those_of_sequences() -> None:
    env = environment()
    shown, rows = env.reset(), sequences_cut(env, env.seed, 0, env.num_envs)
    for step in range(1, 4):
        shown = env.step(env.rand_action(shown))["next"]
        packed = shown["packed_items"]
        assert env.observation_spec.is_in(shown.select(*env.observation_spec.keys()))
        going = (shown["num_packed"][:, 0] == step).tolist()
        for row in range(env.num_envs):
            if going[row]:
                assert packed[row, :step].tolist() == rows[row, :step].tolist()
            assert bool((packed[row, shown["num_packed"][row].item() :] == -1).all())
    assert any(going)


def saved(tmp_path: Path) -> tuple[Path, NextItems]:
    made = network(environment())
    made.save(tmp_path / "next.safetensors", {"protocol": "cut1"})
    return tmp_path / "next.safetensors", made


def test_a_saved_network_scores_as_it_did(tmp_path: Path) -> None:
    path, made = saved(tmp_path)
    again = NextItems.from_file(path)
    packed, item = torch.tensor([[3, 4, -1], [-1, -1, -1]]), torch.tensor([5, 6])
    torch.testing.assert_close(again(packed, item), made(packed, item), rtol=1e-2, atol=1e-2)
    assert torch.equal(again.item_sums, made.item_sums)


SIZES: dict[str, Any] = {"num_items": 27, "ages": 4, "width": 16, "layer_cells": [25, 5]}


def rewrite(path: Path, weights: dict[str, Tensor | None], **changes: str) -> None:
    """Changes weights, none for those that are left out, and text."""
    held = {name: each for name, each in (load_file(path) | weights).items() if each is not None}
    save_file(held, str(path), {"format": next_items.FORMAT, "settings": json.dumps(SIZES)} | changes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "safetensors"),
        (lambda path: rewrite(path, {}, format="another"), "NextItems.save"),
        (lambda path: rewrite(path, {}, settings="[]"), "NextItems.save"),
        (lambda path: rewrite(path, {}, settings="{"), "invalid JSON in settings"),
        (lambda path: rewrite(path, {}, settings='{"num_items": 27, "ages": 4}'), "width"),
        (lambda path: rewrite(path, {}, settings='{"num_items": 1e9, "ages": 4, "width": 16}'), "num_items"),
        (lambda path: rewrite(path, {}, settings='{"num_items": 1000000, "ages": 256, "width": 4096}'), "bytes"),
        (lambda path: rewrite(path, {}, settings=json.dumps(SIZES | {"layer_cells": [2**20, 2**20]})), "bytes"),
        (lambda path: rewrite(path, {}, settings=json.dumps(SIZES | {"layer_cells": 5})), "layer_cells"),
        (lambda path: rewrite(path, {}, settings=json.dumps(SIZES | {"num_items": 26})), "shape"),
        (lambda path: rewrite(path, {"more": torch.zeros(1)}), "weights must be"),
        (lambda path: rewrite(path, {"item_sums": None}), "weights must be"),
        (lambda path: rewrite(path, {"item_sums": torch.zeros(28, 4)}), "float16"),
        (lambda path: rewrite(path, {"item_sums": torch.full((28, 4), math.nan).half()}), "finite"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, spoil: Any, message: str) -> None:
    path, _ = saved(tmp_path)
    spoil(path)
    with pytest.raises(ValueError, match=message):
        NextItems.from_file(path)


@pytest.mark.parametrize("items", [RandomBoxes(1, 3), CutBoxes(1, 3, pool=8)])
def test_next_items_refuses_items_it_cannot_predict(items: Any) -> None:
    with pytest.raises(ValueError, match=r"NextItems: items .*CutBoxes"):
        NextItems.of(environment(items=items))
    with pytest.raises(ValueError, match="ages"):
        NextItems(27, ages=0)
    with pytest.raises(ValueError, match="steps"):
        learn_next_items(network(environment()), environment(), 0)


@pytest.mark.parametrize("name", ["cut1", "cut2"])
def test_shipped_next_items_predict_the_suite(name: str) -> None:
    # The items of this protocol are independent.
    assert pretrained_next_items(make_protocol("rs", 4, device="cpu", seed=0)) is None
    env = make_protocol(name, 4, device="cpu", seed=0, include=("z_map", "packed_items"))
    made = pretrained_next_items(env)
    assert made is not None
    rows = sequences_cut(env, 123, 0, 2048)
    with torch.no_grad():
        found = next_item_loss(made, rows, torch.rand(2048, generator=torch.Generator().manual_seed(0))).item()
    # Counting pairs gives 3.3 and 3.9.
    assert found < {"cut1": 2.2, "cut2": 3.65}[name]


def test_next_items_learn_from_no_sequence_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment()
    cut: Any = env.item_sequences
    monkeypatch.setattr(next_items, "SUITE_SEED", 77)
    monkeypatch.setattr(next_items, "SUITE_EPISODES", 3)
    monkeypatch.setattr(type(cut), "begin", lambda self, seed, which, _: which + 5 * (seed == 77))
    # This is the suite itself.
    assert torch.equal(sequences_cut(env, 77, 0, 3), cut.rows(torch.tensor([5, 6, 7])))
    assert torch.equal(sequences_cut(env, 1, 4, 5), cut.rows(torch.tensor([4, 8, 8, 8, 8])))
