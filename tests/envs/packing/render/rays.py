"""An independent picture of a bin: the thing that each sample's ray meets first, in double precision."""

from __future__ import annotations

import numpy as np

from torchrl_gpu.envs.packing.render.camera import Camera


def nearest_box(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Box that each sample sees, −1 for none, and the axis across which its face lies, int (H, W) each.

    Every ray is held against the slabs of each box in turn.
    """
    forward = np.cross(camera.axes[:, 0], camera.axes[:, 1])  # the direction that the projection does not see
    forward *= -np.sign(forward[2])
    width, height = camera.size
    seen = np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), -1) - camera.origin
    start = np.concatenate([seen @ np.linalg.inv(camera.axes[:2]), np.zeros((height, width, 1))], -1)  # on the floor
    best, label, face = (np.full((height, width), value) for value in (np.inf, -1, 0))
    for number, (low, high) in enumerate(zip(lower, upper, strict=True)):
        planes = np.sort(np.stack([(low - start) / forward, (high - start) / forward]), axis=0)
        enter, leave = planes[0].max(-1), planes[1].min(-1)
        nearer = (enter < leave) & (enter < best)
        best[nearer], label[nearer] = enter[nearer], number
        face[nearer] = planes[0].argmax(-1)[nearer]
    return label, face


def uniform(values: np.ndarray, side: int) -> np.ndarray:
    """Samples about which all others, up to `side` away, have the same value, bool (H, W)."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, side, mode="edge"), (2 * side + 1,) * 2)
    return windows.min((-1, -2)) == windows.max((-1, -2))
