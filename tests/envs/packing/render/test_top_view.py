"""Overlays on the view from above.

They are read pixel by pixel where that can be worked out by hand.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from torchrl_gpu.envs.packing.render.legend import Legend, heat, shares_of
from torchrl_gpu.envs.packing.render.top_view import (
    CONTOURED_CELLS,
    FEW,
    HIGH,
    ITEM,
    LOW,
    MANY,
    Pile,
    Placing,
    draw_action,
    draw_mask,
    draw_values,
)

SIZE = 640, 480
PLACING = Placing(item=3, orientation=1, corner=(2, 0), extent=(2, 1), z=1.0, height=3.0)


def pile(cells: tuple[int, int] = (5, 4), step: int = 1) -> Pile:
    """Empty but for a full column at cell (4, 3)."""
    heightmap = np.zeros(cells, np.float32)
    heightmap[-1, -1] = 5.0
    return Pile(heightmap, (5.0, 4.0, 5.0), step, 0.25)


def at(picture: np.ndarray, x: float, y: float) -> np.ndarray:
    """Return the colour at a place in cells of a bin of 5 by 4.

    Its left upper corner is found by its frame.
    """
    dark = np.flatnonzero((picture[240] < 100).all(1))
    left, right = dark[0], dark[dark < 0.66 * SIZE[0]][-1]
    scale = (right - left) / 5
    bottom = (SIZE[1] + 4 * scale) / 2
    return picture[round(bottom - y * scale), round(left + x * scale)].astype(int)


def near(found: np.ndarray, wanted: np.ndarray, tolerance: float = 3) -> bool:
    return bool(np.abs(found - np.asarray(wanted, float)).max() <= tolerance)


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        (("m", (1.0,) * 3), ["2 x 1 x 3 m", "rests at 1 m", "height of the pile, m", "5"]),
        (("cells", (0.5, 0.5, 0.5)), ["4 x 2 x 6 cells", "rests at 2 cells", "height of the pile, cells", "10"]),
    ],
)
def test_lengths_are_in_the_unit_of_the_boxes(
    unit: tuple[str, tuple[float, float, float]], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(Legend, "text", lambda self, text, **_: told.append(text))
    monkeypatch.setattr(Legend, "bar", lambda self, colors, low, high: told.append(high))
    bin_ = pile()
    draw_action(Pile(bin_.heightmap, bin_.bin_size, 1, 0.25, *unit), PLACING, *SIZE)
    assert set(said) <= set(told)


def test_x_runs_to_the_right_and_y_upwards() -> None:
    picture = draw_action(pile(), None, *SIZE)
    assert (picture.shape, picture.dtype) == ((480, 640, 3), np.uint8)
    assert near(at(picture, 4.5, 3.5), HIGH)
    for x, y in ((0.5, 0.5), (4.5, 0.5), (0.5, 3.5)):
        assert near(at(picture, x, y), LOW)


def test_legal_places_are_green_by_the_number_of_ways() -> None:
    ways = np.zeros((5, 4), int)
    ways[1, 2], ways[3, 0] = 1, 4
    picture = draw_mask(pile(), ways, 4, *SIZE)
    assert near(at(picture, 1.5, 2.5), 0.8 * FEW + 0.2 * LOW)
    assert near(at(picture, 3.5, 0.5), 0.8 * MANY + 0.2 * LOW)
    assert near(at(picture, 2.5, 2.5), LOW)
    assert near(at(picture, 4.5, 3.5), HIGH)


def test_where_there_is_but_one_way_it_is_dark_green() -> None:
    ways = np.zeros((5, 4), int)
    ways[1, 2] = 1
    assert near(at(draw_mask(pile(), ways, 1, *SIZE), 1.5, 2.5), 0.8 * MANY + 0.2 * LOW)


def test_a_place_of_a_coarse_grid_covers_its_cells() -> None:
    # Places are every two cells of 5 and 4.
    ways = np.zeros((3, 2), int)
    ways[1, 1] = 1
    picture = draw_mask(pile(step=2), ways, 1, *SIZE)
    cells = list(itertools.product(range(5), range(4)))
    green = [(x, y) for x, y in cells if not near(at(picture, x + 0.5, y + 0.5), LOW, 60)]
    assert green == [(2, 2), (2, 3), (3, 2), (3, 3), (4, 3)]


def test_the_next_item_covers_its_footprint() -> None:
    picture = draw_action(pile(), PLACING, *SIZE)
    orange = np.array([int(ITEM[i : i + 2], 16) for i in (1, 3, 5)])
    blended = 0.75 * orange + 0.25 * LOW
    cells = itertools.product(range(5), range(4))
    covered = [(x, y) for x, y in cells if near(at(picture, x + 0.75, y + 0.75), blended)]
    assert covered == [(2, 0), (3, 0)]


def test_values_run_from_the_least_to_the_greatest() -> None:
    values = np.full((5, 4), -np.inf)
    values[0, 3] = -2.0
    values[1, 1] = 0.0
    values[4, 1] = 2.0
    picture = draw_values(pile(), values, PLACING, *SIZE)
    for place, share in (((0, 3), 0.0), ((1, 1), 0.5), ((4, 1), 1.0)):
        assert near(at(picture, place[0] + 0.5, place[1] + 0.5), heat(np.array(share)))
    assert near(at(picture, 0.5, 1.5), LOW)


@pytest.mark.parametrize("size", [(16, 16), (33, 24), (100, 400), (400, 100), (1280, 720)])
def test_any_size_and_nothing_that_fits(size: tuple[int, int]) -> None:
    nothing = np.full((5, 4), -np.inf)
    pictures = [draw_mask(pile(), np.zeros((5, 4), int), 1, *size), draw_action(pile(), PLACING, *size)]
    pictures.append(draw_values(pile(), nothing, None, *size))
    pictures.append(draw_values(pile(), np.zeros((5, 4)), PLACING, *size))
    assert {picture.shape for picture in pictures} == {(size[1], size[0], 3)}


def test_steps_between_cells_are_lines_unless_there_are_too_many() -> None:
    def num_colors(cells: int) -> int:
        rough = np.random.default_rng(0).integers(0, 2, (cells, cells)).astype(np.float32)
        picture = draw_action(Pile(rough, (5.0, 5.0, 1.0), 1, 0.5), None, *SIZE)[100:300, 100:300]
        return len(np.unique(picture.reshape(-1, 3), axis=0))

    assert num_colors(CONTOURED_CELLS) == 3
    assert num_colors(CONTOURED_CELLS + 1) == 2


def test_heat_rises_in_lightness() -> None:
    colors = heat(np.linspace(0, 1, 20)).astype(float)
    assert (np.diff(((colors / 255) ** 2.2) @ (0.2126, 0.7152, 0.0722)) > 0).all()
    assert np.array_equal(heat(np.array([-1.0, np.nan, 2.0])), heat(np.array([0.0, 0.0, 1.0])))


def test_shares() -> None:
    shares, low, high = shares_of(np.array([1.0, 3.0, np.nan, -np.inf]))
    assert (shares[:2].tolist(), low, high) == ([0.0, 1.0], 1.0, 3.0)
    assert shares_of(np.full(3, 7.0))[0].tolist() == [0.0, 0.0, 0.0]
    assert shares_of(np.full(3, np.nan))[1:] == (0.0, 0.0)


def test_a_line_that_is_too_long_is_set_smaller() -> None:
    from PIL import Image

    image = Image.new("RGB", (120, 60), "#ffffff")
    Legend(image, 10, 5, 70, 20).text("a line that would run over the edge")
    assert (np.asarray(image)[:, 110:] == 255).all()
