"""Hierarchical packer of irregular items (Huang et al., RA-L 2023): networks, views and pile values.

Trained by `training.packing.hierarchical`.
"""
