"""Arguments, files and caches of the machine, self-tests, clocks and profiler.

Used by every room; imports none but `device`.
"""
