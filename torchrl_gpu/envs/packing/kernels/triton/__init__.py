"""Packing kernels in Triton, the default on CUDA.

Each module has the functions of its namesake in torch; `reference` defines what they give.
"""
