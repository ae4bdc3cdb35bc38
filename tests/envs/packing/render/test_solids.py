"""Pictures of solids.

The nearest solid is seen, overhangs too, and earlier pictures change nothing.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.envs.packing.render.rays import nearest_box, uniform
from torchrl_gpu.envs.packing.render.boxes import paint_boxes
from torchrl_gpu.envs.packing.render.camera import Camera
from torchrl_gpu.envs.packing.render.palette import INK, LAMPS, shades
from torchrl_gpu.envs.packing.render.solids import Placed, SolidsPainting, visible_columns

SIZE, CELL = (1.0, 1.0, 0.8), (0.02, 0.02)
Item = tuple[Placed, np.ndarray, np.ndarray]


def solid(number: int, corner: tuple[float, float, float], top: np.ndarray, bottom: np.ndarray) -> Item:
    return (number, 0, *corner), top.astype(np.float32), bottom.astype(np.float32)


def goblet(cells: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """A thin stem on a plate that carries a wide bowl: most of it hangs over."""
    along = np.arange(cells) + 0.5 - cells / 2
    radius = np.hypot(along[:, None], along) / (cells / 2)
    top = np.where(radius < 0.5, 0.22, 0.3)
    bottom = np.where(radius < 0.2, 0.0, 0.2)
    return np.where(radius < 1, top, 0.0), np.where(radius < 1, bottom, np.inf)


def scene() -> list[Item]:
    """Build a scene of five solids.

    It has a box that carries a smaller one, a bridge over a gap beside them, a goblet, and a flat box.
    """
    bridge_top, bridge_bottom = np.full((15, 10), 0.4), np.zeros((15, 10))
    bridge_bottom[4:11] = 0.3
    box = np.zeros((15, 20)), np.zeros((8, 10)), np.zeros((30, 10))
    large = solid(0, (0.1, 0.1, 0.0), box[0] + 0.3, box[0])
    small = solid(1, (0.14, 0.2, 0.3), box[1] + 0.2, box[1])
    bridge = solid(2, (0.6, 0.1, 0.0), bridge_top, bridge_bottom)
    flat = solid(4, (0.2, 0.76, 0.0), box[2] + 0.1, box[2])
    return [large, small, bridge, solid(3, (0.5, 0.4, 0.0), *goblet()), flat]


def cells_of(items: list[Item]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return every column of material as a box.

    It gives lower and upper corners (M, 3), and the number of the item.
    """
    lower = []
    upper = []
    number = []
    for i, (place, top, bottom) in enumerate(items):
        for p, q in np.argwhere(np.isfinite(bottom)):
            x, y = place[2] + p * CELL[0], place[3] + q * CELL[1]
            lower.append((x, y, place[4] + bottom[p, q]))
            upper.append((x + CELL[0], y + CELL[1], place[4] + top[p, q]))
            number.append(i)
    return np.array(lower), np.array(upper), np.array(number)


def painted(items: list[Item], camera: Camera) -> SolidsPainting:
    painting = SolidsPainting(CELL, camera)
    show(painting, items)
    return painting


def show(painting: SolidsPainting, items: list[Item]) -> np.ndarray:
    for item in items[painting.keep([place for place, _, _ in items]) :]:
        painting.add(*item)
    return painting.picture()


def visible_by_definition(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    found = np.full(high.shape, -1)
    for row, col in np.ndindex(high.shape):
        over = [b for b in range(row, len(high)) if low[b, col] <= b - row <= high[b, col]]
        found[row, col] = max(over, default=-1)
    return found


HEIGHTS = arrays.arrays(np.int16, (9, 3), elements=st.integers(-1, 12))


@given(HEIGHTS, HEIGHTS)
@settings(deadline=None)
def test_the_nearest_column_is_seen(high: np.ndarray, low: np.ndarray) -> None:
    assert (visible_columns(high, low) == visible_by_definition(high, low)).all()


def test_as_rays_meet_them() -> None:
    camera, items = Camera(SIZE, 40, 30), scene()
    painting = painted(items, camera)
    lower, upper, number = cells_of(items)
    column, _ = nearest_box(lower, upper, camera)
    wanted = np.where(column < 0, -1, number[column])
    assert set(np.unique(wanted)) == {-1, 0, 1, 2, 3, 4}
    assert (painting.label != wanted)[uniform(wanted, 2)].mean() < 0.002
    filled = [(place, top, np.where(np.isfinite(bottom), 0, np.inf)) for place, top, bottom in items]
    # Overhangs are filled down.
    assert (painted(filled, camera).label != wanted)[uniform(wanted, 2)].mean() > 0.005


def test_faces_have_the_light_of_a_box() -> None:
    camera, flat = Camera(SIZE, 200, 150), np.zeros((25, 25))
    canvas = painted([solid(0, (0.2, 0.2, 0.0), flat + 0.5, flat)], camera).canvas
    # Of the faces across x, y and z.
    middles = np.array([(0.7, 0.45, 0.25), (0.45, 0.2, 0.25), (0.45, 0.45, 0.5)])
    for lamp, (column, row) in zip(LAMPS, camera.samples(middles).astype(int), strict=True):
        assert np.abs(canvas[row, column].astype(int) - shades()[0, lamp]).max() <= 16
    # The far edge of the lid.
    column, row = camera.samples(np.array([0.45, 0.7, 0.5])).astype(int)
    assert (canvas[row - 3 : row + 4, column] == shades()[0, INK]).all(-1).any()


def test_a_dome_grows_darker_towards_its_foot() -> None:
    camera = Camera(SIZE, 200, 150)
    along = (np.arange(40) + 0.5) / 20 - 1
    height = 0.4 * np.sqrt(np.maximum(1 - along[:, None] ** 2 - along**2, 0))
    dome = solid(0, (0.1, 0.1, 0.0), height, np.where(height > 0, 0.0, np.inf))
    canvas = painted([dome], camera).canvas.astype(int).sum(-1)
    column, row = camera.samples(np.array([0.5, 0.5, 0.4])).astype(int)
    brightness = canvas[row : row + 90 : 15, column]
    assert (np.diff(brightness) < 0).all()


def test_the_same_picture_whatever_was_drawn_before() -> None:
    camera, items = Camera(SIZE, 80, 60), scene()
    filling = SolidsPainting(CELL, camera)
    moved = solid(1, (0.1, 0.1, 0.3), items[1][1], items[1][2])
    for shown in (items[:2], items, [items[0], moved, *items[2:]], items[:1], [], items[:3]):
        assert (show(filling, shown) == painted(shown, camera).picture()).all()


def test_only_new_items_are_drawn() -> None:
    painting, items = SolidsPainting(CELL, Camera(SIZE, 80, 60)), scene()
    places = [place for place, _, _ in items]
    for count, kept in ((2, 0), (4, 2), (4, 4), (5, 4)):
        assert painting.keep(places[:count]) == kept
        show(painting, items[:count])
    assert painting.keep(places[1:]) == 0


def test_an_empty_bin_is_that_of_the_boxes() -> None:
    camera, nothing = Camera(SIZE, 64, 48), np.zeros((0, 3))
    picture = painted([], camera).picture()
    assert (picture == paint_boxes(nothing, nothing, camera)).all()
    # Floor, walls, grid, wire and their mixtures.
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10
