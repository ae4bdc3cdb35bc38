"""`GymnasiumVectorEnv`: any `BatchedEnv` as a vector environment of Gymnasium."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast, final

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
        f"GymnasiumVectorEnv: want Gymnasium, which an extra brings; got an install without it ({missing});"
        f" to bring it: {how_to_install('gymnasium')}",
        name=missing.name,
    ) from missing


@final
class GymnasiumVectorEnv(VectorEnv[Any, Any, Any]):
    """A `BatchedEnv` under the contract of `gymnasium.vector.VectorEnv`, version 1.

    Rows are environments, or, where these group their robots, robots: N = environments · robots. A row that ends shows
    the first observation of its next episode in the same step (`AutoresetMode.SAME_STEP`); what it ended on is in
    `infos["final_obs"]`, what its episode came to in `infos["final_info"]`, where `_final_obs` is true. A robot that
    ends before the others of its environment waits for them: it earns 0, ends no more and is not in `infos["active"]`.

    Observations are finite: where the environment's are infinite, as the bottom of items is where there is no material,
    the bound of its specification stands, or `BatchedEnv.far`.

    `infos["action_mask"]` (N, A) is true for legal discrete actions; where all observations are shown, they hold it,
    too. An illegal one ends the episode, as in the environment itself.

    As NumPy arrays, everything is copied to the host. As tensors, nothing is read back: what is handed out
    must not be written into, flags stay bool, and `final_obs` and `final_info` hold all rows in every step.

    Attributes:
        masked: Whether only some actions are legal.

    Args:
        env: The environment.
        observations: One name, for a space without names, or several, for a `Dict`; None for all but outcomes.
        output: Kind of arrays that `reset` and `step` return; actions may be either.
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
        self.num_envs = self._rows.number
        lead = len(self._rows.shape)
        seen = {name: _space(spec, lead) for name, spec in self._rows.observations.items()}
        self.masked = "action_mask" in seen
        self._one = observations if isinstance(observations, str) else None
        wanted = [observations] if isinstance(observations, str) else seen if observations is None else observations
        self._names = list(wanted)
        if not self._names or not set(self._names) <= set(seen):
            came = ", ".join(map(str, self._names)) or "none"
            raise ValueError(f"{where}: want observations among {', '.join(seen)}; got {came}")
        named = spaces.Dict({name: seen[name] for name in self._names})
        self.single_observation_space = named if self._one is None else seen[self._one]
        self.single_action_space = _space(self._rows.action, lead)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._current: TensorDictBase | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins the next episode of every row, or the first of a given seed.

        `options["reset_mask"]` (N,) bool restarts the rows where it is true alone; all others stay as they are. Robots
        of one environment restart together.

        Returns:
            Observations, and infos as those of `step`.

        Raises:
            ValueError: The mask does not fit the rows, chooses none, or stands beside a seed, which is that of all.
        """
        mask = None if options is None else options.get("reset_mask")
        chosen = None if mask is None else self._chosen(mask, seed)
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
        if chosen is None:
            self._current = self.env.reset()
        else:
            assert self._current is not None
            # As rows that are done begin anew in a step.
            self._current = self.env.maybe_reset(self._current.copy().set("done", chosen))
        return self._seen(self._current), self._infos(self._current)

    def _chosen(self, mask: Any, seed: int | None) -> Tensor | None:
        """The environments (environments, 1) bool whose rows are in a mask; None for all of them."""
        where = "GymnasiumVectorEnv.reset: reset_mask"
        rows = torch.as_tensor(mask, device="cpu")
        if rows.dtype != torch.bool or tuple(rows.shape) != (self.num_envs,) or not bool(rows.any()):
            kind = str(rows.dtype).removeprefix("torch.")
            came = f"{kind} of shape {tuple(rows.shape)}, {int(rows.sum())} of them true"
            raise ValueError(f"{where} must be bool of shape ({self.num_envs},), true for a row at least; got {came}")
        if bool(rows.all()):
            return None
        if seed is not None:
            raise ValueError(f"{where} wants no seed, which all rows have together; got {seed}")
        if self._current is None:
            raise error.ResetNeeded(f"{where} wants a reset of all rows before it; got none")
        each = rows.view(self.env.num_envs, -1)
        if bool((each != each[:, :1]).any()):
            robots = each.shape[1]
            raise ValueError(f"{where} must have one value for the {robots} robots of an environment; got several")
        return each[:, :1].to(self.env.device)

    @torch.no_grad()
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Plays actions, indices (N,) or numbers (N, D), and restarts the episodes that end.

        Returns:
            Observations; rewards (N,) float32; terminated (N,) bool; truncated (N,) bool; infos.
        """
        if self._current is None:
            raise error.ResetNeeded("GymnasiumVectorEnv: want a reset before the first step")
        before = self._current
        stepped, self._current = self.env.step_and_maybe_reset(before.set(self._rows.action_key, self._given(actions)))
        after = stepped["next"]
        reward, terminated, done = self._rows.earned(stepped, after, after["done"])
        infos = self._infos(self._current) | self._ended(after, done)
        truncated = done & ~terminated
        rest = (self._out(value) for value in (reward.float(), terminated, truncated))
        return self._seen(self._current), *rest, infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """RGB picture of each row's environment, uint8 (H, W, 3), on the host; None without a `render_mode`."""
        if self.render_mode is None:
            return None
        pictures = viewable(self.env).pictures(range(self.env.num_envs), *self.render_size)
        arrays = pictures.cpu().numpy() if isinstance(pictures, Tensor) else pictures
        return tuple(np.repeat(arrays, self.num_envs // self.env.num_envs, 0))

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()

    def _given(self, actions: Any) -> Tensor:
        action = actions.detach() if isinstance(actions, Tensor) else torch.from_numpy(np.array(actions))
        wanted = self.action_space.shape
        if action.shape != wanted:
            raise ValueError(f"GymnasiumVectorEnv.step: want actions of shape {wanted}; got {tuple(action.shape)}")
        spec = self._rows.action
        action = action.to(spec.device).view(spec.shape)
        return action.to(spec.dtype) if spec.dtype.is_floating_point else action

    def _out(self, value: Tensor) -> Any:
        return value if self.output == "torch" else np.array(value.cpu().numpy())

    def _observed(self, tensordict: TensorDictBase) -> dict[str, Any]:
        lead = len(self._rows.shape)
        seen = {name: self._rows.shown(name, tensordict) for name in self._names}
        return {name: self._shown(value.reshape(self.num_envs, *value.shape[lead:])) for name, value in seen.items()}

    def _shown(self, value: Tensor) -> Any:
        """Observation in the dtype of its space: Gymnasium's flags are int8."""
        return self._out(value.view(torch.int8) if value.dtype == torch.bool and self.output == "numpy" else value)

    def _seen(self, tensordict: TensorDictBase) -> Any:
        seen = self._observed(tensordict)
        return seen if self._one is None else seen[self._one]

    def _infos(self, tensordict: TensorDictBase) -> dict[str, Any]:
        entries = self._rows.entries(tensordict)
        active = entries.get("active", None)
        infos = {"action_mask": self._shown(entries["action_mask"].reshape(self.num_envs, -1))} if self.masked else {}
        if active is not None:
            infos["active"] = self._out(self._rows.flat(active))
        everyone = self._out(torch.ones(self.num_envs, dtype=torch.bool, device=self.device)) if infos else None
        return infos | {f"_{name}": everyone for name in infos}

    def _ended(self, after: TensorDictBase, done: Tensor) -> dict[str, Any]:
        """Infos of rows that ended: final observations, and episode outcomes where their environment ended, too."""
        over = done & self._rows.flat(after["done"])
        ends, whole = self._out(done), self._out(over)
        if self.output == "numpy" and not ends.any():
            return {}
        outcomes = self.env.episode_outcomes(after)
        found = {name: self._out(self._rows.flat(value)) for name, value in outcomes.items()}
        final = self._seen(after)
        if self.output == "numpy":
            final = self._row_by_row(final, ends)
        info = found | {f"_{name}": whole for name in found}
        return {"final_obs": final, "_final_obs": ends, "final_info": info, "_final_info": ends}

    def _row_by_row(self, seen: Any, ends: np.ndarray) -> np.ndarray:
        """Object array (N,) of final observations, None elsewhere, as Gymnasium's own environments return it."""
        rows = np.full(self.num_envs, None, dtype=object)
        for row in ends.nonzero()[0]:
            rows[row] = {name: value[row] for name, value in seen.items()} if self._one is None else seen[row]
        return rows


def _space(spec: TensorSpec, lead: int) -> spaces.Space[Any]:
    """Gymnasium space of one row of a specification whose first `lead` axes are those of rows."""
    shape = tuple(spec.shape[lead:])
    if spec.dtype == torch.bool:
        return spaces.MultiBinary(shape)
    if isinstance(spec, Categorical):
        number = int(spec.space.n)
        return spaces.Box(0, number - 1, shape, dtype=np.int64) if shape else spaces.Discrete(number)
    first = (0,) * lead
    dtype = np.dtype(str(spec.dtype).removeprefix("torch."))
    low, high = (bound[first].cpu().numpy() for bound in (spec.space.low, spec.space.high))
    if not isinstance(spec, Bounded) and dtype.kind == "f":
        low, high = np.full_like(low, -np.inf), np.full_like(high, np.inf)
    return cast("spaces.Space[Any]", spaces.Box(low, high, dtype=dtype.type))
