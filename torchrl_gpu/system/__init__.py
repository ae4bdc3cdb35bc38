"""What every room needs of the machine.

Here are argument checks, files, locks, cores, caches, self-tests and clocks. Not here: which device to use (`device`),
and what is computed on it. Read `arguments` first.
"""
