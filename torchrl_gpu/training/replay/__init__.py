"""Replay on the device: buffers, draws, priorities, clips, files.

Not here: how transitions come about (`training.collect`). Read `buffer` first.
"""
