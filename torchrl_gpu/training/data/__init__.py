"""Data modules of runs: numbers of training steps, and episodes to evaluate on.

Not here: replay (`training.replay`) and files of demonstrations (`demonstrations`). Read `episodes` first.
"""
