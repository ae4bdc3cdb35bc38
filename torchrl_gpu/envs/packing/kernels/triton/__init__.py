"""Packing kernels in Triton, the default on CUDA.

Here: `kernels` is the entry point, with the functions of every backend. Not here: what they compute, which
`kernels/reference.py` defines. Read `kernels.py` first, then `boxes.py`.
"""
