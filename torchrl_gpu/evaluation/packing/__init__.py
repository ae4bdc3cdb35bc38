"""Evaluation of bin packing: episodes, tables, protocols and published results.

What every environment has is in the folder above; when a run evaluates is in `torchrl_gpu.training`. Read `episodes.py`
first, then `suite.py`.
"""

from torchrl_gpu.evaluation.packing.episodes import evaluate

__all__ = ["evaluate"]
