"""`GymnasiumVectorEnv`: any `BatchedEnv` as a vector environment of Gymnasium."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, TensorSpec

from torchrl_gpu.envs.adapters.agent_rows import AgentRows
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.system import arguments
from torchrl_gpu.system.extras import how_to_install

try:
    from gymnasium import error, spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"GymnasiumVectorEnv needs Gymnasium, which is not installed ({missing}): {how_to_install('gymnasium')}",
        name=missing.name,
    ) from missing

Array = np.ndarray | Tensor
Observation = Array | dict[str, Array]

Infos = dict[str, Any]
"""Infos of Gymnasium: arrays, or dicts of them, by name."""


@final
class GymnasiumVectorEnv(VectorEnv[Observation, Array, Array]):
    """A `BatchedEnv` under the contract of `gymnasium.vector.VectorEnv`, version 1.

    Rows are environments, or robots if the environment groups them: N = environments · robots. A row that ends shows
    the first observation of its next episode in the same step (`AutoresetMode.SAME_STEP`). Where `_final_obs` is true,
    its last observation is in `infos["final_obs"]`, and the outcomes of its episode are in `infos["final_info"]`. A
    robot that ends before the others of its environment waits for them: it earns 0, does not end again and is not in
    `infos["active"]`.

    Observations are finite. An infinite value of the environment, such as the bottom of an item where it has no
    material, becomes the bound of its spec, or `BatchedEnv.far`.

    `infos["action_mask"]` (N, A) is true for legal discrete actions. If all observations are given, they hold it, too.
    An illegal action ends the episode, as in the environment itself.

    With NumPy arrays, everything is copied to the host. With tensors, nothing is read back: they must not be written
    into, flags stay bool, and `final_obs` and `final_info` hold all rows in every step.

    Attributes:
        masked: Whether only some actions are legal.

    Args:
        env: The environment.
        observations: One name, for a space without names, or several, for a `Dict`; None for all except outcomes.
        output: Kind of arrays that `reset` and `step` return. Actions may be of either kind.
        render_mode: "rgb_array" for `render`; it needs a viewable environment, see `envs.viewable`.
        render_size: Width and height of pictures, pixels.

    Raises:
        ModuleNotFoundError: The extra `gymnasium` is not installed.
        ValueError: There is no such observation, several actions, or one that is neither an index nor bounded.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": ["rgb_array"],
        "render_fps": 10,
    }

    def __init__(
        self,
        env: BatchedEnv,
        observations: str | Sequence[str] | None = None,
        *,
        output: Literal["numpy", "torch"] = "numpy",
        render_mode: Literal["rgb_array"] | None = None,
        render_size: tuple[int, int] = (480, 360),
    ) -> None:
        where = type(self).__name__
        self.env = env
        self.device = env.device
        self.output = arguments.choice(where, "output", output, ("numpy", "torch"))
        self.render_mode = render_mode and arguments.choice(where, "render_mode", render_mode, ("rgb_array",))
        self.render_size = render_size
        self._rows = AgentRows(env, where)
        self.num_envs = self._rows.num_rows
        lead = len(self._rows.shape)
        known = {name: _space(spec, lead) for name, spec in self._rows.observations.items()}
        self.masked = "action_mask" in known
        # The name of the only observation, if it is given without a name.
        self._one = observations if isinstance(observations, str) else None
        if observations is None:
            self._names = list(known)
        else:
            self._names = [observations] if isinstance(observations, str) else list(observations)
        are_known = set(self._names) <= set(known)
        if not self._names or not are_known:
            found = ", ".join(map(str, self._names)) or "none"
            raise ValueError(f"{where}: observations must be among {', '.join(known)}, not {found}")
        named = spaces.Dict({name: known[name] for name in self._names})
        self.single_observation_space = named if self._one is None else known[self._one]
        self.single_action_space = _space(self._rows.action, lead)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._current: TensorDictBase | None = None

    def reset(self, *, seed: int | None = None, options: Infos | None = None) -> tuple[Observation, Infos]:
        """Begin the next episode of every row, or the first of a given seed.

        `options["reset_mask"]` (N,) bool restarts only the rows where it is true. Robots of one environment restart
        together.

        Returns:
            Observations, and infos as those of `step`.

        Raises:
            ValueError: The mask does not fit the rows, chooses none, or comes with a seed, which is for all rows.
        """
        mask = None if options is None else options.get("reset_mask")
        chosen = None if mask is None else self._choose(mask, seed)
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
        if chosen is None:
            self._current = self.env.reset()
        else:
            assert self._current is not None
            # Rows that are chosen restart as if they were done.
            with_chosen_done = self._current.copy().set("done", chosen)
            self._current = self.env.maybe_reset(with_chosen_done)
        return self._observe(self._current), self._infos(self._current)

    def _choose(self, mask: object, seed: int | None) -> Tensor | None:
        """Return the environments whose rows are in a mask.

        They are (environments, 1) bool, or None for all of them.
        """
        where = "GymnasiumVectorEnv.reset: reset_mask"
        rows = torch.as_tensor(mask, device="cpu")
        has_form = rows.dtype == torch.bool and tuple(rows.shape) == (self.num_envs,)
        if not has_form or not bool(rows.any()):
            kind = str(rows.dtype).removeprefix("torch.")
            num_true = int(rows.sum())
            found = f"{kind} of shape {tuple(rows.shape)}, {num_true} of them true"
            raise ValueError(
                f"{where} must be bool of shape ({self.num_envs},), and true for at least one row; got {found}"
            )
        if bool(rows.all()):
            return None
        if seed is not None:
            raise ValueError(f"{where} cannot be given with a seed, which is for all rows: leave out seed {seed}")
        if self._current is None:
            raise error.ResetNeeded(f"{where} cannot be given before the first reset of all rows")
        # Robots of one environment are one row of `each`.
        each = rows.view(self.env.num_envs, -1)
        if bool((each != each[:, :1]).any()):
            robots = each.shape[1]
            raise ValueError(f"{where} must have one value for all {robots} robots of an environment; it has both")
        return each[:, :1].to(self.env.device)

    @torch.no_grad()
    def step(self, actions: Array) -> tuple[Observation, Array, Array, Array, Infos]:
        """Play actions, indices (N,) or numbers (N, D), and restart the episodes that end.

        Returns:
            Observations; rewards (N,) float32; terminated (N,) bool; truncated (N,) bool; infos.
        """
        if self._current is None:
            raise error.ResetNeeded("GymnasiumVectorEnv.step: call reset before the first step")
        before = self._current.set(self._rows.action_key, self._check_actions(actions))
        stepped, self._current = self.env.step_and_maybe_reset(before)
        after = stepped["next"]
        reward, terminated, done = self._rows.results(stepped, after, after["done"])
        infos = self._infos(self._current) | self._final_infos(after, done)
        truncated = done & ~terminated
        observation = self._observe(self._current)
        rewards = self._out(reward.float())
        return observation, rewards, self._out(terminated), self._out(truncated), infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Draw each row's environment on the host, uint8 (H, W, 3), RGB.

        The result is None without a `render_mode`.
        """
        if self.render_mode is None:
            return None
        index = range(self.env.num_envs)
        pictures = viewable(self.env).pictures(index, *self.render_size)
        arrays = pictures.cpu().numpy() if isinstance(pictures, Tensor) else pictures
        # Robots of one environment are in one picture.
        robots = self.num_envs // self.env.num_envs
        return tuple(np.repeat(arrays, robots, 0))

    def close_extras(self, **kwargs: object) -> None:
        self.env.close()

    def _check_actions(self, actions: Array) -> Tensor:
        """Return actions in the form of the environment."""
        if isinstance(actions, Tensor):
            action = actions.detach()
        else:
            # A copy of arrays, which torch may not alias if they are read-only.
            action = torch.from_numpy(np.array(actions))
        shape = self.action_space.shape
        if action.shape != shape:
            raise ValueError(f"GymnasiumVectorEnv.step: actions must have shape {shape}, not {tuple(action.shape)}")
        spec = self._rows.action
        action = action.to(spec.device).view(spec.shape)
        return action.to(spec.dtype) if spec.dtype.is_floating_point else action

    def _out(self, value: Tensor) -> Array:
        """Return values in the kind of arrays that is given to the caller."""
        # A copy, since on a CPU the array would otherwise be the environment's own memory.
        return value if self.output == "torch" else np.array(value.cpu().numpy())

    def _out_in_space_dtype(self, value: Tensor) -> Array:
        """Return an observation in the dtype of its space: Gymnasium's flags are int8."""
        if value.dtype == torch.bool and self.output == "numpy":
            value = value.view(torch.int8)
        return self._out(value)

    def _observe(self, tensordict: TensorDictBase) -> Observation:
        observed = {name: self._observe_entry(name, tensordict) for name in self._names}
        return observed if self._one is None else observed[self._one]

    def _observe_entry(self, name: str, tensordict: TensorDictBase) -> Array:
        value = self._rows.observe(name, tensordict)
        lead = len(self._rows.shape)
        rows = value.reshape(self.num_envs, *value.shape[lead:])
        return self._out_in_space_dtype(rows)

    def _infos(self, tensordict: TensorDictBase) -> Infos:
        """Return infos of all rows, each with its mask of rows."""
        entries = self._rows.entries(tensordict)
        infos: Infos = {}
        if self.masked:
            mask = entries["action_mask"].reshape(self.num_envs, -1)
            infos["action_mask"] = self._out_in_space_dtype(mask)
        active = entries.get("active", None)
        if active is not None:
            infos["active"] = self._out(self._rows.flatten(active))
        if not infos:
            return infos
        # Gymnasium has a mask of rows next to each info, since others are of some rows only.
        everyone = self._out(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        return infos | {f"_{name}": everyone for name in infos}

    def _final_infos(self, after: TensorDictBase, done: Tensor) -> Infos:
        """Return final observations of rows that ended, and outcomes of whole episodes.

        An episode is whole once its environment has ended, too.
        """
        over = done & self._rows.flatten(after["done"])
        ends = self._out(done)
        # Whether any row has ended is on the host already if arrays are given; tensors are not read back for it.
        if isinstance(ends, np.ndarray) and not ends.any():
            return {}
        info: Infos = {}
        for name, value in self.env.episode_outcomes(after).items():
            info[name] = self._out(self._rows.flatten(value))
        whole = self._out(over)
        info |= {f"_{name}": whole for name in info}
        final = self._observe(after)
        if isinstance(ends, np.ndarray):
            final = self._row_by_row(final, ends)
        return {"final_obs": final, "_final_obs": ends, "final_info": info, "_final_info": ends}

    def _row_by_row(self, observed: Observation, ends: np.ndarray) -> np.ndarray:
        """Return final observations as an object array (N,), with None for other rows.

        Gymnasium's own environments return them so.
        """
        rows = np.full(self.num_envs, None, dtype=object)
        for row in ends.nonzero()[0]:
            if isinstance(observed, dict):
                rows[row] = {name: value[row] for name, value in observed.items()}
            else:
                rows[row] = observed[row]
        return rows


def _space(spec: TensorSpec, lead: int) -> spaces.Space[Any]:
    """Return Gymnasium's space of one row, of a spec whose first `lead` axes are rows."""
    shape = tuple(spec.shape[lead:])
    if spec.dtype == torch.bool:
        return spaces.MultiBinary(shape)
    if isinstance(spec, Categorical):
        number = int(spec.space.n)
        if shape:
            return spaces.Box(0, number - 1, shape, dtype=np.int64)
        return spaces.Discrete(number)
    first_row = (0,) * lead
    dtype = np.dtype(str(spec.dtype).removeprefix("torch."))
    low = spec.space.low[first_row].cpu().numpy()
    high = spec.space.high[first_row].cpu().numpy()
    # TorchRL gives numbers without bounds the limits of their dtype.
    if not isinstance(spec, Bounded) and dtype.kind == "f":
        low = np.full_like(low, -np.inf)
        high = np.full_like(high, np.inf)
    return spaces.Box(low, high, dtype=dtype.type)
