"""Evaluation of marine navigation: episodes, tables, published results and trails.

What every environment has is in the folder above; when a run evaluates is in `torchrl_gpu.training`. Read `episodes.py`
first, then `suite.py`.
"""

from torchrl_gpu.evaluation.marine.episodes import evaluate

__all__ = ["evaluate"]
