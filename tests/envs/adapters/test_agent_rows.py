from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Categorical, Unbounded

from tests.envs.adapters.kinds import env_of
from torchrl_gpu.envs import Advanced, EpisodicEnv
from torchrl_gpu.envs.adapters.agent_rows import AgentRows


def test_a_robot_that_waits_earns_nothing_and_ends_no_more_whatever_its_environment_says() -> None:
    # Of two robots each.
    env = env_of("v3", num_envs=2)
    rows = AgentRows(env, "Test")
    key = rows.group

    def robots(**entries: object) -> TensorDict:
        return TensorDict({key: TensorDict({name: torch.tensor(value) for name, value in entries.items()})})

    before = robots(active=[[[True], [False]], [[True], [False]]])
    ends = [[[True], [True]], [[False], [True]]]
    after = robots(reward=[[[1.0], [2.0]], [[3.0], [4.0]]], terminated=ends, done=ends)
    reward, terminated, done = rows.results(before, after, torch.tensor([[False], [True]]))
    assert reward.tolist() == [1.0, 0.0, 3.0, 0.0]
    assert terminated.tolist() == [True, False, False, False]
    assert done.tolist() == [True, False, True, False], "the second environment begins anew"


# -- infinities --------------------------------------------------------------------------------------------------------


class Boundless(EpisodicEnv):
    """Each observation is once infinite in either direction, and once NaN.

    Episodes have one step.
    """

    def __init__(self) -> None:
        half = Bounded(torch.full((4,), -torch.inf), torch.full((4,), 7.0), (4,))
        observations = {
            "free": Unbounded((4,)),
            "bounded": Bounded(-2.0, 3.0, (4,)),
            "half": half,
            "short": Unbounded((4,), dtype=torch.float16),
        }
        super().__init__(2, observations=observations, action=Categorical(2), max_steps=1, device="cpu", seed=0)

    def begin(self) -> dict[str, Tensor]:
        row = torch.tensor([torch.inf, -torch.inf, 0.5, torch.nan]).expand(2, -1)
        names = {"free": torch.float32, "bounded": torch.float32, "half": torch.float32, "short": torch.float16}
        return {name: row.to(dtype, copy=True) for name, dtype in names.items()}

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        return Advanced(state, torch.zeros(2), torch.ones(2, dtype=torch.bool))


FINITE = {
    "free": [1e6, -1e6, 0.5, None],
    "bounded": [3.0, -2.0, 0.5, None],
    "half": [7.0, -1e6, 0.5, None],
    "short": [65504.0, -65504.0, 0.5, None],
}


def plain(seen: Any) -> dict[str, list[float | None]]:
    """The first row of each observation, None for what is no number."""
    return {name: numbers(value[0]) for name, value in seen.items()}


def numbers(values: Any) -> list[float | None]:
    return [None if value != value else float(value) for value in values]


def test_gymnasium_gets_finite_numbers_also_where_an_episode_ended() -> None:
    pytest.importorskip("gymnasium")
    from torchrl_gpu.envs import GymnasiumVectorEnv

    for output in ("numpy", "torch"):
        env = GymnasiumVectorEnv(Boundless(), output=output)  # type: ignore[arg-type]
        assert plain(env.reset()[0]) == FINITE
        seen, *_, infos = env.step(np.zeros(2, dtype=np.int64))
        assert plain(seen) == FINITE
        final = infos["final_obs"]
        assert plain(final if output == "torch" else {name: value[None] for name, value in final[0].items()}) == FINITE


def test_stable_baselines3_gets_finite_numbers_also_where_an_episode_ended() -> None:
    pytest.importorskip("stable_baselines3")
    from torchrl_gpu.envs import GymnasiumVectorEnv, Sb3VecEnv

    env = Sb3VecEnv(GymnasiumVectorEnv(Boundless(), "free"))
    assert plain({"free": env.reset()}) == {"free": FINITE["free"]}
    env.step_async(np.zeros(2, dtype=np.int64))
    seen, _, _, infos = env.step_wait()
    assert plain({"free": seen}) == plain({"free": [infos[0]["terminal_observation"]]}) == {"free": FINITE["free"]}


def test_rsl_rl_gets_finite_numbers() -> None:
    from torchrl_gpu.envs import RslRlVecEnv

    env = RslRlVecEnv(Boundless())
    joined = [*FINITE["free"], *FINITE["bounded"], *FINITE["half"], *FINITE["short"]]
    assert plain(env.get_observations()) == {"policy": joined}
    assert plain(env.step(torch.zeros(2, 2))[0]) == {"policy": joined}


def test_items_have_their_bottom_at_the_bins_height_where_there_is_no_material() -> None:
    env = env_of("packing", include=("item_bottom",))
    rows, shown = AgentRows(env, "Test"), env.reset()
    bottom = rows.observe("item_bottom", shown)
    assert shown["item_bottom"].isposinf().any()
    assert torch.equal(bottom, shown["item_bottom"].clamp_max(env.bin.size[2]))  # type: ignore[attr-defined]
    assert rows.observe("action_mask", shown) is shown["action_mask"]
