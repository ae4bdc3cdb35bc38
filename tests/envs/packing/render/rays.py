"""An independent picture of a bin.

It shows what each sample's ray meets first, in double precision.
"""

from __future__ import annotations

import numpy as np

from torchrl_gpu.envs.packing.render.camera import Camera


def nearest_box(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Return the box that each sample sees, −1 for none, and the axis of its face.

    The face lies across that axis. Both are int (H, W).

    Every ray is held against the slabs of each box in turn.
    """
    # The direction that the projection does not see.
    forward = np.cross(camera.axes[:, 0], camera.axes[:, 1])
    forward *= -np.sign(forward[2])
    width, height = camera.size
    seen = np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), -1) - camera.origin
    # On the floor.
    start = np.concatenate([seen @ np.linalg.inv(camera.axes[:2]), np.zeros((height, width, 1))], -1)
    best = np.full((height, width), np.inf)
    label = np.full((height, width), -1)
    face = np.full((height, width), 0)
    for number, (low, high) in enumerate(zip(lower, upper, strict=True)):
        planes = np.sort(np.stack([(low - start) / forward, (high - start) / forward]), axis=0)
        enter, leave = planes[0].max(-1), planes[1].min(-1)
        nearer = (enter < leave) & (enter < best)
        best[nearer], label[nearer] = enter[nearer], number
        face[nearer] = planes[0].argmax(-1)[nearer]
    return label, face


def uniform(values: np.ndarray, side: int) -> np.ndarray:
    """Return samples whose neighbours up to `side` away have the same value.

    It is bool (H, W).
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, side, mode="edge"), (2 * side + 1,) * 2)
    return windows.min((-1, -2)) == windows.max((-1, -2))
