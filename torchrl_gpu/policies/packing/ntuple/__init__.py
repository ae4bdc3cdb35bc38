"""N-tuple network over heightmaps: tables, their values in torch, C++ and Triton, and their files.

Trained by `training.packing.afterstates`.
"""
