"""`torchrl-gpu bench kernels`, a module for each part of it; `command` is the command line."""
