"""Bin packing on heightmaps."""
