"""`Sb3VecEnv`: any `BatchedEnv` for Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from torchrl_gpu.envs.adapters.gymnasium import GymnasiumVectorEnv
from torchrl_gpu.system.extras import how_to_install

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"Sb3VecEnv: want Stable-Baselines3, which an extra brings; got an install without it ({missing});"
        f" to bring it: {how_to_install('gymnasium')}",
        name=missing.name,
    ) from missing


@final
class Sb3VecEnv(VecEnv):
    """A `GymnasiumVectorEnv` under the contract of Stable-Baselines3's `VecEnv`, with masks for `MaskablePPO`.

    The infos of a row that ends hold `terminal_observation`, `TimeLimit.truncated`, so that time-outs are bootstrapped,
    and the outcomes of its episode. It must return NumPy arrays.
    """

    def __init__(self, env: GymnasiumVectorEnv) -> None:
        if env.output != "numpy":
            raise ValueError(f'Sb3VecEnv: want a GymnasiumVectorEnv with output="numpy"; got {env.output!r}')
        self.env = env
        self._infos: dict[str, Any] = {}
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Any:
        """Begins the next episode of every row, or the first of the number given to `seed`."""
        seen, self._infos = self.env.reset(seed=self._seeds[0])
        self._reset_seeds()
        self._reset_options()
        return seen

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Observations, rewards (N,), ends (N,) and an info for each row."""
        seen, reward, terminated, truncated, self._infos = self.env.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        done = terminated | truncated
        for row in done.nonzero()[0]:
            final = self._infos["final_info"]
            outcomes = {name: final[name][row] for name in self.env.env.outcome_names if final[f"_{name}"][row]}
            infos[row] = outcomes | {
                "terminal_observation": self._infos["final_obs"][row],
                "TimeLimit.truncated": bool(truncated[row]),
            }
        return seen, reward, done, infos

    def action_masks(self) -> np.ndarray:
        """Legal actions, (N, A) bool, of an environment that was reset."""
        if not self.env.masked:
            raise ValueError(
                "Sb3VecEnv.action_masks: want an environment that masks actions; got one of legal ones alone"
            )
        if "action_mask" not in self._infos:
            raise ValueError("Sb3VecEnv.action_masks: want a reset before the first one; got none")
        masks: np.ndarray = self._infos["action_mask"].astype(bool)
        return masks

    def close(self) -> None:
        self.env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of each row; None without a `render_mode`."""
        return self.env.render() or [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Attribute of the environment, once for each row of `indices`; `action_masks` where actions are masked."""
        masks = attr_name == "action_masks" and self.env.masked
        return [self.action_masks if masks else getattr(self.env, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self.env, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """`action_masks` of each row; AttributeError for other methods, since rows have no environment of their own."""
        if method_name != "action_masks":
            raise AttributeError(f"Sb3VecEnv: want env_method of action_masks; got {method_name}")
        masks = self.action_masks()
        return [masks[row] for row in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))
