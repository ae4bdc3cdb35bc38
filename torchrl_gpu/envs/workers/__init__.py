"""Worker processes that play the steps of an environment.

How a run uses them is in `torchrl_gpu.callbacks.env_workers`. Read `pool.py` first, the trainer's side, then
`shard.py`, a worker's side. `processes.py` and `actors.py` connect the two, by pipes of this machine or by Ray.
"""
