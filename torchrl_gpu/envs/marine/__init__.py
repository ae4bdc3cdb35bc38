"""Marine navigation of many robots across a square of sea.

The physics and rewards are those of two papers, see `docs/environments/marine-reference.md`. Policies for it are in
`torchrl_gpu.policies.marine`, comparisons of them in `torchrl_gpu.evaluation.marine`. Read `types.py` first, then
`dynamics.py`, `sensors.py` and `reward.py`; `env.py` wires them together.
"""
