from __future__ import annotations

import torch
from tensordict import TensorDict

from tests.envs.adapters.kinds import env_of
from torchrl_gpu.envs.adapters.rows import AgentRows


def test_a_robot_that_waits_earns_nothing_and_ends_no_more_whatever_its_environment_says() -> None:
    env = env_of("v3", num_envs=2)  # of two robots
    rows = AgentRows(env, "Test")
    key = rows.group

    def robots(**entries: object) -> TensorDict:
        return TensorDict({key: TensorDict({name: torch.tensor(value) for name, value in entries.items()})})

    before = robots(active=[[[True], [False]], [[True], [False]]])
    ends = [[[True], [True]], [[False], [True]]]
    after = robots(reward=[[[1.0], [2.0]], [[3.0], [4.0]]], terminated=ends, done=ends)
    reward, terminated, done = rows.earned(before, after, torch.tensor([[False], [True]]))
    assert reward.tolist() == [1.0, 0.0, 3.0, 0.0]
    assert terminated.tolist() == [True, False, False, False]
    assert done.tolist() == [True, False, True, False], "the second environment begins anew"
