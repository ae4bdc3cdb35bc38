"""N-tuple network over heightmaps: tables, their values and their files.

The tables are trained by `training.packing.afterstates`; planners that look ahead with them are in `packing.planners`.
Read `tables.py` first, then `values.py`, which defines every operation; C++ and Triton only speed them up.
"""
