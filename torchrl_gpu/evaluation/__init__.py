"""Evaluation of policies: episodes, tables, plans and pictures.

Here is what every environment has; a task's own tables are in the folder of its name. When a run evaluates is decided
in `torchrl_gpu/training/run.py`. Read `suite.py` first.
"""
