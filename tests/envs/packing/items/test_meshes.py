"""Items from mesh files, from the file to the packed bin."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trimesh import creation

from tests.envs.packing.items.mesh_writing import arrays, box, write_obj
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import MeshItems, item_source, mesh_cache
from torchrl_gpu.envs.packing.items import meshes as module
from torchrl_gpu.envs.packing.plan import poses, solid_of
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.envs.packing.viewer import render
from torchrl_gpu.policies.exploration import random_legal

BIN = Bin((0.2, 0.2, 0.15), (40, 40), 4)
TRUE = (1.0, 1.0)


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    mesh_cache.forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A box, a ring, and a cross of two beams, about ten centimetres each."""
    box((0.1, 0.05, 0.03), (1, 2, 3)).export(tmp_path / "a_box.stl")
    creation.torus(0.035, 0.012, major_sections=16, minor_sections=8).export(tmp_path / "b_ring.ply")
    beams = [arrays(box((0.09, 0.02, 0.02))), arrays(box((0.02, 0.09, 0.02), (0.035, -0.035, 0)))]
    write_obj(tmp_path / "c_cross.obj", beams)
    return tmp_path


def volumes(source: MeshItems) -> list[float]:
    return [item.shape.volume * item.scale**3 for item in source.items]


def test_the_catalogue_has_every_item_in_every_orientation(folder: Path) -> None:
    source = MeshItems(folder, scale=(0.8, 1.2), num_scales=2)
    catalogue, stream = source.build(BIN, "cube", 12, 3)
    assert (catalogue.num_items, catalogue.num_orientations, stream.length) == (6, 24, 12)
    assert [Path(item.shape.name).name for item in source.items[::2]] == ["a_box.stl", "b_ring.ply", "c_cross.obj"]
    assert catalogue.unit is None
    assert not catalogue.flat
    assert catalogue.volume.tolist() == pytest.approx(volumes(source), rel=1e-5)

    def factors_of(seed: int) -> list[float]:
        return [item.scale for item in MeshItems(folder, num_scales=20, seed=seed).items]

    factors = [factors_of(0), factors_of(0), factors_of(1)]
    assert factors[0] == factors[1] != factors[2]
    assert (len(set(factors[0])), min(factors[0]) >= 0.8, max(factors[0]) <= 1.2) == (60, True, True)


def test_a_box_by_hand(folder: Path) -> None:
    # 20×10×6 cells of 5 mm, wherever its file puts it.
    catalogue, _ = MeshItems(folder / "a_box.stl", scale=TRUE).build(BIN, "cube", 1, 1)
    sides = torch.cat([catalogue.extent[0], (catalogue.height[0, :, None] / 0.005).round().long()], 1)
    assert {tuple(sorted(s)) for s in sides.tolist()} == {(6, 10, 20)}
    assert sides[0].tolist() == [20, 10, 6]
    assert catalogue.volume.item() == pytest.approx(1.5e-4, rel=1e-5)
    assert catalogue.centre is not None
    half = torch.tensor(BIN.cell[0]) * catalogue.extent[0] / 2
    assert torch.allclose(catalogue.centre[0], half, atol=1e-6)
    solid = MeshItems(folder / "a_box.stl", scale=TRUE).solid(0, BIN)
    assert solid.centre.tolist() == pytest.approx([1.05, 2.025, 3.015], abs=1e-6)


def test_volumes_never_exceed_the_columns(folder: Path) -> None:
    # On coarse cells too, where a box of whole cells fills its columns to the last bit.
    for cells in (4, 11):
        bin_ = Bin((0.2, 0.2, 0.15), (cells, cells))
        catalogue, _ = MeshItems(folder, scale=TRUE).build(bin_, "cube", 1, 1)
        assert catalogue.bottom is not None
        assert catalogue.top is not None
        thick = torch.where(catalogue.bottom.isfinite(), catalogue.top - catalogue.bottom, 0.0)
        columns = thick.sum((-1, -2), dtype=torch.float64) * bin_.cell_area
        assert (columns >= catalogue.volume[:, None].double() * (1 - 1e-6)).all()


def test_a_path_to_meshes_names_this_source(folder: Path) -> None:
    for path in (folder, folder / "c_cross.obj"):
        assert isinstance(item_source(str(path)), MeshItems)
    names = [str(folder / name) for name in ("c_cross.obj", "a_box.stl")]
    assert [item.shape.name for item in MeshItems(names).items] == names
    env = PackingEnv(2, items=str(folder), bin_size=BIN.size, resolution=BIN.cells, orientations="yaw", device="cpu")
    assert env.catalogue.num_items == 3


# -- in a bin ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientations", ["cube", 60.0])
def test_packed_solids_lie_within_the_pile(folder: Path, orientations: str | float) -> None:
    source = MeshItems(folder, num_scales=2)
    env = PackingEnv(
        3,
        items=source,
        bin_size=BIN.size,
        resolution=BIN.cells,
        grid_step=4,
        orientations=orientations,
        visible_items=2,
        include=[],
        device="cpu",
        seed=0,
        num_items=6,
    )
    observation = env.reset()
    torch.manual_seed(0)
    for _ in range(4):
        observation["action"] = random_legal(observation["action_mask"])
        observation = env.step(observation)["next"]
    packed = env.state.volume
    assert (packed <= env.state.heightmap.sum((1, 2)) * env.bin.cell_area * (1 + 1e-6)).all()
    for n in range(3):
        heights = env.state.heightmap[n].double().numpy()
        found = poses(env, n)
        assert len(found) == int(env.num_packed[n]) >= 3
        assert packed[n].item() == pytest.approx(sum(solid_of(env, pose.item).volume for pose in found), rel=1e-5)
        for pose in found:
            solid = solid_of(env, pose.item)
            points = solid.vertices @ pose.rotation.T + pose.position
            assert (points > -1e-6).all()
            assert (points < np.array(BIN.size) + 1e-6).all()
            # Off the borders of cells.
            inner = points + 1e-3 * (points.mean(0) - points)
            x, y = (inner[:, :2] / np.array(BIN.cell)).astype(int).T
            assert (inner[:, 2] <= heights[x, y] + 1e-6).all()
    assert render(env, 0, width=64, height=48).shape == (48, 64, 3)


# -- the cache --------------------------------------------------------------------------------------------------------


def test_heightmaps_are_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counting(meshes: Any, *rest: object) -> Any:
        made.append(len(meshes))
        return rasterise(meshes, *rest)

    rasterise = module.rasterise
    monkeypatch.setattr(module, "rasterise", counting)
    cache = folder / "cache"
    first, _ = MeshItems(folder, cache=cache).build(BIN, "cube", 1, 1)
    # They come from the process.
    MeshItems(folder, num_scales=1).build(BIN, "cube", 1, 1)
    mesh_cache.forget()
    # They come from the folder.
    again, _ = MeshItems(folder, cache=cache).build(BIN, "cube", 1, 1)
    MeshItems(folder, cache=cache).build(BIN, "yaw", 1, 1)
    assert made == [3, 0, 0, 3]
    assert torch.equal(first.top, again.top)  # type: ignore[arg-type]
    assert torch.equal(first.bottom, again.bottom)  # type: ignore[arg-type]
    assert torch.equal(first.extent, again.extent)


def test_a_changed_mesh_is_made_again(folder: Path) -> None:
    before, _ = MeshItems(folder / "a_box.stl", scale=TRUE).build(BIN, "fixed", 1, 1)
    box((0.05, 0.05, 0.03)).export(folder / "a_box.stl")
    after, _ = MeshItems(folder / "a_box.stl", scale=TRUE).build(BIN, "fixed", 1, 1)
    assert (before.extent.tolist(), after.extent.tolist()) == ([[[20, 10]]], [[[10, 10]]])


# -- errors -----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_mesh_is_named(folder: Path) -> None:
    bad = folder / "bad.obj"
    bad.write_text("hello")
    with pytest.raises(ValueError) as error:
        MeshItems(folder)
    assert str(error.value) == f"MeshItems: {bad}: the file has no triangles"


def test_an_object_too_large_for_the_bin_is_named(folder: Path) -> None:
    large = folder / "d_large.stl"
    # It fits on no side.
    box((0.21, 0.16, 0.16)).export(large)
    # It fits lying.
    box((0.01, 0.01, 0.19)).export(folder / "e_long.stl")
    source = MeshItems(folder, scale=TRUE)
    with pytest.raises(ValueError) as error:
        source.build(BIN, "cube", 1, 1)
    line = str(error.value)
    assert line.startswith(f"MeshItems: {large}: ")
    assert "0.21 × 0.16 × 0.16 m at scale 1" in line
    assert "bin of 0.2 × 0.2 × 0.15 m" in line


def test_an_object_in_millimetres_is_named_before_its_heightmaps_fill_the_memory(folder: Path) -> None:
    large = folder / "a_crate.stl"
    box((600.0, 400.0, 320.0)).export(large)
    for unit, wanted in (("m", "600 × 400 × 320 m .* 0.15 m "), ("cm", "600 × 400 × 320 cm .* 15 cm ")):
        with pytest.raises(ValueError, match=rf"^MeshItems: {large}: .*{wanted}"):
            MeshItems(large, unit, scale=TRUE).build(BIN, "cube", 1, 1)
    kept = MeshItems(folder, scale=TRUE, skip_invalid=True)
    assert kept.build(BIN, "cube", 1, 1)[0].num_items == 3
    assert [path for path, _ in kept.skipped] == [large]


def test_what_cannot_be_used_is_skipped_and_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad, large = folder / "0_bad.ply", folder / "a_large.stl"
    bad.write_text("hello")
    box((0.21, 0.16, 0.16)).export(large)
    with caplog.at_level(logging.WARNING):
        source = MeshItems(folder, scale=TRUE, skip_invalid=True)
        catalogue, _ = source.build(BIN, "cube", 1, 1)
        source.build(BIN, "cube", 1, 1)
    assert catalogue.num_items == 3
    assert [path for path, _ in source.skipped] == [bad, large]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith(f"MeshItems: skipped 1 of 5 files, the first of them {bad}: invalid mesh; ")
    assert lines[1].startswith(
        f"MeshItems: skipped 1 of 4 items, the first of them {large}: an item of 0.21 × 0.16 × 0.16 m"
    )
    names = [Path(source.solid(row, BIN).name).name for row in range(3)]
    assert names == ["a_box.stl", "b_ring.ply", "c_cross.obj"]


def test_rows_mean_the_same_item_in_all_environments_with_a_bin(folder: Path) -> None:
    # It fits lying only.
    box((0.01, 0.01, 0.19)).export(folder / "0_long.stl")
    source = MeshItems(folder, scale=TRUE, skip_invalid=True)
    source.build(BIN, "cube", 1, 1)
    with pytest.raises(ValueError, match=r"^MeshItems: .*orientations.*second MeshItems"):
        source.build(BIN, "fixed", 1, 1)
    source.build(Bin((0.2, 0.2, 0.2), (40, 40)), "fixed", 1, 1)


def test_nothing_to_use_is_an_error_even_if_skipped(folder: Path) -> None:
    tiny = Bin((0.01, 0.01, 0.01), (4, 4))
    with pytest.raises(ValueError, match=r"^MeshItems: .*: no item .*bin$"):
        MeshItems(folder, skip_invalid=True).build(tiny, "cube", 1, 1)
    bad = folder / "only" / "bad.obj"
    bad.parent.mkdir()
    bad.write_text("")
    with pytest.raises(ValueError, match=r"^MeshItems: .*: .*mesh .*1 files$"):
        MeshItems(bad.parent, skip_invalid=True)


def test_what_is_thinner_than_the_edge_of_a_cell_is_refused(folder: Path) -> None:
    source = MeshItems(folder / "a_box.stl", scale=(1e-6, 1e-6))
    with pytest.raises(ValueError, match=r"a_box.stl: .*scale 1e-06.* ten-thousandth .*cell"):
        source.build(BIN, "fixed", 1, 1)


def test_a_missing_package_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trimesh", None)
    with pytest.raises(ImportError, match=r"trimesh.*\[meshes\]"):
        MeshItems(folder)
