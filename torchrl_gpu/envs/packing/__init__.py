"""Bin packing on heightmaps.

Here: the environment (`env`), its items, kernels, stability rules, simulated physics and pictures. Not here: policies
(`policies.packing`), comparisons (`evaluation.packing`), whole orders onto pallets (`palletizing`). Read
`kernels/reference.py` first: it defines what packing computes.
"""

# Fills the table of stability rules that bins look theirs up in.
from torchrl_gpu.envs.packing import stability as stability
