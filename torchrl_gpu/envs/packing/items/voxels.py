"""From voxels to the heightmaps of every orientation."""

from __future__ import annotations

import numpy as np
import torch

from torchrl_gpu.envs.packing.types import Bin, Catalogue


def heightmaps(solids: list[np.ndarray], rotations: np.ndarray, bin_: Bin) -> Catalogue:
    """Catalogue of solids given as voxels.

    Args:
        solids: (A, B, C) bool each, cubic voxels as long as a cell.
        rotations: (O, 3, 3).
        bin_: The bin.

    Returns:
        A catalogue whose volumes are those of the voxels, the least over the orientations where turning by other than
        π/2 changes them.

    Raises:
        ValueError: A solid is empty, or fits the bin in no orientation.
    """
    cell = bin_.cell[0]
    maps = [[_seen(_turned(solid, rotation)) for rotation in rotations] for solid in solids]
    extent = torch.tensor([[view[0].shape for view in views] for views in maps])  # (M, O, 2)
    p, q = extent.amax((0, 1)).tolist()
    top = torch.zeros(*extent.shape[:2], p, q)
    bottom = torch.full_like(top, torch.inf)
    volume = torch.zeros(len(solids))
    for m, views in enumerate(maps):
        for o, (high, low, _) in enumerate(views):
            rows, columns = high.shape
            top[m, o, :rows, :columns] = torch.from_numpy(high * cell)
            bottom[m, o, :rows, :columns] = torch.from_numpy(low * cell)
        volume[m] = min(count for *_, count in views) * bin_.cell_area * cell
    catalogue = Catalogue.of_maps(top, bottom, extent, volume, unit=cell)
    _check_fit(catalogue, bin_)
    return catalogue


def _check_fit(catalogue: Catalogue, bin_: Bin) -> None:
    inside = (catalogue.extent <= torch.tensor(bin_.cells)).all(-1) & (
        catalogue.height <= bin_.size[2] + bin_.tolerance
    )
    lost = (~inside.any(1)).nonzero()
    if len(lost):
        item = int(lost[0])
        raise ValueError(
            f"heightmaps: every item must fit the bin of {bin_.cells} cells × {bin_.size[2]} m in some orientation;"
            f" item {item} has {catalogue.extent[item, 0].tolist()} cells × {catalogue.height[item, 0].item():.3f} m"
        )


def _turned(solid: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """The voxels of a turned solid: exact for turns by π/2, the nearest voxel looked up otherwise."""
    size = np.array(solid.shape)
    if np.isclose(np.abs(rotation), np.round(np.abs(rotation))).all():
        axes = np.abs(rotation).argmax(1)
        flipped = [axis for axis in range(3) if rotation[axis, axes[axis]] < 0]
        return np.flip(solid.transpose(axes), tuple(flipped))
    new_size = np.ceil(np.abs(rotation) @ size - 1e-9).astype(int)
    centres = np.stack(np.meshgrid(*[np.arange(n) + 0.5 - n / 2 for n in new_size], indexing="ij"), -1)
    source = np.floor(centres @ rotation + size / 2).astype(int)  # rotation.T applied to column vectors
    inside = ((source >= 0) & (source < size)).all(-1)
    source = np.where(inside[..., None], source, 0)
    return solid[source[..., 0], source[..., 1], source[..., 2]] & inside


def _seen(solid: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Top and bottom over the footprint, in voxels above the base, and the number of voxels."""
    if not solid.any():
        raise ValueError("heightmaps: want solids with material; got an empty one")
    for axis in range(3):
        used = np.flatnonzero(solid.any(tuple(a for a in range(3) if a != axis)))
        solid = solid.take(np.arange(used[0], used[-1] + 1), axis)
    material = solid.any(2)
    low = np.where(material, solid.argmax(2), np.inf)
    high = np.where(material, solid.shape[2] - solid[:, :, ::-1].argmax(2), 0)
    return high.astype(np.float32), low.astype(np.float32), int(solid.sum())
