"""A step and a restart of marine navigation in Triton, one launch each.

The torch operators of `env.py` define what both compute. `fused.py` decides whether they are used. Read `step.py`
first.
"""
