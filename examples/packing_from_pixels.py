"""Packing of boxes from pictures of the bin: DQN behind an encoder of clips.

The bin is drawn on the device from its heightmap, seen from above: the higher, the brighter. The next box is drawn next
to it. Masks of actions still apply. Clips work with any environment that has `pictures`.

    python examples/packing_from_pixels.py --updates 2000
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.nn.functional import interpolate

from torchrl_gpu.envs import FromPixels, PackingEnv
from torchrl_gpu.policies import DQN, ClipEncoder, EpsilonGreedy, VectorScores
from torchrl_gpu.training import ClipReplay, Episodes, OffPolicy


class SeenBins(PackingEnv):
    """Bins from above.

    Heights are red, the sides of the next box are green, and its height is blue.
    """

    def metrics(self) -> dict[str, Tensor]:
        """Steps, episodes, and how full the bins are."""
        steps, filled = self.state.step_count, self.state.volume
        return {"step": steps, "episode": self.state.episode, "return": filled}

    def pictures(self, index: Sequence[int] | Tensor, width: int, height: int) -> Tensor:
        """uint8 (B, H, W, 3)."""
        rows = index if isinstance(index, Tensor) else torch.tensor(list(index), device=self.device)
        heights = self.state.heightmap[rows] / self.bin_size[2]  # (B, X, Y)
        # Metres, of the first visible box, (B, 3).
        sides = self.sizes_of(self.state.item_id)[rows, 0, 0, :3]
        across, along = heights.shape[1:]
        x = torch.arange(across, device=self.device)[:, None] * self.cell[0]
        y = torch.arange(along, device=self.device) * self.cell[1]
        box = (x < sides[:, 0, None, None]) & (y < sides[:, 1, None, None])
        tall = (sides[:, 2] / self.bin_size[2])[:, None, None].expand_as(heights)
        scene = torch.stack([heights, box.float(), tall * box], 1) * 255
        return interpolate(scene, (height, width), mode="nearest").to(torch.uint8).permute(0, 2, 3, 1)


def main(args: Sequence[str] | None = None) -> None:
    """Trains, and prints how full bins are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--num_envs", type=int, default=64)
    given = parser.parse_args(args)
    torch.manual_seed(0)
    env = FromPixels(SeenBins(given.num_envs, seed=0), clip_length=2, frame_size=(32, 32))
    network = partial(VectorScores, observations=["features"])
    agent = partial(DQN, network=network, exploration=EpsilonGreedy(frames=20_000))
    module = OffPolicy(
        env,
        agent,
        partial(torch.optim.Adam, lr=1e-3),
        encoder=ClipEncoder(arch="simple2dcnn", num_features=128),
        # No random shifts of pictures: where a box stands is what matters.
        shift=0,
        replay=partial(ClipReplay, capacity=50_000),
        updates_per_step=8,
    )
    data = Episodes(steps_per_epoch=max(1, given.updates // 8), num_val_episodes=200, num_episodes=200)
    trainer = Trainer(max_steps=given.updates, logger=False, enable_checkpointing=False, num_sanity_val_steps=0)
    trainer.fit(module, data)
    trainer.test(module, data)


if __name__ == "__main__":
    main()
