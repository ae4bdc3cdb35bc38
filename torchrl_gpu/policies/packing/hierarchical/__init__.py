"""Hierarchical packer of irregular items (Huang et al., RA-L 2023).

Here: its networks, their inputs, and linear values of piles; training is in `training.packing.hierarchical`. Read
`packer.py` first (a manager picks the item, a worker places it), then `networks.py` and `views.py`.
"""
