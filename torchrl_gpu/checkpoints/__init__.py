"""Checkpoints: files, copies on object storage, resuming and records of runs.

Not here: when to save, which is a callback (`callbacks.EpisodeCheckpoint`), and what a run adds (`training.run`).
"""
