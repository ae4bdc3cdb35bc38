"""`Sb3VecEnv`: any `BatchedEnv` for Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from torchrl_gpu.envs.adapters.gymnasium import GymnasiumVectorEnv, Infos
from torchrl_gpu.system.extras import how_to_install

try:
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"Sb3VecEnv needs Stable-Baselines3, which is not installed ({missing}): {how_to_install('gymnasium')}",
        name=missing.name,
    ) from missing


@final
class Sb3VecEnv(VecEnv):
    """A `GymnasiumVectorEnv` under the contract of Stable-Baselines3's `VecEnv`.

    It has masks for `MaskablePPO`. The infos of a row that ends hold `terminal_observation`, `TimeLimit.truncated`, so
    that time-outs are bootstrapped, and the outcomes of its episode.

    Args:
        env: It must return NumPy arrays.
    """

    def __init__(self, env: GymnasiumVectorEnv) -> None:
        if env.output != "numpy":
            raise ValueError(f"Sb3VecEnv: env must have output 'numpy', not {env.output!r}")
        self.env = env
        self._infos: Infos = {}
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Any:
        """Begin the next episode of every row, or the first of the number given to `seed`."""
        observed, self._infos = self.env.reset(seed=self._seeds[0])
        # A seed and options are for one reset, as in the environments of Stable-Baselines3.
        self._reset_seeds()
        self._reset_options()
        return observed

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[Infos]]:
        """Return observations, rewards (N,), ends (N,) and infos of each row."""
        observed, reward, terminated, truncated, self._infos = self.env.step(self._actions)
        # The constructor has checked that these are no tensors.
        assert isinstance(reward, np.ndarray)
        assert isinstance(terminated, np.ndarray)
        assert isinstance(truncated, np.ndarray)
        infos: list[Infos] = [{} for _ in range(self.num_envs)]
        done = terminated | truncated
        for row in done.nonzero()[0]:
            final = self._infos["final_info"]
            # Outcomes are those of whole episodes. A robot may end before its environment does.
            for name in self.env.env.outcome_names:
                if final[f"_{name}"][row]:
                    infos[row][name] = final[name][row]
            infos[row]["terminal_observation"] = self._infos["final_obs"][row]
            infos[row]["TimeLimit.truncated"] = bool(truncated[row])
        return observed, reward, done, infos

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (N, A) bool, of an environment that was reset."""
        if not self.env.masked:
            raise ValueError("Sb3VecEnv.action_masks: env has no masks, since all its actions are legal")
        if "action_mask" not in self._infos:
            raise ValueError("Sb3VecEnv.action_masks: call reset before the first one")
        masks: np.ndarray = self._infos["action_mask"].astype(bool)
        return masks

    def close(self) -> None:
        self.env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return a picture of each row, or None without a `render_mode`."""
        return self.env.render() or [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[object]:
        """Return an attribute of the environment, once for each row of `indices`.

        That of `action_masks` exists if actions are masked: MaskablePPO looks for it.
        """
        num_rows = len(list(self._get_indices(indices)))
        if attr_name == "action_masks" and self.env.masked:
            return [self.action_masks] * num_rows
        return [getattr(self.env, attr_name)] * num_rows

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        setattr(self.env, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[object]:
        """Return `action_masks` of each row.

        Raises:
            AttributeError: For any other method, since rows have no environment of their own.
        """
        if method_name != "action_masks":
            raise AttributeError(f"Sb3VecEnv: env_method can only call action_masks, not {method_name}")
        masks = self.action_masks()
        return [masks[row] for row in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[object], indices: VecEnvIndices = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))
