"""Data modules of runs: training steps by their number, and suites of episodes for evaluation.

Not replay (`training.replay`) and not files of demonstrations (`demonstrations`).
"""
