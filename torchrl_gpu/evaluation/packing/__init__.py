"""Evaluation of bin packing."""
