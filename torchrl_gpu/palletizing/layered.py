"""Full layers of one article, stacked as a person stacks them.

The commonest pallet of all holds one article, in the same layer again and again. So each order gives its full layers
first, by exact lengths: heavy articles below light ones, the same article together, columns of equal boxes in which
each box stands on one box. What is left goes on top of its own article where that fits, and otherwise to the search,
which begins on the pallet with the most room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.palletizing.layer_patterns import LayerPattern, best_pattern, equal_patterns
from torchrl_gpu.palletizing.packer import Packer
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import Placements
from torchrl_gpu.palletizing.prepared_boxes import PreparedBoxes

# Share of a box's base that must lie on boxes of another article below it, on all sides of its middle.
_LEAST_SUPPORT = 0.8
# Sums of heights and weights may be this much over their limit, as a share of it.
_ROUNDING = 1e-6
# A cell that a box covers but for rounding errors counts as covered, metres.
_EDGE = 1e-6


@dataclass(frozen=True)
class StartingPile:
    """A pallet with room, on which a search goes on.

    Attributes:
        number: Of the pallet in its order.
        heightmap: Metres, (X, Y) float32.
        bears: Mask of the cells that bear load, (X, Y) bool.
        weight: Kilograms.
        volume: Cubic metres of boxes.
        layers: Boxes of each layer from the pallet up: lower and upper corners, metres from the pallet's corner,
            (P, 4), and the height of their tops.
        corner: Lower corners of all its boxes, metres from the pallet's corner, (B, 3).
        sides: Of these boxes along x, y and z, metres, (B, 3).
        weights: Of these boxes, kilograms, 0 where it is not known, (B,).
    """

    number: int
    heightmap: Tensor
    bears: Tensor
    weight: float
    volume: float
    layers: list[tuple[np.ndarray, float]]
    corner: np.ndarray
    sides: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class LayeredOrder:
    """Full layers of an order.

    Attributes:
        placements: Of the boxes in layers; the order has the number 0 in them.
        left: Numbers of the other boxes, (…) int64.
        pallets: That the layers take.
        start: Pallet with the most room, None where no other box may go on any.
    """

    placements: Placements
    left: np.ndarray
    pallets: int
    start: StartingPile | None


@dataclass(frozen=True)
class _Article:
    """Equal boxes of an order, in the layer that packs most of them.

    Attributes:
        boxes: Numbers in the list, the heaviest first, (B,) int64.
        along: Listed sides along x, y and z of a box that is not turned, (3,) int64.
        sides: Metres along x, y and z of a box that is not turned, (3,).
        pattern: The fullest layer.
        weight: Kilograms of the heaviest.
        max_load: Kilograms that may be put on a box.
        bottom_only: Whether they stand on the pallet itself.
    """

    boxes: np.ndarray
    along: np.ndarray
    sides: np.ndarray
    pattern: LayerPattern
    weight: float
    max_load: float
    bottom_only: bool

    @property
    def height(self) -> float:
        return float(self.sides[2])

    @property
    def most_layers_above(self) -> float:
        """Layers of the article that may stand on one of it."""
        if math.isinf(self.max_load):
            return math.inf
        # A box of unknown weight goes on no box that bears only so much.
        return math.floor(self.max_load / self.weight + _ROUNDING) if self.weight > 0 else 0


@dataclass
class _Laid:
    """Boxes of one layer on a pallet.

    Attributes:
        article: Of all of them.
        boxes: Numbers in the list, (P,) int64.
        x, y: Lower corners, metres from the pallet's corner, (P,).
        turned: Mask of boxes that lie the other way, (P,) bool.
        base: Metres above the pallet.
        is_full: Whether all places of the pattern are taken.
    """

    article: _Article
    boxes: np.ndarray
    x: np.ndarray
    y: np.ndarray
    turned: np.ndarray
    base: float
    is_full: bool

    def corners(self) -> np.ndarray:
        """Lower corners of the boxes, metres from the pallet's corner, (P, 3)."""
        return np.stack([self.x, self.y, np.full(len(self.boxes), self.base)], 1)

    def sides(self) -> np.ndarray:
        """Sides of the boxes along x, y and z, metres, (P, 3)."""
        straight = self.article.sides
        return np.where(self.turned[:, None], straight[[1, 0, 2]], straight)


@dataclass
class _Stack:
    """A pallet of layers.

    Attributes:
        layers: From the pallet up.
        height: Metres.
        weight: Kilograms.
    """

    layers: list[_Laid] = field(default_factory=list)
    height: float = 0.0
    weight: float = 0.0

    @property
    def bears_anything(self) -> bool:
        return all(math.isinf(laid.article.max_load) for laid in self.layers)

    def layers_on_top(self, article: _Article) -> int:
        """Layers of an article, one on another, at the top."""
        number = 0
        for laid in reversed(self.layers):
            if laid.article is not article:
                break
            number += 1
        return number


def layer_order(
    packer: Packer, prepared: PreparedBoxes, boxes: np.ndarray, *, interlocked: bool = False
) -> LayeredOrder:
    """Stack the full layers of an order.

    Args:
        packer: Of the pallet, the turns and the rule.
        prepared: All boxes.
        boxes: Numbers of the boxes of the order, (…) int64.
        interlocked: Whether every second layer of an article is turned or mirrored, so that its boxes stand on several,
            where its pattern allows that and its boxes bear any load. Columns bear most, interlocked layers hold
            together.
    """
    articles = _articles(packer, prepared, boxes)
    weights = prepared.boxes.weights.numpy()
    stacks: list[_Stack] = []
    left: list[np.ndarray] = []
    partial: list[tuple[_Article, np.ndarray]] = []
    for article in articles:
        number = article.pattern.number
        full = len(article.boxes) // number if number else 0
        if not full:
            left.append(article.boxes)
            continue
        patterns: list[LayerPattern] = []
        if interlocked and math.isinf(article.max_load):
            patterns = _patterns(packer, article)
        for layer in range(full):
            taken = article.boxes[layer * number : (layer + 1) * number]
            # No pallet bears such a layer.
            if float(weights[taken].sum()) > packer.pallet.weight * (1 + _ROUNDING):
                left.append(taken)
                continue
            _put(stacks, packer.pallet, article, taken, weights, patterns)
        rest = article.boxes[full * number :]
        if len(rest):
            partial.append((article, rest))
    for article, rest in partial:
        if not _put_on_its_own(stacks, packer.pallet, article, rest, weights):
            left.append(rest)
    others = np.concatenate(left) if left else np.zeros(0, dtype=np.int64)
    start = _start(stacks, packer, prepared) if len(others) else None
    return LayeredOrder(_placements(stacks), np.sort(others), len(stacks), start)


def _articles(packer: Packer, prepared: PreparedBoxes, boxes: np.ndarray) -> list[_Article]:
    """Equal boxes of an order, in the sequence in which they are stacked.

    What stays at the bottom comes first, then what bears anything, then what weighs most on its base: heavy below
    light.
    """
    row = prepared.row.cpu().numpy()[boxes]
    weights = prepared.boxes.weights.numpy()
    articles = []
    for kind in np.unique(row).tolist():
        mine = boxes[row == kind]
        rank = np.argsort(-weights[mine], kind="stable")
        article = _article(packer, prepared, kind, mine[rank])
        articles.append(article)
    return sorted(articles, key=_stacking_rank)


def _stacking_rank(article: _Article) -> tuple[bool, bool, float, float]:
    base = float(article.sides[0] * article.sides[1])
    return not article.bottom_only, math.isfinite(article.max_load), -article.weight / base, -base


def _article(packer: Packer, prepared: PreparedBoxes, kind: int, boxes: np.ndarray) -> _Article:
    """Choose the side up, and the layer, that put most boxes on a pallet.

    The layer of an article that fits nowhere is empty.
    """
    pallet = packer.pallet
    listed = prepared.boxes.sizes[boxes[0]].numpy()
    weights = prepared.boxes.weights.numpy()
    max_load = float(prepared.boxes.max_load[boxes[0]])
    bottom_only = bool(prepared.boxes.bottom_only[boxes[0]])
    room_x, room_y = _room(pallet, listed)
    best: _Article | None = None
    best_score = (0.0, 0.0)
    for along in _sides_along(packer, prepared, kind):
        sides = listed[along]
        pattern = best_pattern(
            room_x + pallet.gap,
            room_y + pallet.gap,
            float(sides[0]) + pallet.gap,
            float(sides[1]) + pallet.gap,
            may_turn=packer.turns != "fixed",
        )
        layers = math.floor(pallet.height / float(sides[2]) + _ROUNDING)
        # Of sides with as many boxes on a pallet the flattest one is the steadiest.
        score = (float(pattern.number * layers), -float(sides[2]))
        if pattern.number and (best is None or score > best_score):
            best = _Article(boxes, along, sides, pattern, float(weights[boxes].max()), max_load, bottom_only)
            best_score = score
    if best is None:
        none = np.zeros(0)
        empty = LayerPattern(none, none, none.astype(bool), 0.0, 0.0)
        best = _Article(boxes, np.arange(3), listed, empty, float(weights[boxes].max()), max_load, bottom_only)
    return best


def _room(pallet: Pallet, sides: np.ndarray) -> tuple[float, float]:
    """Length and width that boxes may take, metres.

    The overhang is among it where the middles of boxes stay over the pallet.
    """
    is_safe = pallet.overhang <= float(sides.min()) / 4
    more = 2 * pallet.overhang if is_safe else 0.0
    return pallet.length + more, pallet.width + more


def _sides_along(packer: Packer, prepared: PreparedBoxes, kind: int) -> list[np.ndarray]:
    """Listed sides along x, y and z for each side that may be up."""
    along_of_turn = packer.rotations.argmax(2).numpy()
    allowed = np.flatnonzero(prepared.turns[kind].cpu().numpy())
    found: dict[int, np.ndarray] = {}
    for turn in allowed.tolist():
        along = along_of_turn[turn]
        found.setdefault(int(along[2]), along)
    return list(found.values())


# -- stacking --------------------------------------------------------------------------------------------------------


def _put(
    stacks: list[_Stack],
    pallet: Pallet,
    article: _Article,
    boxes: np.ndarray,
    weights: np.ndarray,
    patterns: Sequence[LayerPattern],
) -> None:
    """Put a full layer on the first pallet that takes it, or on a new one.

    On its own article every second layer lies in one of other patterns, where there is a good one.
    """
    x, y = _places(pallet, article.pattern)
    laid = _Laid(article, boxes, x, y, article.pattern.turned, 0.0, is_full=True)
    weight = float(weights[boxes].sum())
    for stack in stacks:
        if _takes(stack, pallet, laid, weight):
            break
    else:
        stack = _Stack()
        stacks.append(stack)
    if stack.layers_on_top(article) % 2:
        laid = _interlock(laid, stack.layers[-1], pallet, patterns)
    _add(stack, laid, weight)


def _patterns(packer: Packer, article: _Article) -> list[LayerPattern]:
    """Patterns in which every second layer of an article may lie."""
    if packer.turns == "fixed":
        return [article.pattern]
    pallet = packer.pallet
    room_x, room_y = _room(pallet, article.sides)
    along = float(article.sides[0]) + pallet.gap
    across = float(article.sides[1]) + pallet.gap
    return [article.pattern, *equal_patterns(room_x + pallet.gap, room_y + pallet.gap, along, across)]


def _interlock(laid: _Laid, below: _Laid, pallet: Pallet, patterns: Sequence[LayerPattern]) -> _Laid:
    """Lay a layer so that the fewest of its boxes stand on one box alone.

    Each pattern is also turned by 180° and mirrored. The layer stays as it is where that changes nothing, or where some
    box would not be held.
    """
    best = laid
    most_moved = 0
    for pattern in patterns:
        x, y = _places(pallet, pattern)
        plain = replace(laid, x=x, y=y, turned=pattern.turned)
        sides = plain.sides()
        other_x = pallet.length - x - sides[:, 0]
        other_y = pallet.width - y - sides[:, 1]
        for changed in (
            plain,
            replace(plain, x=other_x),
            replace(plain, y=other_y),
            replace(plain, x=other_x, y=other_y),
        ):
            moved = _moved(changed, below)
            if moved > most_moved and _is_supported(below, changed):
                best = changed
                most_moved = moved
    return best


def _moved(laid: _Laid, below: _Laid) -> int:
    """Boxes of a layer that do not stand on just one box."""
    upper = _rectangles(laid)
    lower = _rectangles(below)
    is_same = np.isclose(upper[:, None], lower[None], atol=_EDGE).all(2)
    return int((~is_same.any(1)).sum())


def _put_on_its_own(
    stacks: list[_Stack], pallet: Pallet, article: _Article, boxes: np.ndarray, weights: np.ndarray
) -> bool:
    """Put the last boxes of an article on its own top layer, in the middle.

    False where no layer has room.
    """
    weight = float(weights[boxes].sum())
    for stack in stacks:
        below = stack.layers[-1]
        if below.article is not article:
            continue
        # Each on one box of the layer below.
        middle = np.stack([below.x, below.y], 1) + below.sides()[:, :2] / 2
        from_centre = middle - np.array([pallet.length, pallet.width]) / 2
        nearest = np.argsort((from_centre**2).sum(1), kind="stable")[: len(boxes)]
        laid = _Laid(article, boxes, below.x[nearest], below.y[nearest], below.turned[nearest], base=0.0, is_full=False)
        if _takes(stack, pallet, laid, weight):
            _add(stack, laid, weight)
            return True
    return False


def _add(stack: _Stack, laid: _Laid, weight: float) -> None:
    laid.base = stack.height
    stack.layers.append(laid)
    stack.height += laid.article.height
    stack.weight += weight


def _places(pallet: Pallet, pattern: LayerPattern) -> tuple[np.ndarray, np.ndarray]:
    """Lower corners of the boxes of a pattern, in the middle of the pallet.

    Metres from the corner of the pallet, (P,) each.
    """
    # The last box of a row has no neighbour, and so no gap behind it.
    first_x = (pallet.length - (pattern.length - pallet.gap)) / 2
    first_y = (pallet.width - (pattern.width - pallet.gap)) / 2
    return pattern.x + first_x, pattern.y + first_y


def _takes(stack: _Stack, pallet: Pallet, laid: _Laid, weight: float) -> bool:
    """Whether a layer may go on top of a pallet."""
    article = laid.article
    if article.bottom_only:
        return False
    if stack.height + article.height > pallet.height * (1 + _ROUNDING):
        return False
    if stack.weight + weight > pallet.weight * (1 + _ROUNDING):
        return False
    below = stack.layers[-1]
    if not below.is_full:
        return False
    if below.article is article:
        # The lowest of these layers carries the others, and the new one.
        return stack.layers_on_top(article) <= article.most_layers_above
    # A box that bears only so much bears its own article alone.
    return math.isinf(below.article.max_load) and _is_supported(below, laid)


def _is_supported(below: _Laid, above: _Laid) -> bool:
    """Whether every box stands on boxes by most of its base, around its middle."""
    upper = _rectangles(above)
    lower = _rectangles(below)
    quarters = _quarters(upper)
    shared = [_shared_area(quarter, lower) for quarter in quarters]
    base = (upper[:, 2] - upper[:, 0]) * (upper[:, 3] - upper[:, 1])
    least_quarter = np.min(shared, axis=0)
    return bool((np.sum(shared, axis=0) >= _LEAST_SUPPORT * base).all() and (least_quarter > 0).all())


def _rectangles(laid: _Laid) -> np.ndarray:
    """Lower and upper corners of boxes, (P, 4): x, y, x, y."""
    sides = laid.sides()
    return np.stack([laid.x, laid.y, laid.x + sides[:, 0], laid.y + sides[:, 1]], 1)


def _quarters(rectangles: np.ndarray) -> list[np.ndarray]:
    """The four quarters of rectangles, (P, 4) each."""
    x0, y0, x1, y1 = rectangles.T
    x = (x0 + x1) / 2
    y = (y0 + y1) / 2
    corners = [(x0, y0, x, y), (x, y0, x1, y), (x0, y, x, y1), (x, y, x1, y1)]
    return [np.stack(corner, 1) for corner in corners]


def _shared_area(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Area of each rectangle (P, 4) that lies on others (Q, 4), (P,).

    The others are apart.
    """
    low = np.maximum(upper[:, None, :2], lower[None, :, :2])
    high = np.minimum(upper[:, None, 2:], lower[None, :, 2:])
    sides = np.maximum(high - low, 0.0)
    return np.asarray(sides.prod(2).sum(1))


# -- what comes of them ----------------------------------------------------------------------------------------------


def _placements(stacks: Sequence[_Stack]) -> Placements:
    """Placements of the boxes of all layers, from the first pallet up."""
    parts = []
    step = 0
    for number, stack in enumerate(stacks):
        for laid in stack.layers:
            parts.append(_placements_of_layer(laid, number, step))
            step += len(laid.boxes)
    return Placements.join(parts)


def _placements_of_layer(laid: _Laid, pallet: int, first_step: int) -> Placements:
    count = len(laid.boxes)
    straight = laid.article.along
    along = np.where(laid.turned[:, None], straight[[1, 0, 2]], straight)
    order = np.zeros(count, dtype=np.int64)
    step = first_step + np.arange(count)
    return Placements(order, step, laid.boxes, order + pallet, along, corner=laid.corners(), sides=laid.sides())


def _start(stacks: Sequence[_Stack], packer: Packer, prepared: PreparedBoxes) -> StartingPile | None:
    """The pallet with the most room above it, among those whose boxes bear any load."""
    open_ = [i for i, stack in enumerate(stacks) if stack.bears_anything]
    if not open_:
        return None
    lowest = min(open_, key=lambda i: stacks[i].height)
    stack = stacks[lowest]
    # On the host: a box is drawn by a few numbers.
    heightmap = packer.floor.cpu().clone()
    bears = torch.zeros_like(heightmap, dtype=torch.bool)
    origin_x, origin_y = packer.pallet.origin
    for laid in stack.layers:
        # As heightmaps hold it.
        top = float(np.float32(laid.base + laid.article.height + packer.pallet.deck))
        for x0, y0, x1, y1 in _rectangles(laid).tolist():
            _draw(heightmap, bears, (x0 - origin_x, y0 - origin_y, x1 - origin_x, y1 - origin_y), top, packer.pallet)
    volume = sum(float(prepared.boxes.sizes[laid.boxes].prod(1).sum()) for laid in stack.layers)
    layers = [(_rectangles(laid), laid.base + laid.article.height) for laid in stack.layers]
    boxes = np.concatenate([laid.boxes for laid in stack.layers])
    weights = prepared.boxes.weights[boxes].numpy()
    corner = np.concatenate([laid.corners() for laid in stack.layers])
    sides = np.concatenate([laid.sides() for laid in stack.layers])
    return StartingPile(lowest, heightmap, bears, stack.weight, volume, layers, corner, sides, weights)


def _draw(
    heightmap: Tensor, bears: Tensor, rectangle: tuple[float, float, float, float], top: float, pallet: Pallet
) -> None:
    """Draw a box into a heightmap.

    All cells that it reaches into are as high as its top, and those that are wholly its own bear load. A box keeps half
    of the gap on each side free.
    """
    cell = pallet.cell
    share = pallet.gap / 2
    x0, y0, x1, y1 = rectangle
    reached_x = _cells(math.floor((x0 - share + _EDGE) / cell), math.ceil((x1 + share - _EDGE) / cell))
    reached_y = _cells(math.floor((y0 - share + _EDGE) / cell), math.ceil((y1 + share - _EDGE) / cell))
    inside_x = _cells(math.ceil((x0 - _EDGE) / cell), math.floor((x1 + _EDGE) / cell))
    inside_y = _cells(math.ceil((y0 - _EDGE) / cell), math.floor((y1 + _EDGE) / cell))
    region = heightmap[reached_x, reached_y]
    region.copy_(region.clamp_min(top))
    # Cells that this box now tops lose their old mark, and its own inner cells get one. `top` is a float32 as the
    # heights are, so that theirs are equal to it.
    bears[reached_x, reached_y] = bears[reached_x, reached_y] & (heightmap[reached_x, reached_y] > top)
    bears[inside_x, inside_y] |= heightmap[inside_x, inside_y] == top


def _cells(first: int, end: int) -> slice:
    return slice(max(first, 0), max(end, 0))
