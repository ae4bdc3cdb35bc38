"""Films of whole episodes, every step of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from torchrl_gpu.callbacks.device_count import DeviceCount
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.viewable import Viewable, viewable
from torchrl_gpu.evaluation.player import Player
from torchrl_gpu.system import arguments

if TYPE_CHECKING:
    from torchrl_gpu.training.run import EnvRun

# Seconds for which the end of the episode stays.
HOLD_S = 1.5
# Number of an environment that no run trains in.
UNSEEN_ENV = 1 << 24
MOST_STEPS = 10_000


class Films:
    """Films one episode as MP4 whenever another `every` have begun in training.

    The episode is the greedy policy's, in an environment of its own, and the same every time, so that films show what
    has been learned in between.
    """

    def __init__(self, folder: str | Path, every: int, fps: float, width: int, height: int) -> None:
        self.every = arguments.whole("FrameStream", "record_every_n_episodes", every, 1)
        self.folder = Path(folder)
        self.fps = fps
        self.size = (width, height)
        self.begin()

    def begin(self) -> None:
        """Forget the episodes and the environment of a run before."""
        self._crossed: int | None = None
        self._begun = DeviceCount()
        self._env: BatchedEnv | None = None

    def due(self, view: Viewable) -> int | None:
        """Return the number of episodes begun, if it just passed a multiple of `every`."""
        begun = self._begun(view.metrics()["episode"].sum())
        crossed = self._crossed
        self._crossed = begun // self.every
        if crossed is None or self._crossed <= crossed:
            return None
        return begun

    def write(self, module: EnvRun, begun: int) -> None:
        """Write the film of one episode of the current policy, `episode-BEGUN.mp4`."""
        # This loads PyAV, which a run without films may not have.
        from torchrl_gpu.streaming.codecs.mp4 import Mp4Writer

        if self._env is None:
            self._env = module.env.like(1)
            self._env.renumber(UNSEEN_ENV)
        self.folder.mkdir(parents=True, exist_ok=True)
        player = Player(self._env, module.policy_for(self._env))
        view = viewable(self._env)
        with Mp4Writer(self.folder / f"episode-{begun:09d}.mp4", self.fps) as film:
            film.write(self._picture(view))
            for _ in range(MOST_STEPS):
                done = bool(player.step()[0])
                picture = self._picture(view)
                for _ in range(1 + round(HOLD_S * self.fps) * done):
                    film.write(picture)
                if done:
                    break

    def _picture(self, view: Viewable) -> np.ndarray:
        picture = view.pictures([0], *self.size)[0]
        return picture.cpu().numpy() if isinstance(picture, torch.Tensor) else picture
