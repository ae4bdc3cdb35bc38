"""Experience: steps of environments, rollouts, returns, counts of episodes.

Not here: where transitions are kept (`training.replay`). Read `steps` first, then `rollout`.
"""
