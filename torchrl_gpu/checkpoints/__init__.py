"""Checkpoints: their files, copies of them on object storage, resuming from one, and the record of the run in each.

Not here: when to save, which is a callback (`callbacks.EpisodeCheckpoint`), and what a run adds (`training.run`).
"""
