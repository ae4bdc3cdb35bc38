"""Orders drawn at random: their law, what decides them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchrl_gpu.envs.packing.items import OrderBoxes
from torchrl_gpu.envs.packing.items.orders import OrderSequences
from torchrl_gpu.envs.packing.types import Bin

PALLET = Bin((1.2, 0.8, 1.5), (120, 80), 5, "support")


def drawn(sequences: OrderSequences, number: int, seed: int = 0) -> torch.Tensor:
    row = torch.arange(number)
    key = sequences.begin(seed, row, torch.zeros_like(row))
    return sequences.items(key, torch.arange(sequences.length).expand(number, -1))


def test_articles_are_whole_millimetres_in_their_ranges() -> None:
    sides = OrderBoxes((150, 600), (100, 400), (60, 350), num_articles=5000).articles()
    assert sides.shape == (5000, 3)
    # 5,000 draws: the ends are seen within a few millimetres, the means within 3 · 130 / √5000 < 6 of the middles
    for axis, (low, high) in enumerate([(150, 600), (100, 400), (60, 350)]):
        assert low <= sides[:, axis].min() < low + 5
        assert high - 5 < sides[:, axis].max() <= high
        assert abs(sides[:, axis].mean() - (low + high) / 2) < 6


def test_boxes_take_whole_cells_and_keep_their_volume() -> None:
    source = OrderBoxes((301, 301), (200, 200), (95, 95), num_articles=1)
    catalogue, _ = source.build(PALLET, "yaw", 10, 1)
    assert catalogue.extent.tolist() == [[[31, 20], [20, 31]]]
    assert catalogue.height.flatten().tolist() == pytest.approx([0.1, 0.1])
    assert catalogue.volume.tolist() == pytest.approx([0.301 * 0.2 * 0.095])


def test_an_order_has_few_articles_and_copies_follow_one_another() -> None:
    orders = drawn(OrderSequences(1000, 12, 0.9, 400), 2000)
    articles = torch.tensor([len(each.unique()) for each in orders])
    assert articles.min() == 1
    assert articles.max() == 12
    # A is uniform from 1 to 12: a mean of 6.5 ± 3 · 3.45 / √2000, less what two draws of one article take away
    assert abs(articles.float().mean() - 6.5) < 0.3
    # With the chance r, uniform up to 0.9, a box is of the article before; else of it with the chance 1 / A.
    again = (orders[:, 1:] == orders[:, :-1]).float().mean(1)
    mean = 0.45 + 0.55 * np.mean([1 / a for a in range(1, 13)])
    assert again.mean() == pytest.approx(mean, abs=0.02)
    # Orders differ.
    assert again.std() > 0.15


def test_without_repeats_boxes_are_independent() -> None:
    orders = drawn(OrderSequences(1000, 1000, 0.0, 200), 500)
    assert (orders[:, 1:] == orders[:, :-1]).float().mean() < 0.02
    counts = orders.flatten().bincount(minlength=1000)
    assert len(counts) == 1000


def test_another_seed_is_another_warehouse() -> None:
    source = OrderBoxes(num_articles=50, most_articles=3, repeat=0.5, seed=1)
    other = source.reseeded(2)
    assert (other.num_articles, other.most_articles, other.repeat, other.seed) == (50, 3, 0.5, 2)
    assert (source.articles() == OrderBoxes(num_articles=50, seed=1).articles()).all()
    assert (source.articles() != other.articles()).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": (200, 100)}, "OrderBoxes: length must be a smallest and a largest, whole millimetres; got"),
        ({"width": (100,)}, "OrderBoxes: width must be a smallest and a largest, whole millimetres; got"),
        ({"height": 100}, "OrderBoxes: height must be a smallest and a largest"),
        ({"height": (0, 100)}, "OrderBoxes: height must be at least 1; got 0"),
        ({"length": (1, 20_000)}, "OrderBoxes: length must be at most 10,000; got 20000"),
        ({"num_articles": 0}, "OrderBoxes: num_articles must be at least 1; got 0"),
        ({"most_articles": 0}, "OrderBoxes: most_articles must be at least 1; got 0"),
        ({"repeat": 1.5}, "OrderBoxes: repeat must be at most 1; got 1.5"),
        ({"seed": -1}, "OrderBoxes: seed must be at least 0; got -1"),
    ],
)
def test_what_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OrderBoxes(**changes)
