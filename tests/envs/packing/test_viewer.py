"""The viewer: what is in front is seen, a picture does not depend on how it is asked for, no device is waited for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from torch import Tensor

from tests.no_host_reads import NoHostReads
from torchrl_gpu.envs.packing import viewer
from torchrl_gpu.envs.packing.drawing.boxes import trace_boxes
from torchrl_gpu.envs.packing.drawing.camera import Camera
from torchrl_gpu.envs.packing.drawing.palette import decode_srgb, encode_srgb
from torchrl_gpu.envs.packing.drawing.solids import trace_solids
from torchrl_gpu.envs.packing.drawing.stage import grid_step
from torchrl_gpu.envs.packing.drawing.volume import fill_volume

SMALL = {"width": 96, "height": 72}
RED, BLUE = (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)


@dataclass
class FakeEnv:
    """The attributes that the viewer reads, with bins packed by dropping items where they come to lie lowest."""

    placements: Tensor
    placement_z: Tensor
    num_packed: Tensor
    catalogue: Any
    cell: tuple[float, float]
    bin_size: tuple[float, float, float]


def drop(
    tops: list[Tensor], bottoms: list[Tensor], cells: int, height: float, step: int
) -> list[tuple[int, int, int, float]]:
    """(item, x, y, z) of each item at its lowest place, in turn; items that fit nowhere are left out."""
    pile, placed = torch.zeros(cells, cells), []
    for item, (top, bottom) in enumerate(zip(tops, bottoms, strict=True)):
        windows = pile.unfold(0, top.shape[0], step).unfold(1, top.shape[1], step)
        rest = (windows - bottom).amax((-1, -2))
        place = int(rest.argmin())
        x, y, z = place // rest.shape[1] * step, place % rest.shape[1] * step, float(rest.flatten()[place])
        if z + float(top.max()) > height:
            continue
        under = pile[x : x + top.shape[0], y : y + top.shape[1]]
        under.copy_(torch.where(bottom < math.inf, torch.maximum(under, z + top), under))
        placed.append((item, x, y, z))
    return placed


def tensors(bins: list[list[tuple[int, int, int, float]]], longest: int) -> tuple[Tensor, Tensor, Tensor]:
    placements, z = torch.zeros(len(bins), longest, 4, dtype=torch.int32), torch.zeros(len(bins), longest)
    for n, placed in enumerate(bins):
        for t, (item, x, y, base) in enumerate(placed):
            placements[n, t] = torch.tensor([item, 0, x, y])
            z[n, t] = base
    return placements, z, torch.tensor([len(placed) for placed in bins])


@cache
def box_env() -> FakeEnv:
    """Three 10×10×10 bins: one packed from boxes of sides 2 to 5, one with fewer of them, one empty."""
    sizes = torch.randint(2, 6, (24, 3), generator=torch.Generator().manual_seed(0))
    tops = [torch.full((int(p), int(q)), float(h)) for p, q, h in sizes]
    placed = drop(tops, [torch.zeros_like(top) for top in tops], 10, 10.0, 1)
    catalogue = SimpleNamespace(flat=True, extent=sizes[:, None, :2], height=sizes[:, None, 2].float())
    bins = [placed, placed[:5], []]
    return FakeEnv(*tensors(bins, 24), catalogue, (1.0, 1.0), (10.0, 10.0, 10.0))


def bowl(size: int, cell: float) -> tuple[Tensor, Tensor]:
    x = torch.arange(size) + 0.5 - size / 2
    radius = torch.hypot(x[:, None], x) * 2 / size
    outer = size * cell * 0.4 * (1.0 - (1.0 - radius**2).clamp_min(0.0).sqrt())
    return torch.where(radius < 1.0, outer + 0.012, 0.0), torch.where(radius < 1.0, outer, math.inf)


def ell(p: int, q: int, arm: int, height: float) -> tuple[Tensor, Tensor]:
    material = torch.zeros(p, q, dtype=torch.bool)
    material[:arm] = True
    material[:, :arm] = True
    return torch.where(material, height, 0.0), torch.where(material, 0.0, math.inf)


def cylinder(size: int, height: float) -> tuple[Tensor, Tensor]:
    x = torch.arange(size) + 0.5 - size / 2
    material = torch.hypot(x[:, None], x) < size / 2
    return torch.where(material, height, 0.0), torch.where(material, 0.0, math.inf)


@cache
def solid_env() -> FakeEnv:
    """Two 0.4×0.4×0.3 m bins of 200×200 cells with bowls, L shapes and cylinders."""
    cell = 0.002
    items = [bowl(70, cell), ell(60, 50, 20, 0.07), cylinder(40, 0.09), ell(40, 64, 14, 0.05), bowl(60, cell)]
    placed = drop([top for top, _ in items], [bottom for _, bottom in items], 200, 0.3, 4)
    top, bottom = torch.zeros(5, 70, 70), torch.full((5, 70, 70), math.inf)
    for i, (own_top, own_bottom) in enumerate(items):
        top[i, : own_top.shape[0], : own_top.shape[1]] = own_top
        bottom[i, : own_top.shape[0], : own_top.shape[1]] = own_bottom
    catalogue = SimpleNamespace(flat=False, maps=lambda item, orientation: (top[item], bottom[item]))
    return FakeEnv(*tensors([placed, placed[:2]], 5), catalogue, (cell, cell), (0.4, 0.4, 0.3))


ENVS = pytest.mark.parametrize("env", [box_env(), solid_env()], ids=["boxes", "solids"])


def draw_pair(
    first: list[list[float]], second: list[list[float]], azimuth_deg: float, elevation_deg: float, **options: Any
) -> Tensor:
    """A red and a blue box, each given by its lower and upper corner, in a 10×10×10 bin."""
    corners = torch.tensor([[first, second]])  # (1, 2, 2, 3)
    present, colors = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[RED, BLUE]])
    options = {"width": 60, "height": 60, "azimuth_deg": azimuth_deg, "elevation_deg": elevation_deg} | options
    return viewer.render_boxes(corners[:, :, 0], corners[:, :, 1], present, colors, (10.0, 10.0, 10.0), **options)[0]


# -- contract --------------------------------------------------------------------------------------------------------


@ENVS
def test_shapes_types_and_devices(env: FakeEnv) -> None:
    one, some, cut = (
        viewer.render(env, 1, **SMALL),
        viewer.render(env, [1, 0], **SMALL),
        viewer.render(env, slice(1), **SMALL),
    )
    assert (one.shape, some.shape, cut.shape) == ((72, 96, 3), (2, 72, 96, 3), (1, 72, 96, 3))
    assert one.dtype == torch.uint8
    assert one.device == env.placements.device
    assert one.is_contiguous()


@ENVS
def test_same_picture_twice_alone_or_in_a_batch(env: FakeEnv) -> None:
    batch = viewer.render(env, [0, 1], **SMALL)
    assert torch.equal(batch, viewer.render(env, slice(0, 2), **SMALL))
    for index in (0, 1):
        assert torch.equal(batch[index], viewer.render(env, index, **SMALL))


def test_passes_over_several_scenes_see_what_single_ones_see() -> None:
    camera = Camera((10.0, 10.0, 10.0), 50, 40)
    lower = torch.rand(3, 6, 3, generator=torch.Generator().manual_seed(1)) * 7
    present = torch.arange(6) < torch.tensor([[6], [3], [0]])
    together = trace_boxes(lower, lower + 2.5, present, camera)
    for n in range(3):
        alone = trace_boxes(lower[n : n + 1], lower[n : n + 1] + 2.5, present[n : n + 1], camera)
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a[0], b[n], rtol=0, atol=0)


def test_volumes_of_several_scenes_are_those_of_single_ones() -> None:
    env = solid_env()
    camera = Camera(env.bin_size, 50, 40)
    item = env.placements[..., 0].long()
    top, bottom = env.catalogue.maps(item, None)
    corner = torch.cat((env.placements[..., 2:] * env.cell[0], env.placement_z[..., None]), dim=-1)
    present = torch.arange(5) < env.num_packed[:, None]
    options: dict[str, Any] = {"bin_size": env.bin_size, "cell": env.cell, "resolution": 50}
    together = trace_solids(fill_volume(top, bottom, corner, present, **options), camera)
    for n in range(2):
        row = slice(n, n + 1)
        alone = trace_solids(fill_volume(top[row], bottom[row], corner[row], present[row], **options), camera)
        assert torch.equal(alone.label[0], together.label[n])
        torch.testing.assert_close(alone.t[0], together.t[n])


@ENVS
@pytest.mark.parametrize(("width", "height", "supersample"), [(33, 57, 2), (101, 20, 3), (64, 48, 1), (1, 1, 2)])
def test_odd_sizes(env: FakeEnv, width: int, height: int, supersample: int) -> None:
    picture = viewer.render(env, 0, width=width, height=height, supersample=supersample)
    assert picture.shape == (height, width, 3)


@ENVS
@pytest.mark.parametrize(("azimuth_deg", "elevation_deg"), [(0.0, 90.0), (45.0, 35.0), (135.0, 10.0), (-180.0, 60.0)])
def test_items_are_seen_from_every_side(env: FakeEnv, azimuth_deg: float, elevation_deg: float) -> None:
    options: dict[str, Any] = SMALL | {"azimuth_deg": azimuth_deg, "elevation_deg": elevation_deg}
    full, empty = viewer.render(env, 0, **options), viewer.render(env, 0, upto=0, **options)
    assert (full != empty).any(-1).float().mean() > 0.05


def test_frames_show_every_stage() -> None:
    env = box_env()
    stages = viewer.frames(env, 1, **SMALL)
    assert len(stages) == 6
    assert torch.equal(stages[0], viewer.render(env, 2, **SMALL))  # the third bin is empty
    assert torch.equal(stages[-1], viewer.render(env, 1, **SMALL))
    assert torch.equal(stages[3], viewer.render(env, 0, upto=3, **SMALL))  # both bins begin alike
    assert all(not torch.equal(a, b) for a, b in pairwise(stages))


@ENVS
def test_upto_beyond_the_last_item_shows_all(env: FakeEnv) -> None:
    assert torch.equal(viewer.render(env, 0, upto=1000, **SMALL), viewer.render(env, 0, **SMALL))


def test_an_empty_bin_is_drawn_alike_by_boxes_and_solids() -> None:
    none = torch.zeros(1, 0, 3)
    absent = torch.zeros(1, 0, dtype=torch.bool)
    maps = torch.zeros(1, 0, 4, 4)
    boxes = viewer.render_boxes(none, none, absent, none, (1.0, 1.0, 1.0), **SMALL)
    solids = viewer.render_solids(maps, maps, none, absent, none, (1.0, 1.0, 1.0), (0.1, 0.1), **SMALL)
    assert torch.equal(boxes, solids)
    assert len(boxes.flatten(0, 2).unique(dim=0)) > 10  # floor, walls, grid, wire and their mixtures


def test_scale_of_the_world_does_not_matter() -> None:
    corners = torch.tensor([[[0.0, 0.0, 0.0], [4.0, 0.0, 0.0]]])
    sides = torch.tensor([[[4.0, 5.0, 3.0], [2.0, 2.0, 6.0]]])
    present, colors = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[RED, BLUE]])
    metres = viewer.render_boxes(corners, corners + sides, present, colors, (8.0, 8.0, 8.0), **SMALL)
    small = viewer.render_boxes(corners / 10, (corners + sides) / 10, present, colors, (0.8, 0.8, 0.8), **SMALL)
    assert (metres.int() - small.int()).abs().float().mean() < 0.1  # rounding moves a sample here and there


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_from_above_the_upper_box_is_seen() -> None:
    low, high = [[1.0, 1.0, 0.0], [9.0, 9.0, 2.0]], [[1.0, 1.0, 4.0], [9.0, 9.0, 6.0]]
    # From straight above nothing shades a top, whose lamp is full: the pixel is the colour itself.
    assert draw_pair(low, high, -90.0, 90.0)[30, 30].tolist() == [0, 0, 255]
    assert draw_pair(high, low, -90.0, 90.0)[30, 30].tolist() == [255, 0, 0]


def test_from_above_x_leads_right_and_y_up() -> None:
    # 60 pixels for 10 m less a margin on each side: the quarters of the floor lie in the quarters of the picture.
    picture = draw_pair([[6.0, 0.0, 0.0], [10.0, 4.0, 1.0]], [[0.0, 6.0, 0.0], [4.0, 10.0, 1.0]], -90.0, 90.0)
    assert picture[45, 45].tolist() == [255, 0, 0]  # below, right: x large, y small
    assert picture[15, 15].tolist() == [0, 0, 255]  # above, left: x small, y large


def test_a_box_in_front_hides_the_one_behind() -> None:
    front, back = [[1.0, 0.0, 0.0], [9.0, 2.0, 9.0]], [[1.0, 6.0, 0.0], [9.0, 8.0, 9.0]]
    seen = draw_pair(front, back, -90.0, 5.0)[30, 30]  # the viewer stands at −y, almost level
    assert seen[0] > 100
    assert seen[1:].tolist() == [0, 0]
    seen = draw_pair(back, front, -90.0, 5.0)[30, 30]
    assert seen[2] > 100
    assert seen[:2].tolist() == [0, 0]
    seen = draw_pair(back, front, 90.0, 5.0)[30, 30]  # from behind it is the other way round
    assert seen[0] > 100


def test_faces_differ_in_brightness() -> None:
    box = [[0.0, 0.0, 0.0], [10.0, 10.0, 10.0]]
    gone = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]  # no volume: never seen
    picture = draw_pair(box, gone, -45.0, 35.0, width=90, height=90).int()
    top, left, right = picture[25, 45, 0], picture[55, 25, 0], picture[55, 65, 0]
    assert top > right + 20 > left + 40


def test_edges_are_darker_than_faces() -> None:
    box = [[0.0, 0.0, 0.0], [10.0, 10.0, 10.0]]
    camera = Camera((10.0, 10.0, 10.0), 200, 200, -45.0, 35.0, 2)
    picture = draw_pair(box, [[0.0] * 3] * 2, -45.0, 35.0, width=200, height=200)
    row, column = (int(c / 2) for c in camera.pixel((10.0, 0.0, 5.0)))  # half-way up the front edge
    assert picture[row, column, 0] < 0.6 * picture[row, column + 20, 0]


# -- laws and twins --------------------------------------------------------------------------------------------------


def nearest_box(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> np.ndarray:
    """Box seen by each sample of the viewport, −1 for none: ray against slabs in double precision, box by box."""
    forward = np.array(camera.forward)
    ground = np.stack([g.numpy() for g in camera.ground(camera.viewport, torch.device("cpu"))], -1).astype(float)
    start = np.concatenate((ground, np.zeros((*ground.shape[:2], 1))), -1)
    best, label = np.full(start.shape[:2], np.inf), np.full(start.shape[:2], -1)
    for m, (low, high) in enumerate(zip(lower, upper, strict=True)):
        planes = np.sort(np.stack(((low - start) / forward, (high - start) / forward)), axis=0)
        enter, leave = planes[0].max(-1), planes[1].min(-1)
        nearer = (enter < leave) & (enter < best)
        best, label = np.where(nearer, enter, best), np.where(nearer, m, label)
    return label


@pytest.mark.parametrize(("azimuth_deg", "elevation_deg"), [(-56.0, 29.0), (20.0, 50.0), (130.0, 15.0), (0.0, 90.0)])
def test_boxes_agree_with_rays_in_double_precision(azimuth_deg: float, elevation_deg: float) -> None:
    rng = np.random.default_rng(0)
    lower = rng.uniform(0.0, 7.0, (15, 3))
    upper = lower + rng.uniform(0.5, 3.0, (15, 3))
    camera = Camera((10.0, 10.0, 10.0), 80, 60, azimuth_deg, elevation_deg)
    boxes = [torch.tensor(c, dtype=torch.float32)[None] for c in (lower, upper)]
    label = trace_boxes(*boxes, torch.ones(1, 15, dtype=torch.bool), camera).label[0].numpy()
    assert (label != nearest_box(lower, upper, camera)).mean() < 1e-3  # samples on an edge, to rounding


def test_boxes_drawn_as_solids_look_like_boxes() -> None:
    env = box_env()
    item, corner = (
        env.placements[:1, :, 0].long(),
        torch.cat((env.placements[:1, :, 2:], env.placement_z[:1, :, None]), -1),
    )
    extent, height = env.catalogue.extent[item, 0], env.catalogue.height[item, 0]
    steps = torch.arange(5)
    inside = (steps[:, None] < extent[..., :1, None]) & (steps < extent[..., 1:, None])
    top, bottom = torch.where(inside, height[..., None, None], 0.0), torch.where(inside, 0.0, math.inf)
    present = torch.arange(24) < env.num_packed[:1, None]
    camera = Camera(env.bin_size, 160, 120)
    volume = fill_volume(top, bottom, corner, present, bin_size=env.bin_size, cell=env.cell, resolution=100)
    solids = trace_solids(volume, camera)
    boxes = trace_boxes(corner, corner + torch.cat((extent, height[..., None]), -1), present, camera)
    seen = boxes.label >= 0
    assert (solids.label != boxes.label).float().mean() < 0.03
    same = seen & (solids.label == boxes.label)
    assert (solids.t - boxes.t)[same].abs().median() < 0.02  # metres of a 10 m bin
    assert (solids.normal * boxes.normal).sum(1)[same].median() > 0.99


def test_volume_holds_the_material_of_its_items() -> None:
    env = solid_env()
    top, bottom = env.catalogue.maps(env.placements[:, :, 0].long(), None)
    corner = torch.cat((env.placements[..., 2:] * env.cell[0], env.placement_z[..., None]), dim=-1)
    present = torch.arange(5) < env.num_packed[:, None]
    volume = fill_volume(top, bottom, corner, present, bin_size=env.bin_size, cell=env.cell, resolution=100)
    material = (top - bottom).clamp_min(0.0).sum((-1, -2)) * env.cell[0] * env.cell[1]  # (B, M)
    held = volume.density.sum((1, 2, 3)) * math.prod(volume.voxel)
    torch.testing.assert_close(held, (material * present).sum(1), rtol=5e-3, atol=0.0)
    assert volume.density.shape == (2, 75, 100, 100)
    assert set(volume.label.unique().tolist()) == {-1, 0, 1, 2, 3, 4}


def test_walls_thinner_than_a_voxel_have_no_holes() -> None:
    x = torch.arange(120) + 0.5 - 60
    radius = torch.hypot(x[:, None], x)
    wall = (radius < 50) & (radius > 48.5)  # 1 to 2 cells; a voxel has 3
    top, bottom = (torch.where(wall, inside, outside)[None, None] for inside, outside in ((1.0, 0.0), (0.0, math.inf)))
    camera = Camera((1.2, 1.2, 1.2), 120, 90)
    corner, present = torch.zeros(1, 1, 3), torch.ones(1, 1, dtype=torch.bool)
    volume = fill_volume(top, bottom, corner, present, bin_size=(1.2, 1.2, 1.2), cell=(0.01, 0.01), resolution=40)
    assert volume.density.shape == (1, 40, 40, 40)
    tube = trace_solids(volume, camera)
    x, y = camera.ground(camera.viewport, torch.device("cpu"))
    away = torch.tensor(camera.forward[:2]) / math.hypot(*camera.forward[:2])
    depth = (x + tube.t[0] * camera.forward[0] - 0.6) * away[0] + (y + tube.t[0] * camera.forward[1] - 0.6) * away[1]
    row, column = (int(c) for c in camera.pixel((0.6 - 0.49 * float(away[0]), 0.6 - 0.49 * float(away[1]), 0.5)))
    row, column = row - camera.viewport.row0, column - camera.viewport.col0
    near = depth[row - 15 : row + 16, column - 25 : column + 26]
    assert (near < -0.3).all()  # the wall on the viewer's side, not one seen through it


@pytest.mark.parametrize("cells", [7, 30, 64, 130])
def test_volume_keeps_to_its_resolution(cells: int) -> None:
    maps = torch.full((1, 1, cells, cells), 0.5)
    corner, present = torch.zeros(1, 1, 3), torch.ones(1, 1, dtype=torch.bool)
    volume = fill_volume(
        maps,
        torch.zeros_like(maps),
        corner,
        present,
        bin_size=(1.0, 1.0, 2.0),
        cell=(1 / cells, 1 / cells),
        resolution=40,
    )
    assert max(volume.density.shape[1:]) <= 40
    counts = (*volume.density.shape[2:], volume.density.shape[1])
    extents = [count * side for count, side in zip(counts, volume.voxel, strict=True)]
    assert extents == pytest.approx([1.0, 1.0, 2.0], rel=0.05)


def test_srgb_goes_there_and_back() -> None:
    srgb = torch.linspace(0.0, 1.0, 101)
    torch.testing.assert_close(encode_srgb(decode_srgb(srgb)), srgb, rtol=0.0, atol=1e-5)


def test_colors_of_neighbours_differ() -> None:
    colors = viewer.item_colors(torch.arange(40))
    assert colors.shape == (40, 3)
    assert colors.min() >= 0.0
    assert colors.max() <= 1.0
    distances = torch.cdist(colors, colors) + 9.0 * torch.eye(40)
    near = (torch.arange(40)[:, None] - torch.arange(40)).abs() <= 5
    assert distances[near].min() > 0.12
    assert distances.min() > 0.03


@pytest.mark.parametrize(("longest", "step"), [(10.0, 1.0), (0.4, 0.05), (1.5, 0.2), (1.0, 0.1), (12.0, 1.0)])
def test_grid_step_is_a_round_number(longest: float, step: float) -> None:
    assert grid_step((longest, longest / 2, longest / 3)) == pytest.approx(step)


# -- the device is never waited for ----------------------------------------------------------------------------------


@ENVS
def test_no_operator_that_synchronises(env: FakeEnv) -> None:
    with NoHostReads():
        viewer.render(env, [0, 1], width=47, height=39)  # a size of its own, so that the bin is drawn anew


@pytest.mark.gpu
@ENVS
def test_no_synchronisation_on_a_gpu(env: FakeEnv) -> None:
    catalogue = SimpleNamespace(flat=env.catalogue.flat)
    if env.catalogue.flat:
        catalogue.extent, catalogue.height = env.catalogue.extent.cuda(), env.catalogue.height.cuda()
    else:
        top, bottom = (maps.cuda() for maps in env.catalogue.maps(torch.arange(5), None))
        catalogue.maps = lambda item, orientation: (top[item], bottom[item])
    state = (t.cuda() for t in (env.placements, env.placement_z, env.num_packed))
    on_gpu = FakeEnv(*state, catalogue, env.cell, env.bin_size)
    torch.cuda.set_sync_debug_mode("error")
    try:
        picture = viewer.render(on_gpu, [0, 1], **SMALL)
        again = viewer.render(on_gpu, [0, 1], **SMALL)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(picture, again)
    assert (picture.cpu().int() - viewer.render(env, [0, 1], **SMALL).int()).abs().float().mean() < 0.5


def test_pictures_can_be_drawn_in_inference_mode_and_used_outside() -> None:
    env = box_env()
    with torch.inference_mode():
        viewer.render(env, 0, width=53, height=41)
    assert viewer.render(env, 0, width=53, height=41).shape == (41, 53, 3)


# -- files -----------------------------------------------------------------------------------------------------------


def test_png_holds_the_frame(tmp_path: Path) -> None:
    frame = viewer.render(box_env(), 0, **SMALL)
    path = viewer.save_png(frame, tmp_path / "new" / "folder" / "bin.png")
    assert np.array_equal(np.asarray(Image.open(path)), frame.numpy())
    assert [p.name for p in path.parent.iterdir()] == ["bin.png"]  # nothing is left over


def test_caption_is_drawn_on_the_file_only(tmp_path: Path) -> None:
    frame = viewer.render(box_env(), 0, **SMALL)
    before = frame.clone()
    path = viewer.save_png(frame, tmp_path / "bin.png", caption="utilization 71.3%\n18 items")
    assert torch.equal(frame, before)
    assert not np.array_equal(np.asarray(Image.open(path)), frame.numpy())


def test_gif_holds_every_frame(tmp_path: Path) -> None:
    stages = viewer.frames(box_env(), 1, **SMALL)
    path = viewer.save_gif(
        stages, tmp_path / "bin.gif", fps=5, captions=[f"{i} items" for i in range(6)], hold_last=1.5
    )
    with Image.open(path) as gif:
        images = [(image.convert("RGB"), image.info["duration"]) for image in ImageSequence.Iterator(gif)]
    assert [duration for _, duration in images] == [200] * 5 + [1700]
    for (image, _), stage in zip(images, stages, strict=True):
        lower = slice(25, None)  # below the caption
        error = np.abs(np.asarray(image, dtype=int)[lower] - stage.numpy().astype(int)[lower])
        assert error.mean() < 3.0


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = viewer.render(box_env(), 0, **SMALL)
    path = viewer.save_png(frame, tmp_path / "bin.png")
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        viewer.save_png(frame, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["bin.png"]


def test_contact_sheet_places_pictures_row_by_row() -> None:
    pictures = torch.arange(3, dtype=torch.uint8)[:, None, None, None].expand(3, 4, 6, 3)
    sheet = viewer.contact_sheet(pictures, columns=2, gap=1)
    assert sheet.shape == (9, 13, 3)
    assert (sheet[:4, :6] == 0).all()
    assert (sheet[:4, 7:] == 1).all()
    assert (sheet[5:, :6] == 2).all()
    assert (sheet[5:, 7:] > 200).all()  # background
    assert viewer.contact_sheet(pictures, columns=9).shape == (4, 3 * 6 + 2 * 8, 3)


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width, height and supersample must be at least 1"),
        ({"supersample": 0}, "width, height and supersample must be at least 1"),
        ({"elevation_deg": 0.0}, r"elevation_deg must lie in \[5, 90\], got 0.0"),
        ({"elevation_deg": math.nan}, "elevation_deg must lie in"),
    ],
)
def test_bad_views_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viewer.render(box_env(), 0, **options)


def test_bad_tensors_are_refused() -> None:
    corners, present = torch.zeros(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"colors must have shape \(1, 2, 3\); got \(2, 3\)"):
        viewer.render_boxes(corners, corners, present, corners[0], (1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="present must be bool"):
        viewer.render_boxes(corners, corners, present.float(), corners, (1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="bin_size must be three positive lengths"):
        viewer.render_boxes(corners, corners, present, corners, (1.0, 0.0, 1.0))


def test_bad_files_are_refused(tmp_path: Path) -> None:
    frames = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="uint8 of shape"):
        viewer.save_png(frames, tmp_path / "bin.png")
    with pytest.raises(ValueError, match="one per frame, 2; got 1"):
        viewer.save_gif(frames, tmp_path / "bin.gif", captions=["only one"])
    with pytest.raises(ValueError, match="T ≥ 1"):
        viewer.save_gif(frames[:0], tmp_path / "bin.gif")
    with pytest.raises(ValueError, match="fps must be positive"):
        viewer.save_gif(frames, tmp_path / "bin.gif", fps=0)
    assert not list(tmp_path.iterdir())
