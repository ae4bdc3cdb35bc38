"""Policy that drives an environment of Gymnasium, watched in a browser.

It needs `pip install -e '.[gymnasium,stream]'`:

python examples/gymnasium_camera.py --policy cart.pt

The policy is any file that `load_policy` reads with 4 numbers in and 2 out: the larger one says whether the cart of
CartPole-v1 is pushed to the left or to the right. Without one it is pushed at random.
"""

from __future__ import annotations

import os

import gymnasium
import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.serving import simulator

FPS = 30


class CartPole:
    """Episodes of CartPole-v1, one after the other.

    Any environment with vector observations and the render mode "rgb_array" works in the same way.
    """

    def __init__(self, device: str) -> None:
        # pygame draws without a screen.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        self.env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
        self.env.action_space.seed(0)
        self.seen, _ = self.env.reset(seed=0)

    def observe(self) -> Tensor:
        """Place and speed of the cart, angle and speed of the pole, (4,)."""
        return torch.from_numpy(self.seen)

    def step(self, action: Tensor | None) -> None:
        """Pushes, and begins anew where the episode is over."""
        push = self.env.action_space.sample() if action is None else int(action.argmax())
        self.seen, _, terminated, truncated, _ = self.env.step(push)
        if terminated or truncated:
            self.seen, _ = self.env.reset()

    def render(self) -> np.ndarray:
        """uint8 (H, W, 3)."""
        return self.env.render()  # type: ignore[return-value]


if __name__ == "__main__":
    simulator.main(CartPole, __doc__, FPS)
