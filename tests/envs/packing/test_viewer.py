"""The viewer of packed bins.

A picture does not depend on how it is asked for, and files hold what was drawn.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from tests.envs.packing.settings import legal_action, packing
from torchrl_gpu.envs.packing import viewer
from torchrl_gpu.envs.packing.render.camera import grid_step

SMALL = {"width": 96, "height": 72}


@cache
def bins_of(setting: str, *fewer: int) -> SimpleNamespace:
    """Return packed bins as the viewer reads them.

    Some have all items of a packing, and some the first few of them.
    """
    env, generator = packing(setting, 1), torch.Generator().manual_seed(0)
    current = env.reset()
    while not current["done"].any():
        action = legal_action(current["action_mask"], generator)
        current = env.step(current.set("action", action))["next"].exclude("reward")
    rows = torch.zeros(1 + len(fewer), dtype=torch.int64)
    return SimpleNamespace(
        placements=env.placements[rows],
        placement_z=env.placement_z[rows],
        num_packed=torch.tensor([int(env.num_packed), *fewer]),
        catalogue=env.catalogue,
        bin=env.bin,
    )


def box_env() -> SimpleNamespace:
    return bins_of("bpp10", 5, 0)


ENVS = pytest.mark.parametrize("env", [box_env(), bins_of("irregular", 2)], ids=["boxes", "solids"])


# -- contract --------------------------------------------------------------------------------------------------------


@ENVS
def test_shapes_types_and_devices(env: SimpleNamespace) -> None:
    one = viewer.render(env, 1, **SMALL)
    some = viewer.render(env, [1, 0], **SMALL)
    cut = viewer.render(env, slice(1), **SMALL)
    assert (one.shape, some.shape, cut.shape) == ((72, 96, 3), (2, 72, 96, 3), (1, 72, 96, 3))
    assert one.dtype == torch.uint8
    assert one.device == torch.device("cpu")
    assert one.is_contiguous()


@ENVS
def test_same_picture_twice_alone_or_in_a_batch(env: SimpleNamespace) -> None:
    batch = viewer.render(env, [0, 1], **SMALL)
    assert torch.equal(batch, viewer.render(env, slice(0, 2), **SMALL))
    for index in (0, 1):
        # There are fewer items than 1000.
        assert torch.equal(batch[index], viewer.render(env, index, upto=1000, **SMALL))


@ENVS
@pytest.mark.parametrize(("width", "height"), [(33, 57), (101, 20), (64, 48), (1, 1)])
def test_odd_sizes(env: SimpleNamespace, width: int, height: int) -> None:
    assert viewer.render(env, 0, width=width, height=height).shape == (height, width, 3)


def test_frames_show_every_stage() -> None:
    env = box_env()
    stages = viewer.frames(env, 1, **SMALL)
    assert len(stages) == 6
    # The third bin is empty.
    assert torch.equal(stages[0], viewer.render(env, 2, **SMALL))
    assert torch.equal(stages[-1], viewer.render(env, 1, **SMALL))
    # Both bins begin alike.
    assert torch.equal(stages[3], viewer.render(env, 0, upto=3, **SMALL))
    assert all(not torch.equal(a, b) for a, b in pairwise(stages))


# -- colours ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.gpu
@ENVS
def test_a_bin_on_a_gpu_is_drawn_as_on_the_cpu(env: SimpleNamespace) -> None:
    moved = {name: value.cuda() for name, value in vars(env).items() if isinstance(value, torch.Tensor)}
    on_gpu = SimpleNamespace(**vars(env) | moved | {"catalogue": env.catalogue.to(torch.device("cuda"))})
    assert torch.equal(viewer.render(on_gpu, [0, 1], **SMALL), viewer.render(env, [0, 1], **SMALL))


# -- files -----------------------------------------------------------------------------------------------------------


def test_png_holds_the_frame_and_a_caption_is_drawn_on_the_file_only(tmp_path: Path) -> None:
    frame = viewer.render(box_env(), 0, **SMALL)
    path = viewer.save_png(frame, tmp_path / "new" / "folder" / "bin.png")
    assert np.array_equal(np.asarray(Image.open(path)), frame.numpy())
    # Nothing is left over.
    assert [p.name for p in path.parent.iterdir()] == ["bin.png"]
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
        # Below the caption.
        lower = slice(25, None)
        error = np.abs(np.asarray(image, dtype=int)[lower] - stage.numpy().astype(int)[lower])
        assert error.mean() < 3.0


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = viewer.render(box_env(), 0, **SMALL)
    path = viewer.save_png(frame, tmp_path / "bin.png")
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
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
    # Background.
    assert (sheet[5:, 7:] > 200).all()
    assert viewer.contact_sheet(pictures, columns=9).shape == (4, 3 * 6 + 2 * 8, 3)


# -- bad input -------------------------------------------------------------------------------------------------------


def test_bad_views_are_refused() -> None:
    for size in ((0, 480), (640, -3)):
        with pytest.raises(ValueError, match=r"width .*height .* {} and {}".format(*size)):
            viewer.render(box_env(), 0, width=size[0], height=size[1])


def test_bad_files_are_refused(tmp_path: Path) -> None:
    frames = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="uint8 of shape"):
        viewer.save_png(frames, tmp_path / "bin.png")
    with pytest.raises(ValueError, match=r"captions.* 2.* 1"):
        viewer.save_gif(frames, tmp_path / "bin.gif", captions=["only one"])
    with pytest.raises(ValueError, match="T ≥ 1"):
        viewer.save_gif(frames[:0], tmp_path / "bin.gif")
    with pytest.raises(ValueError, match=r"fps.* 0"):
        viewer.save_gif(frames, tmp_path / "bin.gif", fps=0)
    assert not list(tmp_path.iterdir())
