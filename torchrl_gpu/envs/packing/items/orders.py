"""Orders drawn at random, a few articles each.

Several copies of an article arrive one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.counter_rng import draw_bits, draw_integers
from torchrl_gpu.envs.packing.items.boxes import MOST_SIZES, box_catalogue, check_rounding, fits, whole_cells, written
from torchrl_gpu.envs.packing.items.source import NUM_BITS, Built, DrawnSequences, ItemSource
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.system import arguments

_LOG = logging.getLogger(__name__)
# Longest side, millimetres.
MOST_MILLIMETRES = 10_000
# Most articles of an order.
_MOST_ARTICLES = 2**16


@dataclass(frozen=True)
class OrderSequences(DrawnSequences):
    """Boxes of orders, each of some of `num_articles` articles.

    An order has A of them, A drawn uniformly from 1 to `most_articles`, and a chance r, drawn uniformly from 0 to
    `repeat`. A box is of the same article as the one before it with the chance r, otherwise of one of the A, drawn
    uniformly. All is drawn by counter.

    Attributes:
        num_articles: Rows of the catalogue.
        most_articles: Most articles of one order.
        repeat: Largest chance of a repetition, from 0 to 1.
        length: Boxes of an order.
    """

    num_articles: int
    most_articles: int
    repeat: float
    length: int

    def items(self, key: Tensor, position: Tensor) -> Tensor:
        place = torch.arange(self.length, device=key.device, dtype=torch.int64)  # (T,)
        number = 1 + draw_integers(_salted(key, 0), torch.zeros_like(key), self.most_articles)  # (N,)
        repeat = draw_bits(_salted(key, 1), torch.zeros_like(key)).double() * (self.repeat / NUM_BITS)
        again = draw_bits(_salted(key, 2)[:, None], place) < (repeat * NUM_BITS).long()[:, None]  # (N, T)
        # Place at which the run of equal boxes began.
        first = torch.where(again & (place > 0), 0, place).cummax(1).values
        # Which of the A articles, (N, T).
        slot = (draw_bits(_salted(key, 3)[:, None], first) * number[:, None]) >> 32
        article = draw_integers(_salted(key, 4)[:, None], slot, self.num_articles)
        found = article.gather(1, position.clamp(0, self.length - 1))
        return torch.where(position < self.length, found, -1)


def _salted(key: Tensor, use: int) -> Tensor:
    """Derive keys from those of orders, one for each `use`.

    Draws of different uses are independent.
    """
    return draw_bits(key, torch.full_like(key, -1 - use))


class OrderBoxes(ItemSource):
    """Boxes of orders like those of a grocery warehouse: see `OrderSequences`.

    An article's length, width and height are drawn uniformly from whole millimetres. Boxes take whole cells; volumes
    are those of the true sizes, as in `BoxSequences`.

    Args:
        length, width, height: Smallest and largest, millimetres.
        num_articles: Of the warehouse.
        most_articles: Of one order.
        repeat: Largest chance of an order that a box is of the article of the one before, from 0 to 1.
        seed: Decides the articles; the environment's seed decides the orders.

    Raises:
        ValueError: A range is none, or a number is out of range; and, from `build`, an article fits the bin in no
            orientation, or cells are far larger than the articles.
    """

    unit = "mm"

    def __init__(
        self,
        length: Sequence[int] = (150, 600),
        width: Sequence[int] = (100, 400),
        height: Sequence[int] = (60, 350),
        num_articles: int = 1000,
        most_articles: int = 12,
        repeat: float = 0.9,
        seed: int = 0,
    ) -> None:
        where = "OrderBoxes"
        self.length = _range("length", length)
        self.width = _range("width", width)
        self.height = _range("height", height)
        self.num_articles = arguments.whole(where, "num_articles", num_articles, 1, MOST_SIZES)
        self.most_articles = arguments.whole(where, "most_articles", most_articles, 1, _MOST_ARTICLES)
        self.repeat = arguments.number(where, "repeat", repeat, 0, 1)
        self.seed = arguments.seed(where, "seed", seed, low=0)

    def reseeded(self, seed: int) -> OrderBoxes:
        """Orders of another warehouse's articles."""
        ranges = self.length, self.width, self.height
        return OrderBoxes(*ranges, self.num_articles, self.most_articles, self.repeat, seed)

    def articles(self) -> np.ndarray:
        """Sides (M, 3) int64 of the articles, millimetres."""
        rng = np.random.default_rng(self.seed)
        ranges = np.array([self.length, self.width, self.height])
        return rng.integers(ranges[:, 0], ranges[:, 1] + 1, (self.num_articles, 3))

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        articles = self.articles()
        cells = whole_cells(articles, self.unit, bin_)
        inside = fits(cells, bin_, orientations)
        if not inside.all():
            raise ValueError(
                f"OrderBoxes: an article of {written(articles[~inside][0] * 1e-3, self.unit, bin_)} fits the bin of"
                f" {written(bin_.size, self.unit, bin_)} in no orientation"
            )
        if warning := check_rounding("OrderBoxes", articles, np.ones(len(articles)), self.unit, bin_):
            _LOG.warning(warning)
        catalogue = box_catalogue(cells, (articles * 1e-3).prod(1), bin_, orientations)
        return catalogue, OrderSequences(self.num_articles, self.most_articles, self.repeat, num_items)


def _range(name: str, given: object) -> tuple[int, int]:
    wanted = "a smallest and a largest, whole millimetres"
    ends = arguments.listed("OrderBoxes", name, wanted, given)
    ends = tuple(arguments.whole("OrderBoxes", name, each, 1, MOST_MILLIMETRES) for each in ends)
    if len(ends) != 2 or ends[0] > ends[1]:
        arguments.refuse("OrderBoxes", name, wanted, given)
    return ends
