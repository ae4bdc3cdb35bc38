"""Checkpoints: files, copies on object storage, resuming and records of runs.

Not here: when to save, which is a callback (`callbacks.EpisodeCheckpoint`), and what a run adds (`training.run`).
Read `run_folder` first, which writes a checkpoint from top to bottom.
"""
