"""What is not legal is never bootstrapped, however bad the legal actions are."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from torchrl_gpu.policies import AgentSpace
from torchrl_gpu.policies.agents.legal import legal_values

SPACE = AgentSpace("Somewhere", (), {"action_mask": ((3,), "bool")}, num_actions=3)


def test_of_bad_actions_a_legal_one_is_chosen() -> None:
    state = TensorDict({"action_mask": torch.tensor([[False, True, True], [True, False, False]])}, [2])
    values = legal_values(torch.tensor([[5.0, -2.0, -1.0], [-9.0, -1.0, 0.0]]), state, SPACE)
    assert values.argmax(-1).tolist() == [2, 0]
    assert values.isinf().tolist() == (~state["action_mask"]).tolist()
